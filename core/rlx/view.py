"""What a run looks like: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("reward", "reward/mean", ".3f"),
    ("length", "length/mean", ".1f"),
    ("kl", "kl/mean", ".3f"),
    ("dead groups", "groups/dead", ".0%"),
    ("pairs", "pairs", ",.0f"),
    ("ties", "pairs/tied", ",.0f"),
    ("accuracy", "rewards/accuracy", ".2f"),
    ("loss", "loss/policy", ".4f"),
    ("generated tok/s", "speed/generated_tokens_per_s", ",.0f"),
    ("trained tok/s", "speed/trained_tokens_per_s", ",.0f"),
)
"""Title, metric and format; a column is shown when the run has its metric."""
RECENT = 12
MOMENT, EVERY = 2.0, 10.0
"""Seconds until progress is shown, and between its lines where there is no terminal."""
SHOWN_SAMPLES = 3


class View:
    """Shows a run to a person.

    Args:
        stream: where to; default standard output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Look at the terminal."""
        from rich.console import Console

        self._console = Console(file=stream or sys.stdout, soft_wrap=True, highlight=False)
        self._rows: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=RECENT)
        self._live: Any = None
        self._first: list[dict[str, Any]] | None = None
        self._began, self._start, self._total = time.monotonic(), 0, 0

    def silent(self) -> View:
        """One that shows nothing, for processes other than the first."""
        return View(io.StringIO())

    def note(self, text: str) -> None:
        """One thing the user should know."""
        self._console.print(text, markup=False, style="dim")

    def progress(self, batches: Iterable[T], what: str, rows: int | None = None) -> Iterator[T]:
        """The batches; if they take longer than a moment, how far they are: one line that moves, else now and then."""
        from rlx.data.cache import BATCH_ROWS

        due, status = time.monotonic() + MOMENT, None
        with contextlib.ExitStack() as stack:
            for done, batch in enumerate(batches):
                if time.monotonic() >= due:
                    far = f"{what}: {done * BATCH_ROWS:,} {f'of {rows:,} ' if rows else ''}rows"
                    if self._console.is_terminal:
                        status = status or stack.enter_context(self._console.status(""))
                        status.update(far.replace("[", "\\["))
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

    @contextlib.contextmanager
    def live(self, step: int, total: int) -> Iterator[None]:
        """While the run trains."""
        from rich.live import Live

        self._began, self._start, self._total = time.monotonic(), step, total
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False) as self._live:
            yield
        self._live = None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        self._rows.append((step, metrics))
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        else:
            self._console.print(self._line(step, metrics), markup=False)

    def evaluated(self, step: int, metrics: Mapping[str, float], samples: list[dict[str, Any]]) -> None:
        """An evaluation is done; after the last, its samples are shown beside the first ones."""
        shown: tuple[str, ...] = (
            "reward/mean", "length/mean", "length/characters", "length/distinct", "kl/mean", "loss/policy",
            "rewards/accuracy")
        # With whitened advantages a policy loss on rollouts is 0 by construction; the reward tells.
        shown = tuple(n for n in shown if n != "loss/policy" or "eval/reward/mean" not in metrics)
        facts = [f"{name} {metrics[f'eval/{name}']:.3f}" for name in shown if f"eval/{name}" in metrics]
        self._console.print(f"held-out data after step {step}: {', '.join(facts)}", markup=False)
        if self._first is None:
            self._first = samples
        elif step == self._total:
            self._before_and_after(self._first, samples)

    def saved(self, checkpoint: Path) -> None:
        """A checkpoint is written."""
        self.note(f"saved {checkpoint}")

    def done(self, result: Any) -> None:
        """The run is over."""
        model = _hf_folder(result.checkpoint)
        self._console.print(f"\ndone: {result.steps} steps in {_clock(time.monotonic() - self._began)}\n"
                            f"run         {result.run}\ncheckpoint  {model}  (a plain HF folder)", markup=False)

    def _left(self, step: int) -> str:
        done = step - self._start
        return _clock((time.monotonic() - self._began) / done * (self._total - step)) if done else "?"

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        facts = [f"{title} {metrics[name]:{form}}" for title, name, form in COLUMNS if name in metrics]
        return f"step {step}/{self._total}  {'  '.join(facts)}  left {self._left(step)}  ({_phases(metrics)})"

    def _table(self) -> Table:
        from rich.table import Table

        step, latest = self._rows[-1]
        columns = [c for c in COLUMNS if c[1] in latest]
        table = Table(title=f"step {step} of {self._total}, {self._left(step)} left", caption=_phases(latest),
                      title_justify="left", caption_justify="left")
        for title in ("step", *(c[0] for c in columns), "seconds"):
            table.add_column(title, justify="right")
        for number, row in self._rows:
            table.add_row(str(number), *(format(row[name], form) if name in row else "" for _, name, form in columns),
                          f"{row['time/step']:.1f}")
        return table

    def _before_and_after(self, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
        from rich.table import Table
        from rich.text import Text

        if not before:
            return
        table = Table(title="held-out prompts, before and after", title_justify="left", show_lines=True)
        for title in ("prompt", "before", "after"):
            table.add_column(title, overflow="fold", ratio=1)
        for old, new in list(zip(before, after, strict=True))[:SHOWN_SAMPLES]:
            table.add_row(Text(old["prompt"]), *(Text(f"{s['completion']}\n[reward {_number(s['reward'])}]")
                                                 for s in (old, new)))
        self._console.print(table)


def _hf_folder(checkpoint: Path) -> Path:
    """The policy's, or that of what was trained instead."""
    folders = [folder for folder in checkpoint.iterdir() if (folder / "config.json").is_file()]
    return min(folders, key=lambda folder: folder.name)


def _phases(metrics: Mapping[str, float]) -> str:
    times = {k.removeprefix("time/"): v for k, v in metrics.items() if k.startswith("time/") and k != "time/step"}
    return ", ".join(f"{name} {seconds:.2f}s" for name, seconds in times.items())


def _number(value: float | None) -> str:
    return "not judged" if value is None else f"{value:.2f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
