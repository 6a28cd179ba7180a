"""Where a step's data comes from: sampled and scored, or read. The trainer sees one `Source`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from rlx.batching import pad_sequences
from rlx.data import Prepared, Tokenizer
from rlx.data.order import Order
from rlx.ranks import Ranks
from rlx_sdk import (
    Demonstrations,
    Labelled,
    Pairs,
    Rollouts,
)


class Timer(Protocol):
    """Times a named phase."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Time a block."""
        ...


@dataclass(frozen=True)
class Collected:
    """One batch of data, and what was measured while it was made.

    Attributes:
        data: of the batch.
        metrics: of what was sampled.
        samples: rows for the table of samples.
        chosen: the same of the chosen prompts, where the step shows them; of this rank, which may have none.
    """

    data: Rollouts | Pairs | Labelled | Demonstrations
    metrics: dict[str, float] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    chosen: list[dict[str, Any]] | None = None


class Source(ABC):
    """Gives the data of each step, from a position in the data that a resumed run goes on from."""

    _cursor: Cursor

    @abstractmethod
    def collect(self, phase: Timer) -> Collected | None:
        """The next batch; None when the data is used up."""

    @abstractmethod
    def evaluate(self, phase: Timer) -> Collected | None:
        """The held-out data; None if there is none."""

    def sync(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:  # noqa: B027 - given data ignores it
        """The policy has new weights, on which given data does not depend."""

    def wait(self, phase: Timer) -> None:  # noqa: B027 - given data is there
        """For what is sampled while the trainer computes: new weights may come then."""

    def state_dict(self) -> dict[str, Any]:
        """Its position."""
        return {"position": self._cursor.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position."""
        self._cursor.position = state["position"]

    def close(self) -> None:  # noqa: B027 - given data holds nothing
        """Give back what it holds."""


@dataclass
class Cursor:
    """A position in the data, in rows used so far; ``end`` rows make the whole run, if that is bounded."""

    order: Order
    batch_size: int
    ranks: Ranks
    end: int | None = None
    position: int = 0

    def next(self, number: int | None = None) -> list[tuple[int, int]] | None:
        """This rank's part of the next batch, or of so many rows, as (position, row index); None at the end."""
        stop = self.position + (number or self.batch_size)
        stop = stop if self.end is None else min(stop, self.end)
        positions = range(self.position, stop)
        rows = self.order.take(self.position, len(positions))
        self.position = stop
        return list(self.ranks.share(list(zip(positions, rows, strict=True)))) if rows else None


class OfflineSource(Source):
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


def read_rows(prepared: Prepared, rows: Sequence[int], pad_id: int) -> Pairs | Labelled | Demonstrations:
    """Some rows of given data as sequences."""
    prompts = [prepared.ids(r, "prompt") for r in rows]
    sides = [pad_sequences(prompts, [prepared.ids(r, name) for r in rows], pad_id)
             for name in ("completion", "chosen", "rejected") if name in prepared.table.column_names]
    index = torch.tensor([prepared.row_index(r) for r in rows], dtype=torch.long)
    if prepared.kind == "labelled":
        labels = prepared.table.column("label")
        return Labelled(sides[0], torch.tensor([labels[r].as_py() for r in rows], dtype=torch.bool), index)
    if prepared.kind == "pairs":
        margins = prepared.table.column("margin")
        return Pairs(sides[0], sides[1], index, torch.tensor([margins[r].as_py() for r in rows], dtype=torch.float))
    for i, r in enumerate(rows):
        bounds = prepared.ids(r, "turns")
        for start, end in zip(bounds[::2], bounds[1::2], strict=True):
            sides[0].mask[i, start:end] = True
    return Demonstrations(sides[0], index)
