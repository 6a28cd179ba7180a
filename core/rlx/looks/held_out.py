"""What an evaluation says of held-out prompts beside what a step says: mean reward by source, and pass@k."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

from rlx.metrics import Accumulator
from rlx.ranks import Ranks
from rlx.spec import EvalSampling, Spec
from rlx_sdk import Mean, Metric, Sampling

COLUMNS = ("data_source", "source")
"""That say where a row is from, where ``data.source`` names none."""
SOURCES = 20
"""The largest ones have metrics of their own."""


@dataclass(frozen=True)
class HeldOut:
    """How held-out prompts are completed and measured.

    Attributes:
        sampling: of their completions.
        n: completions a prompt.
        success: reward from which a completion counts as solved.
        column: with a row's source.
    """

    sampling: Sampling
    n: int
    success: float | None
    column: str | None

    @classmethod
    def of(cls, spec: Spec, group_size: int, columns: Sequence[str]) -> HeldOut:
        """As the spec says, else as in training; ``columns`` are those of the data."""
        asked = spec.rollout.eval or EvalSampling(temperature=spec.rollout.temperature)
        sampling = Sampling(asked.temperature, asked.top_p, spec.rollout.max_completion, asked.top_k)
        return cls(sampling, asked.group_size or (group_size if asked.temperature else 1), asked.success,
                   spec.data.source or next((name for name in COLUMNS if name in columns), None))

    def measure(self, rows: Iterable[tuple[int, Mapping[str, Any], float | None]], ranks: Ranks) -> dict[str, float]:
        """Metrics over all ranks; of this one's completions: the prompt's number, its data row, the reward or None."""
        prompts: dict[int, tuple[str | None, list[float]]] = {}
        for number, row, reward in rows:
            source = None if self.column is None or row.get(self.column) is None else str(row[self.column])
            prompts.setdefault(number, (source, []))[1].extend([] if reward is None else [reward])
        sizes = Counter(s for of_rank in ranks.gather([s for s, _ in prompts.values() if s]) for s in of_rank)
        found = Accumulator(ranks)
        found.add(self._passes(prompts.values()))
        for source, _ in sizes.most_common(SOURCES):
            mine = [prompt for prompt in prompts.values() if prompt[0] == source]
            rewards = [reward for _, of_prompt in mine for reward in of_prompt]
            found.add({"reward/mean": Mean(sum(rewards), len(rewards)), **self._passes(mine)},
                      f"source/{source.replace('/', '_')}/")
        return found.reduce()

    def _passes(self, prompts: Iterable[tuple[str | None, Sequence[float]]]) -> dict[str, Metric]:
        """pass@k of prompts, each a source and rewards, for k = 1, 2, 4, … n; those with fewer rewards are left out."""
        if self.success is None:
            return {}
        counts = [(len(rewards), sum(reward >= self.success for reward in rewards)) for _, rewards in prompts]
        ks = sorted({self.n, *(2**i for i in range(self.n.bit_length()) if 2**i <= self.n)})
        return {f"pass@{k}": Mean(sum(pass_at(k, n, right) for n, right in counts if n >= k),
                                  sum(n >= k for n, _ in counts)) for k in ks}


def pass_at(k: int, n: int, right: int) -> float:
    """The chance that one of k completions is right, from n of which some are: ``1 − C(n − right, k) / C(n, k)``.

    Unbiased (Chen et al. 2021, arXiv 2107.03374, equation 1).
    """
    return 1 - comb(n - right, k) / comb(n, k)
