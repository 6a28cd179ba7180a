"""What a run looks like: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from rlx.logs import Forgiving
from rlx.looks.stats import verdict
from rlx.text import printable

if TYPE_CHECKING:
    from rich.table import Table

    from rlx.runs import RunFolder

T = TypeVar("T")
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("reward", "reward/mean", ".3f"),
    ("spread", "reward/std", ".3f"),
    ("length", "length/mean", ".1f"),
    ("kl", "kl/mean", ".3f"),
    ("dead groups", "groups/dead", ".0%"),
    ("pairs", "pairs", ",.0f"),
    ("ties", "pairs/tied", ",.0f"),
    ("accuracy", "rewards/accuracy", ".2f"),
    ("loss", "loss/policy", ".4f"),
    ("generated tok/s", "speed/generated_tokens_per_s", ",.0f"),
    ("trained tok/s", "speed/trained_tokens_per_s", ",.0f"),
    ("GPU GiB", "memory/peak_gb", ".1f"),
)
"""Title, metric and format; a column is shown when the run has its metric."""
RECENT = 12
MOMENT, EVERY = 2.0, 10.0
"""Seconds until progress is shown, and between its lines where there is no terminal."""
SHOWN_SAMPLES, SHOWN_VALUES = 3, 8
TREND = ("reward/mean", "rewards/accuracy", "loss/policy")
"""The first of these that a run has is drawn as it goes."""
BARS, WIDTH, CUT = "▁▂▃▄▅▆▇█", 48, 240
"""Of a sparkline: heights, and bars at most; characters of a sample on the screen."""


class View:
    """Shows a run to a person, on a stream or else on standard output."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Look at the terminal."""
        from rich.console import Console

        # In a notebook rich would show everything in the page, whatever stream it was given.
        to: Any = Forgiving(stream or sys.stdout)
        self._console = Console(file=to, soft_wrap=True, highlight=False, force_jupyter=False)
        self._rows: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=RECENT)
        self._live: Any = None
        self._first: list[dict[str, Any]] | None = None
        self._chosen: tuple[int, list[dict[str, Any]]] | None = None
        self._trend: dict[str, list[float]] = {}
        self._began, self._start, self._total = time.monotonic(), 0, 0

    def silent(self) -> View:
        """One that shows nothing, for processes other than the first."""
        return View(io.StringIO())

    def note(self, text: str) -> None:
        """One thing the user should know."""
        self._console.print(text, markup=False, style="dim")

    def warn(self, text: str) -> None:
        """Something is going wrong; the run goes on."""
        self._console.print(f"warning: {text}", markup=False, style="bold yellow")

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
        self._remember(metrics)
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        else:
            self._console.print(self._line(step, metrics), markup=False)

    def resumed(self, folder: RunFolder) -> None:
        """What an earlier part of the run has shown."""
        from rlx.looks.samples import first_samples

        chosen, held_out = (first_samples(folder.samples, kind) for kind in ("chosen", "eval"))
        self._first = held_out or None
        for line in folder.metrics():
            self._remember(line)
        self._chosen = (chosen[0]["step"], chosen) if chosen else None

    def chosen(self, step: int, samples: list[dict[str, Any]]) -> None:
        """The chosen prompts are completed again; they are shown beside the first ones."""
        if self._chosen is None:
            self._chosen = step, samples
            return
        begin, before = self._chosen
        titles = f"after step {begin}", f"after step {step}"
        if self._console.is_terminal:
            self._console.print(side_by_side("chosen prompts", titles, before, samples))
            return
        for old, new in zip(before, samples, strict=False):
            self._console.print(f"prompt: {_one_line(old['prompt'])}", markup=False)
            for title, line in zip(titles, (old, new), strict=True):
                self._console.print(f"  {title} [{_facts(line)}]: {_one_line(line['completion'])}", markup=False)
        self._console.print(self._drawn(), markup=False)

    def evaluated(self, step: int, metrics: Mapping[str, float], samples: list[dict[str, Any]]) -> None:
        """An evaluation is done; after the last, its samples are shown beside the first ones."""
        # With whitened advantages a policy loss on rollouts is 0 by construction; the reward tells.
        loss = () if "eval/reward/mean" in metrics else ("loss/policy",)
        own = (name.removeprefix("eval/") for name in metrics if name.startswith(("eval/pass@", "eval/source/")))
        names = ("reward/mean", *own, "length/mean", "length/characters", "length/distinct", "kl/mean", *loss,
                 "rewards/accuracy")
        facts = [f"{name} {metrics[f'eval/{name}']:.3f}" for name in names if f"eval/{name}" in metrics]
        self._console.print(f"held-out data after step {step}: {', '.join(facts)}", markup=False)
        if rewards := [line["reward"] for line in samples if line.get("reward") is not None]:
            self._console.print(f"rewards of held-out prompts: {distribution(rewards)}", markup=False)
        if self._first is None:
            self._first = samples
        elif step == self._total and samples:
            self._console.print(side_by_side("held-out prompts, before and after", ("before", "after"), self._first,
                                             samples))
            self._console.print(verdict(self._first, samples) or "", markup=False)

    def saved(self, checkpoint: Path) -> None:
        """A checkpoint is written."""
        self.note(f"saved {checkpoint}")

    def done(self, result: Any) -> None:
        """The run is over."""
        model = _hf_folder(result.checkpoint)
        self._console.print(f"\ndone: {result.steps} steps in {_clock(time.monotonic() - self._began)}\n"
                            f"run         {result.run}\ncheckpoint  {model}  (a plain HF folder)", markup=False)

    def _remember(self, metrics: Mapping[str, Any]) -> None:
        for name in TREND:
            if metrics.get(name) is not None:
                self._trend.setdefault(name, []).append(metrics[name])

    def _drawn(self) -> str:
        """The reward of the whole run so far as a sparkline."""
        name = next((name for name in TREND if name in self._trend), None)
        return f"{name} {sparkline(self._trend[name])}" if name else ""

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
        table = Table(title=f"step {step} of {self._total}, {self._left(step)} left",
                      caption=f"{self._drawn()}\n{_phases(latest)}",
                      title_justify="left", caption_justify="left")
        for title in ("step", *(c[0] for c in columns), "seconds"):
            table.add_column(title, justify="right")
        for number, row in self._rows:
            table.add_row(str(number), *(format(row[name], form) if name in row else "" for _, name, form in columns),
                          f"{row['time/step']:.1f}")
        return table


