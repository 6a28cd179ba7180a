"""TensorBoard. A resumed run goes on in the same folder, and what it does again takes the place of what was there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlx_sdk import Config, TrackerContext

SHOWN = 16
"""Rows of a table of samples."""


class TensorboardOptions(Config):
    """Where the events go."""

    dir: str | None = None
    """Folder of event files; default: tensorboard in the run's folder."""


class TensorboardTracker:
    """Event files of one run."""

    def __init__(self, options: TensorboardOptions, context: TrackerContext) -> None:
        """Open the folder, or go on in it after the step that was saved."""
        from torch.utils.tensorboard import SummaryWriter

        folder = context.run_dir / "tensorboard"
        if options.dir:
            folder = Path(os.path.expanduser(options.dir)) / context.run_name
        self._writer: Any = SummaryWriter(
            str(folder), purge_step=0 if context.resumed is None else context.resumed + 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point of each metric's curve, in the file at once: a killed run loses none."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def samples(self, step: int, table: Sequence[Mapping[str, Any]], split: str) -> None:
        """A table as text."""
        lines = [list(table[0]), ["---"] * len(table[0]), *(list(row.values()) for row in table[:SHOWN])]
        self._writer.add_text(f"samples/{split}", "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines),
                              step)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the folder is there."""
        return {}

    def finish(self) -> None:
        """Write what is left."""
        self._writer.close()


def _cell(value: Any) -> str:
    """As text that Markdown shows as it is."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    for sign, code in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("`", "&#96;"), ("*", "&#42;"), ("_", "&#95;"),
                       ("[", "&#91;"), ("\n", "<br>")):
        text = text.replace(sign, code)
    return text
