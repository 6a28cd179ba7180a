"""A context made of numbers: models that answer with given logprobs and values, so that every result can be known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlx_sdk import Algorithm, Batch, Role, Rollouts, Sequences

CASES = Path(__file__).parents[1] / "cases" / "math"


class Forbidden:
    """A model that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the algorithm asked for {name} of a model it should leave alone")


@dataclass
class LookUp:
    """A model that says of a token what the table says of its id; every token of a test has an id of its own."""

    table: Tensor
    entropy: Tensor | None = None
    calls: int = 0

    def logprobs(self, seqs: Sequences) -> Tensor:
        self.calls += 1
        return torch.where(seqs.mask, self.table.flatten()[seqs.tokens], 0)

    def pair_logprobs(self, chosen: Sequences, rejected: Sequences) -> tuple[Tensor, Tensor]:
        return self.logprobs(chosen), self.logprobs(rejected)

    def logprobs_and_entropy(self, seqs: Sequences) -> tuple[Tensor, Tensor]:
        entropy = torch.zeros_like(self.table) if self.entropy is None else self.entropy
        return self.logprobs(seqs), torch.where(seqs.mask, entropy.flatten()[seqs.tokens], 0)

    values = logprobs


@dataclass
class FakeContext:
    """A `Context` of given models; one that is not given must not be asked."""

    policy: Any = field(default_factory=Forbidden)
    reference: Any = field(default_factory=Forbidden)
    critic: Any = field(default_factory=Forbidden)
    reward: Any = field(default_factory=Forbidden)
    step: int = 0
    temperature: float = 1.0
    single_update: bool = False
    exact_rollouts: bool = True
    max_completion: int = 8
    all_sum: Callable[[Tensor], Tensor] = lambda tensor: tensor


def make_grid(rows: Sequence[Sequence[float]]) -> Tensor:
    """Numbers of completions as ``[B, T]`` float64, behind a prompt of one token; NaN wherever nothing was given."""
    grid = torch.full((len(rows), 1 + max(map(len, rows))), torch.nan, dtype=torch.float64)
    for i, row in enumerate(rows):
        grid[i, 1 : 1 + len(row)] = torch.tensor(row, dtype=torch.float64)
    return grid


def make_sequences(masks: Sequence[Sequence[int]], first: int = 0, **per_token: Tensor) -> Sequences:
    """Sequences with a prompt of one token and completions of these masks; token ids count up from ``first``."""
    mask = make_grid(masks).nan_to_num().bool()
    tokens = torch.arange(first, first + mask.numel()).reshape(mask.shape)
    return Sequences(tokens, torch.tensor([1 + len(row) for row in masks]), mask, per_token)


def minimised(algorithm: Algorithm[Any], role: Role, batch: Batch, ctx: Any,
              split: Sequence[Sequence[int]] | None = None) -> Tensor:
    """What the trainer minimises: ``Σ weight·loss / Σ weight``, each part of the split computed by itself."""
    total = torch.zeros((), dtype=torch.float64)
    for rows in split or [range(len(batch))]:
        part = batch[torch.tensor(list(rows))]
        total = total + (algorithm.loss(role, part, ctx).rows * part.weight[role]).sum()
    return total / batch.weight[role].sum()


@pytest.fixture
def case() -> Callable[[str], Any]:
    """A recorded case by its name."""
    return lambda name: json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture
def lookup() -> type[LookUp]:
    return LookUp


@pytest.fixture
def context() -> type[FakeContext]:
    return FakeContext


@pytest.fixture
def grid() -> Callable[..., Tensor]:
    return make_grid


@pytest.fixture
def sequences() -> Callable[..., Sequences]:
    return make_sequences


@pytest.fixture
def objective() -> Callable[..., Tensor]:
    return minimised


@pytest.fixture
def rollouts() -> Callable[..., Rollouts]:
    """Makes rollouts from masks, logprobs and scores; a score of None was not judged."""

    def make(masks: Any, logprobs: Any, scores: Sequence[float | None]) -> Rollouts:
        seqs = make_sequences(masks, rollout_logprobs=make_grid(logprobs))
        judged = torch.tensor([score is not None for score in scores])
        rewards = torch.tensor([torch.nan if score is None else score for score in scores], dtype=torch.float64)
        return Rollouts(seqs, rewards, judged, torch.arange(len(scores)), torch.zeros(len(scores)).bool())

    return make
