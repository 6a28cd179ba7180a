"""The run on the screen: a live table on a terminal, plain lines with the same facts anywhere else."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from rlx.looks.stats import verdict
from rlx.text import clock, count, printable
from rlx_sdk import Config, TrackerContext

if TYPE_CHECKING:
    from rich.table import Table

Rows = Sequence[Mapping[str, Any]]
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("reward", "reward/mean", ".3f"),
    ("spread", "reward/std", ".3f"),
    ("length", "length/mean", ".1f"),
    ("kl", "kl/mean", "z.3f"),
    ("dead groups", "groups/dead", ".0%"),
    ("pairs", "pairs", ",.0f"),
    ("ties", "pairs/tied", ",.0f"),
    ("accuracy", "rewards/accuracy", ".2f"),
    ("loss", "loss/policy", "z.4f"),
    ("generated tok/s", "speed/generated_tokens_per_s", ",.0f"),
    ("trained tok/s", "speed/trained_tokens_per_s", ",.0f"),
    ("GPU GiB", "memory/peak_gb", ".1f"),
)
"""Title, metric and format; a column is shown when the run has its metric."""
RECENT = 12
SHOWN_SAMPLES, SHOWN_VALUES = 3, 8
TREND = ("reward/mean", "rewards/accuracy", "loss/policy")
"""The first of these that a run has is drawn as it goes."""
BARS, WIDTH, CUT = "▁▂▃▄▅▆▇█", 48, 240
"""Of a sparkline: heights, and bars at most; characters of a sample on the screen."""


class ConsoleTracker:
    """Steps as a table that moves or as lines; the chosen and the held-out prompts' completions beside the first."""

    def __init__(self, options: Config, context: TrackerContext) -> None:
        """Go on from what an earlier part of the run has shown."""
        self._screen, self._start, self._total = context.terminal, context.resumed or 0, context.steps
        self._rows: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=RECENT)
        self._live: Any = None
        state = context.state or {}
        self._first: dict[str, tuple[int, Rows]] = dict(state.get("first", {}))
        self._trend: dict[str, list[float]] = dict(state.get("trend", {}))
        self._began = time.monotonic()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """A row of the table, or a line."""
        if "time/step" not in metrics:
            self._evaluated(step, metrics)
            return
        self._rows.append((step, metrics))
        for name in TREND:
            if math.isfinite(metrics.get(name, math.nan)):
                self._trend.setdefault(name, []).append(metrics[name])
        if self._screen.is_terminal:
            self._live = self._live or self._begin()
            self._live.update(self._table(), refresh=True)
        else:
            self._print(self._line(step, metrics))

    def samples(self, step: int, table: Rows, split: str) -> None:
        """Those of prompts that come again are shown beside the first; of held-out ones after the last step."""
        if split == "train":
            return
        held_out, known = split == "eval", split in self._first
        if held_out and (rewards := [line["reward"] for line in table if line.get("reward") is not None]):
            self._print(f"rewards of held-out prompts: {distribution(rewards)}")
        if not known:  # of those that are never shown, what the verdict needs
            shown = {id(line) for line in _one_each(table)}
            self._first[split] = step, [line if id(line) in shown else {"row": line["row"], "reward": line["reward"]}
                                        for line in table]
            return
        begin, before = self._first[split]
        if held_out and step == self._total:
            self._beside("held-out prompts, before and after", ("before", "after"), before, table)
            self._print(verdict(before, table) or "")
        elif not held_out:
            self._beside("chosen prompts", (f"after step {begin}", f"after step {step}"), before, table)

    def state_dict(self) -> dict[str, Any]:
        """The first samples, and the reward so far."""
        return {"first": self._first, "trend": self._trend}

    def finish(self) -> None:
        """Leave the table as it is."""
        if self._live is not None:
            self._live.stop()

    def _print(self, text: str) -> None:
        self._screen.print(text, markup=False)

    def _begin(self) -> Any:
        from rich.live import Live

        # Else what libraries print would be taken from the run's log and shown.
        live = Live(console=self._screen, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        live.start()
        return live

    def _evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        # With whitened advantages a policy loss on rollouts is 0 by construction; the reward tells.
        loss = () if "eval/reward/mean" in metrics else ("loss/policy",)
        own = (name.removeprefix("eval/") for name in metrics if name.startswith(("eval/pass@", "eval/source/")))
        names = ("reward/mean", *own, "length/mean", "length/characters", "length/distinct", "kl/mean", *loss,
                 "rewards/accuracy")
        facts = [f"{name} {metrics[f'eval/{name}']:z.3f}" for name in names if f"eval/{name}" in metrics]
        self._print(f"held-out data after step {step}: {', '.join(facts)}")

    def _beside(self, title: str, titles: tuple[str, str], before: Rows, after: Rows) -> None:
        if self._screen.is_terminal:
            self._screen.print(side_by_side(title, titles, before, after))
            return
        self._print(title)
        for pair in zip(_one_each(before), _one_each(after), strict=False):
            self._print(f"prompt: {_one_line(pair[0]['prompt'])}")
            for when, line in zip(titles, pair, strict=True):
                self._print(f"  {when} [{_facts(line)}]: {_one_line(line['completion'])}")
        self._print(self._drawn())

    def _drawn(self) -> str:
        """The reward of the whole run so far as a sparkline."""
        name = next((name for name in TREND if name in self._trend), None)
        return f"{name} {sparkline(self._trend[name])}" if name else ""

    def _left(self, step: int) -> str:
        done = step - self._start
        return clock((time.monotonic() - self._began) / done * (self._total - step)) if done else "?"

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


def side_by_side(title: str, titles: Sequence[str], before: Rows, after: Rows) -> Table:
    """A table of the same prompts' completions, cut to fit."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_lines=True)
    for heading in ("prompt", *titles):
        table.add_column(heading, overflow="fold", ratio=1)
    for old, new in zip(_one_each(before), _one_each(after), strict=False):
        table.add_row(Text(_cut(old["prompt"])), *(Text(f"{_cut(line['completion'])}\n[{_facts(line)}]")
                                                   for line in (old, new)))
    return table


def _one_each(table: Rows) -> Rows:
    """The first completion of each of the first prompts."""
    found: dict[Any, Mapping[str, Any]] = {}
    for line in table:
        found.setdefault(line["row"], line)
    return list(found.values())[:SHOWN_SAMPLES]


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
    return f"reward {_number(sample['reward'])}{several}, {count(sample['length'], 'token')}{cut}"


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
