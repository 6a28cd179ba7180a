"""Writes docs/algorithms.md from the installed algorithms themselves: ``python docs/make_algorithms.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlx.describe import describe_plugin
from rlx.registry import Registry

PAGE = Path(__file__).with_name("algorithms.md")
TOP = """\
# Algorithms

<!-- Made by docs/make_algorithms.py from the plugins; edit their docstrings and options, or that script. -->

`--algo NAME` is the whole change from one to another. Each has a page with its options; `rlx show NAME` prints
the same.

| name | what it is, source | formula | data | trains | frozen | samples a prompt | when to use |
|---|---|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    found = [one for name in sorted(e.name for e in Registry.discover().entries("algorithm") if e.package == "rlx")
             for one in describe_plugin(name)]
    return TOP + "".join(map(_row, found))


def _row(one: dict[str, Any]) -> str:
    link = f"[{one['name']}](algorithms/{one['name'].replace('+', '_plus')}.md)"
    cells = [link, one["summary"], one["formula"].partition("\n")[0], *one["needs"].values(), one["when"]]
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
