"""Calls rewards, deals with what fails, and adds them up."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlx.registry import stdout_to_stderr
from rlx.spec import RewardSpec
from rlx_sdk import Reward, RewardError, Sample, Score
from rlx_sdk.errors import cause
from rlx_sdk.scores import Caller, ScoreError, check_scores

Result = Score | Exception | None
_SHOWN = 3


@dataclass
class Judged:
    """Scores of some samples.

    Attributes:
        rewards: the weighted sum over providers that judged the sample; 0 where none did.
        judged: whether any did.
        by_provider: each provider's own scores, None where it abstained or failed.
        parts: further numbers of a provider's `Score`, as ``provider/part``.
        failed: samples a provider failed on, under ``on_error: skip`` or a value.
        spans: weighted rewards of a completion's steps, each as (characters up to its end, reward).
    """

    rewards: list[float]
    judged: list[bool]
    by_provider: dict[str, list[float | None]]
    parts: dict[str, list[float]] = field(default_factory=dict)
    failed: int = 0
    spans: list[list[tuple[int, float]]] = field(default_factory=list)


@dataclass(frozen=True)
class Provider:
    """A built reward with what the spec says of it; ``label`` is its name with package and version, for messages."""

    name: str
    label: str
    spec: RewardSpec
    reward: Reward


class RewardPanel:
    """All reward providers of a run."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        """Keep the providers."""
        self._providers = tuple(providers)
        self._caller = Caller()

    def score(self, samples: Sequence[Sample], rows: Sequence[str]) -> Judged:
        """Score samples.

        Args:
            samples: in any order.
            rows: the data row of each, as `rlx.data.Prepared.place` names it.

        Raises:
            RewardError: a provider failed and its ``on_error`` is ``stop``.
        """
        found = Judged([0.0] * len(samples), [False] * len(samples), {}, spans=[[] for _ in samples])
        for provider in self._providers:
            scores = self._usable(provider, samples, rows, found)
            found.by_provider[provider.name] = [None if s is None else s.value for s in scores]
            for i, score in enumerate(scores):
                if score is not None:
                    found.rewards[i] += provider.spec.weight * score.value
                    found.judged[i] = True
                    found.spans[i] += [(end, provider.spec.weight * value) for end, value in score.spans]
                    for part, value in score.parts.items():
                        found.parts.setdefault(f"{provider.name}/{part}", []).append(value)
        return found

    def close(self) -> None:
        """Close every provider and the thread of ``async`` ones."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._caller.close)
            for provider in self._providers:
                stack.callback(_close, provider)

    def _usable(self, provider: Provider, samples: Sequence[Sample], rows: Sequence[str],
                found: Judged) -> list[Score | None]:
        """The provider's scores, and for samples it failed on what its ``on_error`` says."""
        results, policy = self._results(provider, samples), provider.spec.on_error
        bad = {i: result for i, result in enumerate(results) if isinstance(result, Exception)}
        if bad and policy == "stop":
            raise RewardError(_explain(provider, bad, samples, rows)) from next(iter(bad.values()))
        found.failed += len(bad)
        instead = Score(policy) if isinstance(policy, float) else None
        return [instead if isinstance(result, Exception) else result for result in results]

    def _results(self, provider: Provider, samples: Sequence[Sample]) -> list[Result]:
        """A score or an error a sample; after a call that raised, of each sample alone, so that the bad one is known.

        Only up to the first bad one if that ends the run. A result that cannot be assigned counts for all samples.
        """
        try:
            with stdout_to_stderr():
                return list(check_scores(self._caller(provider.reward, samples), len(samples)))
        except Exception as error:  # a stranger's code may raise anything; it is wrapped once, in _usable
            results: list[Result] = []
            for sample in samples if len(samples) > 1 and not isinstance(error, ScoreError) else ():
                results += self._results(provider, [sample])
                if provider.spec.on_error == "stop" and isinstance(results[-1], Exception):
                    return results
            return results if any(isinstance(r, Exception) for r in results) else [error] * len(samples)


def _explain(provider: Provider, bad: Mapping[int, Exception], samples: Sequence[Sample],
             rows: Sequence[str]) -> str:
    """Plugin, package, sample, data row, cause, and the way out."""
    lines = [f"sample {i + 1} of {len(samples)} (data {rows[i]}, completion {samples[i].completion!r:.60}): "
             f"{_text(error)}" for i, error in bad.items()]
    if len(bad) > 1 and len(set(map(id, bad.values()))) == 1:
        lines = [f"all {len(samples)} samples together: {_text(bad[0])}"]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"… and {len(bad) - _SHOWN} more"]
    return "\n  ".join([f"reward {provider.label} failed on", *lines]) + (
        "\nMend the reward, or set its on_error to 'skip' (not judged) or to a number.")


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, ScoreError) else cause(error)


def _close(provider: Provider) -> None:
    try:
        with stdout_to_stderr():
            provider.reward.close()
    except Exception as error:  # a stranger's code
        raise RewardError(f"reward {provider.label} could not be closed: {cause(error)}") from error
