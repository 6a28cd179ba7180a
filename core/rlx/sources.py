"""Where a step's data comes from: sampled and scored, or read. The trainer sees one `Source`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlx.batching import pad_sequences
from rlx.data import Prepared, Tokenizer
from rlx.data.order import Order
from rlx.metrics import Accumulator
from rlx.ranks import Ranks
from rlx.rewards import Judged, RewardPanel
from rlx_sdk import (
    Demonstrations,
    Generation,
    Mean,
    Pairs,
    Request,
    RolloutBackend,
    Rollouts,
    Sample,
    Sampling,
    Sum,
    TrainingError,
)

EVAL_STREAM = 1 << 40
"""Evaluation draws its random numbers far away from training's positions."""


class Timer(Protocol):
    """Times a named phase."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Time a block."""
        ...


@dataclass(frozen=True)
class Collected:
    """One batch of data, what was measured while it was made, and rows for the table of samples."""

    data: Rollouts | Pairs | Demonstrations
    metrics: dict[str, float] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)


class Source(Protocol):
    """Gives the data of each step."""

    def collect(self, phase: Timer) -> Collected | None:
        """The next batch; None when the data is used up."""
        ...

    def evaluate(self, phase: Timer) -> Collected | None:
        """The held-out data; None if there is none."""
        ...

    def sync(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """The policy has new weights."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Its position."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


@dataclass
class Cursor:
    """A position in the data, in rows used so far; ``end`` rows make the whole run, if that is bounded."""

    order: Order
    batch_size: int
    ranks: Ranks
    end: int | None = None
    position: int = 0

    def next(self) -> list[tuple[int, int]] | None:
        """This rank's part of the next batch, as (position, row index); None at the end."""
        stop = self.position + self.batch_size
        stop = stop if self.end is None else min(stop, self.end)
        positions = range(self.position, stop)
        rows = self.order.take(self.position, len(positions))
        self.position = stop
        return list(self.ranks.share(list(zip(positions, rows, strict=True)))) if rows else None


class OfflineSource:
    """Pairs or demonstrations from a file."""

    def __init__(self, train: Prepared, held_out: Prepared | None, cursor: Cursor, tokenizer: Tokenizer) -> None:
        """Read from prepared rows."""
        self._train, self._held_out, self._cursor, self._pad = train, held_out, cursor, tokenizer.pad_token_id

    def collect(self, phase: Timer) -> Collected | None:
        """The next batch."""
        with phase("data"):
            places = self._cursor.next()
            return None if places is None else Collected(read_rows(self._train, [r for _, r in places], self._pad))

    def evaluate(self, phase: Timer) -> Collected | None:
        """The held-out rows."""
        held = self._held_out
        rows = self._cursor.ranks.share(range(len(held or ())))
        return Collected(read_rows(held, rows, self._pad)) if held else None

    def sync(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Given data does not depend on the weights."""

    def state_dict(self) -> dict[str, Any]:
        """The position."""
        return {"position": self._cursor.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position."""
        self._cursor.position = state["position"]

    def close(self) -> None:
        """Nothing is held."""


def read_rows(prepared: Prepared, rows: Sequence[int], pad_id: int) -> Pairs | Demonstrations:
    """Some rows of given data as sequences."""
    prompts = [prepared.ids(r, "prompt") for r in rows]
    sides = [pad_sequences(prompts, [prepared.ids(r, name) for r in rows], pad_id)
             for name in prepared.table.column_names[2:]]
    index = torch.tensor([prepared.row_index(r) for r in rows], dtype=torch.long)
    return Pairs(sides[0], sides[1], index) if len(sides) == 2 else Demonstrations(sides[0], index)


class RolloutSource:
    """Prompts from a file, completions from a rollout backend, scores from rewards."""

    def __init__(self, train: Prepared, held_out: Prepared | None, cursor: Cursor, tokenizer: Tokenizer,
                 backend: RolloutBackend, rewards: RewardPanel, sampling: Sampling, group_size: int, seed: int) -> None:
        """Sample ``group_size`` completions of each prompt."""
        self._train, self._held_out, self._cursor, self._tokenizer = train, held_out, cursor, tokenizer
        self._backend, self._rewards, self._sampling = backend, rewards, sampling
        self._group_size, self._seed, self._version = group_size, seed, -1

    def collect(self, phase: Timer) -> Collected | None:
        """Sample and score the next batch of prompts."""
        places = self._cursor.next()
        return None if places is None else self._rollouts(self._train, places, phase)

    def evaluate(self, phase: Timer) -> Collected | None:
        """Sample and score the held-out prompts, as in training, with the same random numbers every time."""
        held = self._held_out
        if held is None:
            return None
        places = [(EVAL_STREAM + row, row) for row in self._cursor.ranks.share(range(len(held)))]
        return self._rollouts(held, places, phase)

    def sync(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Give the backend the new weights."""
        self._backend.sync(weights, version)
        self._version = version

    def state_dict(self) -> dict[str, Any]:
        """The position."""
        return {"position": self._cursor.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position."""
        self._cursor.position = state["position"]

    def close(self) -> None:
        """Close backend and rewards."""
        self._backend.close()
        self._rewards.close()

    def _rollouts(self, prepared: Prepared, places: Sequence[tuple[int, int]], phase: Timer) -> Collected:
        requests = [Request(prepared.ids(row, "prompt"), self._sampling, self._group_size, _seed(self._seed, position))
                    for position, row in places]
        with phase("rollout"):
            try:
                done = dict(self._backend.generate(requests))
            finally:
                self._backend.release()
            flat = [(i, g) for i in range(len(requests)) for g in done[i]]
            self._refuse_stale(g for _, g in flat)
        with phase("reward"):
            rows = [places[i][1] for i, _ in flat]
            samples = [self._sample(prepared, row, g) for row, (_, g) in zip(rows, flat, strict=True)]
            judged = self._rewards.score(samples, [prepared.row_index(row) + 1 for row in rows])
        seqs = pad_sequences([requests[i].tokens for i, _ in flat], [g.tokens for _, g in flat],
                             self._tokenizer.pad_token_id, rollout_logprobs=[g.logprobs for _, g in flat])
        # Types are said: a rank may have no row.
        rollouts = Rollouts(seqs, torch.tensor(judged.rewards, dtype=torch.float),
                            torch.tensor(judged.judged, dtype=torch.bool),
                            torch.tensor([i for i, _ in flat], dtype=torch.long),
                            torch.tensor([g.finish_reason == "length" for _, g in flat], dtype=torch.bool))
        return Collected(rollouts, self._measure(flat, samples, judged), _table(samples, judged, flat, rows))

    def _refuse_stale(self, generations: Iterator[Generation]) -> None:
        stale = next((g.version for g in generations if g.version != self._version), None)
        if stale is not None:
            raise TrainingError(f"the rollout backend sampled with the weights of step {stale}; the policy is at step "
                                f"{self._version}")

    def _sample(self, prepared: Prepared, row: int, generation: Generation) -> Sample:
        example = prepared.example(row)
        text = example.prompt if isinstance(example.prompt, str) else str(example.prompt[-1].get("content") or "")
        messages = () if isinstance(example.prompt, str) else tuple(example.prompt)
        return Sample(text, self._tokenizer.decode(generation.tokens), messages, generation.finish_reason, example.row)

    def _measure(self, flat: Sequence[tuple[int, Generation]], samples: Sequence[Sample],
                 judged: Judged) -> dict[str, float]:
        known = [r for r, ok in zip(judged.rewards, judged.judged, strict=True) if ok]
        lengths = [len(g.tokens) for _, g in flat]
        mine = [sha1(s.completion.encode(), usedforsecurity=False).digest() for s in samples]
        texts = [text for part in self._cursor.ranks.gather(mine) for text in part]
        found = Accumulator(self._cursor.ranks)
        found.add({
            "reward/mean": Mean(sum(known), len(known)),
            "reward/square": Mean(sum(r * r for r in known), len(known)),
            "reward/judged": Mean(len(known), len(flat)),
            "reward/failed": Mean(judged.failed, len(flat) * len(judged.by_provider)),
            "length/mean": Mean(sum(lengths), len(lengths)),
            "length/characters": Mean(sum(len(s.completion) for s in samples), len(samples)),
            "length/truncated": Mean(sum(g.finish_reason == "length" for _, g in flat), len(flat)),
            "length/distinct": Mean(len(set(texts)), len(texts)),
            "rollout/tokens": Sum(sum(lengths)),
            **{f"reward/{name}/mean": Mean(sum(v for v in scores if v is not None), sum(v is not None for v in scores))
               for name, scores in judged.by_provider.items()},
            **{f"reward/{name}/mean": Mean(sum(values), len(values)) for name, values in judged.parts.items()},
        })
        metrics = found.reduce()
        square = metrics.pop("reward/square", None)
        if square is not None:
            metrics["reward/std"] = math.sqrt(max(0.0, square - metrics["reward/mean"] ** 2))
        return metrics


def _seed(seed: int, position: int) -> int:
    return int(np.random.SeedSequence([seed, position]).generate_state(1, np.uint64)[0] >> 1)


def _table(samples: Sequence[Sample], judged: Judged, flat: Sequence[tuple[int, Generation]],
           rows: Sequence[int]) -> list[dict[str, Any]]:
    return [{"row": rows[k], "prompt": s.prompt, "completion": s.completion,
             "reward": judged.rewards[k] if judged.judged[k] else None,
             **{f"reward/{name}": scores[k] for name, scores in judged.by_provider.items()},
             "length": len(flat[k][1].tokens), "finish_reason": s.finish_reason}
            for k, s in enumerate(samples)]
