"""What the training loop tells of itself, and to whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rlx_sdk import Batch, Role

if TYPE_CHECKING:
    from rlx.trainer import Trainer


class Recorder(Protocol):
    """Keeps and shows what happens."""

    def step(self, step: int, metrics: Mapping[str, float], samples: list[dict[str, Any]]) -> None:
        """A step is done."""
        ...

    def evaluated(self, step: int, metrics: Mapping[str, float], samples: list[dict[str, Any]]) -> None:
        """An evaluation is done."""
        ...

    def skipped(self, step: int, role: Role, rows: list[Batch]) -> None:
        """An update was skipped; the rows of this rank whose loss was not finite, if it was that."""
        ...

    def chosen(self, step: int, samples: list[dict[str, Any]]) -> None:
        """What the policy writes on the chosen prompts after a step."""
        ...

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint."""
        ...

    def stop_asked(self) -> bool:
        """Whether the run is to end after this step; the same on all ranks."""
        ...

    def phase(self, name: str) -> None:
        """A phase of a step begins."""
        ...

    def note(self, text: str) -> None:
        """One thing the user should know."""
        ...
