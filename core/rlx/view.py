"""What rlx says to the user beside what the trackers show."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rlx.logs import Forgiving
from rlx.text import clock, count, printable

T = TypeVar("T")
MOMENT, EVERY = 2.0, 10.0
"""Seconds until progress is shown, and between its lines where there is no terminal."""


class View:
    """Speaks to a person.

    Args:
        stream: where to; default standard output.

    Attributes:
        terminal: the console that all share who show something of a run.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Look at the terminal."""
        from rich.console import Console

        # In a notebook rich would show everything in the page, whatever stream it was given.
        to: Any = Forgiving(stream or sys.stdout)
        self.terminal = Console(file=to, soft_wrap=True, highlight=False, force_jupyter=False)
        self._began = time.monotonic()

    def silent(self) -> View:
        """Say nothing from now on, as in processes other than the first."""
        self.terminal.quiet = True
        return self

    def note(self, text: str) -> None:
        """One thing the user should know."""
        self.terminal.print(printable(text), markup=False, style="dim")

    def warn(self, text: str) -> None:
        """Something is going wrong; the run goes on."""
        self.terminal.print(f"warning: {printable(text)}", markup=False, style="bold yellow")

    def progress(self, batches: Iterable[T], what: str, rows: int | None = None) -> Iterator[T]:
        """The batches; if they take longer than a moment, how far they are: one line that moves, else now and then."""
        from rich.live import Live
        from rich.text import Text

        from rlx.data.cache import BATCH_ROWS

        due, live = time.monotonic() + MOMENT, None
        with contextlib.ExitStack() as stack:
            for done, batch in enumerate(batches):
                if time.monotonic() >= due:
                    far = f"{what}: {done * BATCH_ROWS:,} {f'of {rows:,} ' if rows else ''}rows"
                    if self.terminal.is_terminal:
                        live = live or stack.enter_context(Live(console=self.terminal, transient=True,
                                                                redirect_stdout=False, redirect_stderr=False))
                        live.update(Text(far))
                    else:
                        self.note(far)
                        due += EVERY
                yield batch

    def inputs(self, plan: Any, inputs: Any) -> None:
        """What the run starts from."""
        from rlx.data import describe

        for note in (*plan.notes, *inputs.tokenizer.notes):
            self.note(note)
        roles = ", ".join(sorted(plan.needs.trains))
        frozen = f"; frozen: {', '.join(sorted(plan.needs.frozen))}" if plan.needs.frozen else ""
        self.note(f"{plan.algorithm.name} on {plan.spec.model.path}, trains {roles}{frozen}")
        self.note(describe(inputs.train))
        self._began = time.monotonic()

    def saved(self, checkpoint: Path) -> None:
        """A checkpoint is written."""
        self.note(f"saved {checkpoint}")

    def done(self, result: Any) -> None:
        """The run is over."""
        model = _hf_folder(result.checkpoint)
        self.terminal.print(f"\ndone: {count(result.steps, 'step')} in {clock(time.monotonic() - self._began)}\n"
                            f"run         {result.run}\ncheckpoint  {model}  (a plain HF folder)", markup=False)


def _hf_folder(checkpoint: Path) -> Path:
    """The policy's, or that of what was trained instead."""
    folders = [folder for folder in checkpoint.iterdir() if (folder / "config.json").is_file()]
    return min(folders, key=lambda folder: folder.name)
