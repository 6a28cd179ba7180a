"""Draws docs/live.svg and docs/compare.svg as a terminal shows them: ``python docs/pictures.py RUN BASE PROMPTS``.

docs/report.png and docs/compare.png are screenshots of ``rlx report`` and of ``rlx compare --html`` in Chromium.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pandas as pd
from rich.console import Console

from rlx.looks.compare import compare
from rlx.looks.samples import first_samples
from rlx.looks.show import print_comparison
from rlx.runs import RunFolder
from rlx.view import View

HERE = Path(__file__).parent


def live(run: Path) -> None:
    """The moment at which a run last showed its chosen prompts."""
    folder, view = RunFolder(run), View(io.StringIO())
    console = view._console = Console(record=True, width=124, file=io.StringIO(), force_terminal=True)
    last = sorted((run / "samples").glob("chosen_*.parquet"))[-1]
    step, lines = int(last.stem.rpartition("_")[2]), folder.metrics()
    view._total, lines = len(lines), lines[:step]
    view._began -= sum(line["time/step"] for line in lines)
    view.resumed([], first_samples(folder.samples, "chosen"))
    view.chosen(step, pd.read_parquet(last).to_dict("records"))
    for line in lines:
        view._rows.append((line["step"], line))
        view._remember(line)
    console.print(view._table())
    _save(console, "live.svg", "rlx train --algo ppo --reward polite_length")


def side_by_side(run: Path, base: str, prompts: str) -> None:
    """The run and what it began with."""
    found = compare(base, str(run), prompts, rewards=[], n=2, limit=32, max_completion=64, seed=1, temperature=1.0)
    found = {**found, "base": Path(base).name, "tuned": run.name}
    console = Console(record=True, width=124, file=io.StringIO(), highlight=False)
    print_comparison({**found, "prompts": found["prompts"][:3]}, console)
    _save(console, "compare.svg", "rlx compare BASE RUN --prompts FILE")


def _save(console: Console, name: str, title: str) -> None:
    """Without fonts from the network, and without squeezing wide characters into one cell."""
    svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.DOTALL)
    wide = re.compile(r'(<text[^>]*?) textLength="[^"]*"([^>]*>[^<]*[\u2e80-\uffef])')
    (HERE / name).write_text(wide.sub(r"\1\2", svg), encoding="utf-8")


if __name__ == "__main__":
    live(Path(sys.argv[1]))
    side_by_side(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