def sparkline(values: Sequence[float]) -> str:
    """First value, bars from the lowest to the highest, last value; of many values, means of equal parts."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    parts = min(WIDTH, len(known))
    cuts = [len(known) * i // parts for i in range(parts + 1)]
    means = [sum(known[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    low, span = min(means), max(means) - min(means)
    bars = "".join(BARS[round((mean - low) / span * (len(BARS) - 1)) if span else 0] for mean in means)
    return f"{known[0]:.3f} {bars} {known[-1]:.3f}"


def distribution(values: Sequence[float]) -> str:
    """How often there is each value; of many values, the lowest, the quartiles and the highest."""
    counts = Counter(sorted(values))
    if len(counts) <= SHOWN_VALUES:
        return ", ".join(f"{value:g} x {n}" for value, n in counts.items())
    cuts = (min(values), *quantiles(values, method="inclusive"), max(values))
    titles = ("lowest", "a quarter up to", "half up to", "three quarters up to", "highest")
    return ", ".join(f"{title} {value:.3g}" for title, value in zip(titles, cuts, strict=True))


def side_by_side(title: str, titles: Sequence[str], before: Sequence[Mapping[str, Any]],
                 after: Sequence[Mapping[str, Any]]) -> Table:
    """A table of the same prompts' completions, cut to fit."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_lines=True)
    for heading in ("prompt", *titles):
        table.add_column(heading, overflow="fold", ratio=1)
    for old, new in list(zip(before, after, strict=False))[:SHOWN_SAMPLES]:
        table.add_row(Text(_cut(old["prompt"])), *(Text(f"{_cut(line['completion'])}\n[{_facts(line)}]")
                                                   for line in (old, new)))
    return table


def _cut(text: str) -> str:
    return printable(text if len(text) <= CUT else f"{text[:CUT]} …")


def _one_line(text: str) -> str:
    return _cut(text).replace("\n", " ⏎ ")


def _facts(sample: Mapping[str, Any]) -> str:
    """Reward, by provider where there are several, and length."""
    by_provider = [f"{name.removeprefix('reward/')} {_number(value)}" for name, value in sample.items()
                   if name.startswith("reward/")]
    several = f" ({', '.join(by_provider)})" if len(by_provider) > 1 else ""
    cut = ", cut" if sample["finish_reason"] == "length" else ""
    return f"reward {_number(sample['reward'])}{several}, {sample['length']} tokens{cut}"


def _hf_folder(checkpoint: Path) -> Path:
    """The policy's, or that of what was trained instead."""
    folders = [folder for folder in checkpoint.iterdir() if (folder / "config.json").is_file()]
    return min(folders, key=lambda folder: folder.name)


def _phases(metrics: Mapping[str, float], prefix: str = "time/") -> str:
    """Seconds of each phase, and of its parts where it has several."""
    found = []
    for name, seconds in metrics.items():
        phase = name.removeprefix(prefix)
        if name.startswith(prefix) and "/" not in phase and name != "time/step":
            parts = _phases(metrics, f"{name}/")
            found.append(f"{phase} {seconds:.2f}s" + f" ({parts})" * (", " in parts))
    return ", ".join(found)


def _number(value: float | None) -> str:
    return "not judged" if value is None else f"{value:.2f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
