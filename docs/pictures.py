"""Draws the pictures of docs/looks.md from a finished run: ``python docs/pictures.py RUN BASE PROMPTS``.

docs/live.svg and docs/compare.svg are what a terminal shows; docs/report.png is ``rlx report`` in Chromium, where that
is installed. The comparison is kept in the run's folder: ``python docs/pictures.py RUN`` draws again without a model.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from unittest import mock

import pandas as pd
import yaml
from rich.cells import cell_len
from rich.console import Console

from rlx.looks.compare import compare
from rlx.looks.report import write_report
from rlx.looks.show import print_comparison
from rlx.runs import RunFolder
from rlx_plugins.console_tracker import ConsoleTracker
from rlx_sdk import Config, TrackerContext

HERE = Path(__file__).parent
WIDTH, SHOWN = 124, 3
"""Characters of the terminal; prompts of the comparison."""
CELL, LINE, THIN, THICK = 12.2, 24.4, 1.4, 3.0
"""Of rich's SVG: width and height of a character's cell; widths of drawn lines."""


def live(run: Path) -> None:
    """The moment at which a run last showed its chosen prompts."""
    lines, console = RunFolder(run).metrics(), _terminal()
    view = ConsoleTracker(Config(), TrackerContext(run.name, run, {}, steps=len(lines), terminal=console))
    files = sorted((run / "samples").glob("chosen_*.parquet"))
    for file in (files[0], files[-1]):
        step = int(file.stem.rpartition("_")[2])
        view.samples(step, pd.read_parquet(file).to_dict("records"), "chosen")
    view._begin = lambda: mock.Mock()  # type: ignore[method-assign]
    for line in lines[:step]:
        view.log(line["step"], line)
    view._began -= sum(line["time/step"] for line in lines[:step])
    console.print(view._table())
    spec = yaml.safe_load((run / "spec.yaml").read_text(encoding="utf-8"))
    rewards = " ".join(f"--reward {reward['name']}" for reward in spec["rewards"])
    model = Path(spec["model"]["path"]).name
    _save(console, "live.svg", f"rlx train --algo {spec['algo']['name']} {rewards} --model {model} --data FILE")


def side_by_side(run: Path, base: str | None, prompts: str | None) -> None:
    """The run and what it began with."""
    kept = run / "comparison.json"
    if base and prompts:
        found = compare(base, str(run), prompts, rewards=[], n=2, limit=64, max_completion=128, seed=1, temperature=1.0)
        kept.write_text(json.dumps(found), encoding="utf-8")
    console = _terminal()
    found = json.loads(kept.read_text(encoding="utf-8"))
    print_comparison({**found, "prompts": found["prompts"][:SHOWN]}, console)
    _save(console, "compare.svg", f"rlx compare {Path(found['base']).name} {run.name} --prompts FILE --n 2 --limit 64")


def page(run: Path) -> None:
    """The upper part of the report."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium here: docs/report.png stays as it is")
        return
    with contextlib.chdir(run.parent):
        write_report([Path(run.name)], Path(run.name) / "report.html")
    with tempfile.TemporaryDirectory() as home:
        subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        f"--user-data-dir={home}", "--virtual-time-budget=8000", "--window-size=1240,2000",
                        f"--screenshot={HERE / 'report.png'}", (run / "report.html").absolute().as_uri()],
                       check=True, capture_output=True)


def _terminal() -> Console:
    return Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)


def _save(console: Console, name: str, title: str) -> None:
    """As rich writes it, without its fonts from the network: whatever font is there, every character keeps its cell."""
    svg = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.DOTALL)
    text = re.compile(r'<text class="(\S+-r\d+)" x="(\S+)" y="(\S+)" textLength="\S+" clip-path="\S+">(.*?)</text>')
    drawn = text.sub(lambda m: "".join(_cells(m[1], float(m[2]), float(m[3]), html.unescape(m[4]))), svg)
    (HERE / name).write_text(drawn, encoding="utf-8")


def _cells(style: str, x: float, y: float, text: str) -> Iterator[str]:
    """Text in pieces of equally wide characters, each as wide as its cells; lines and bars drawn, not written."""
    for (width, drawn), piece in groupby(text, lambda c: (cell_len(c), "\u2500" <= c <= "\u2588")):
        part = "".join(piece)
        if drawn:
            shapes = "".join(_shape(c, x + i * CELL, y - 0.82 * LINE) for i, c in enumerate(part))
            yield f'<path class="{style}" d="{shapes}"/>'
        elif part.strip("\xa0 "):
            yield (f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" textLength="{len(part) * width * CELL:.1f}">'
                   f"{html.escape(part)}</text>")
        x += len(part) * width * CELL


def _shape(character: str, x: float, y: float) -> str:
    """A line or a bar in the cell whose upper left corner is there, by the character's name in Unicode."""
    words = unicodedata.name(character).split()
    if "BLOCK" in words:
        eighths = ord(character) - 0x2580
        return _box(x, y + LINE * (1 - eighths / 8), CELL, LINE * eighths / 8)
    arms, waiting, weight = dict[str, float](), list[str](), 0.0
    for word in words[2:]:
        if word in ("LIGHT", "HEAVY"):
            weight = THIN if word == "LIGHT" else THICK
            arms |= dict.fromkeys(waiting, weight)  # DOWN LIGHT AND RIGHT UP HEAVY: its weight follows
            waiting = []
        elif word != "AND":
            found = {"VERTICAL": ["UP", "DOWN"], "HORIZONTAL": ["LEFT", "RIGHT"]}.get(word, [word])
            waiting += found
    arms |= dict.fromkeys(waiting, weight)  # HEAVY DOWN AND RIGHT: its weight stood before
    return "".join(_arm(side, width, x, y) for side, width in arms.items())


def _arm(side: str, width: float, x: float, y: float) -> str:
    """From the middle of a cell to its edge, and as far beyond the middle as closes a corner."""
    half = width / 2
    left, upper = x + CELL / 2 - half, y + LINE / 2 - half
    return {"UP": _box(left, y, width, LINE / 2 + half), "DOWN": _box(left, upper, width, LINE / 2 + half),
            "LEFT": _box(x, upper, CELL / 2 + half, width), "RIGHT": _box(left, upper, CELL / 2 + half, width)}[side]


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.2f} {y:.2f}h{width:.2f}v{height:.2f}h{-width:.2f}z"


if __name__ == "__main__":
    where, base, prompts = [*sys.argv[1:], None, None][:3]
    live(Path(str(where)))
    side_by_side(Path(str(where)), base, prompts)
    page(Path(str(where)))
