"""Writes docs/algorithms.md from the installed algorithms themselves: ``python docs/make_algorithms.py``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

from rlx.describe import option_lines
from rlx.registry import Entry, Registry
from rlx_sdk import Needs

PAGE = Path(__file__).with_name("algorithms.md")
TOP = """\
# Algorithms

<!-- Made by docs/make_algorithms.py from the plugins; edit their docstrings and options, or that script. -->

`--algo NAME` is the whole change from one to another. `rlx show NAME` prints the options with their types and bounds.

| name | data | trains | frozen | samples a prompt | what it is |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    entries = [e for e in Registry.discover().entries("algorithm") if e.package == "rlx"]
    return TOP + "".join(map(_row, entries)) + "".join(map(_section, entries))


def _asked(entry: Entry) -> Iterator[Needs]:
    """What it needs, without and with rewards, where they make a difference."""
    alone, scored = (entry.call("needs", entry.call("config")(), rewards) for rewards in (False, True))
    yield scored if alone.rewards else alone
    if alone.data != scored.data:
        yield scored


def _row(entry: Entry) -> str:
    asked = list(_asked(entry))
    data = " or ".join(f"{n.data}{', scored' if n.rewards else ''}" for n in asked)
    frozen = ", ".join(sorted(asked[0].frozen)) or "–"
    sizes = " or ".join(str(n.group_size or n.min_group) if n.data == "rollouts" else "–" for n in asked)
    trains = ", ".join(sorted(asked[0].trains))
    return f"| [{entry.name}](#{_anchor(entry)}) | {data} | {trains} | {frozen} | {sizes} | {entry.plugin.summary} |\n"


def _anchor(entry: Entry) -> str:
    return entry.name.replace("+", "")


def _section(entry: Entry) -> str:
    algorithm = entry.plugin.build.resolve()
    module = inspect.getdoc(importlib.import_module(algorithm.__module__)) or ""
    formula = (inspect.getdoc(algorithm) or "").replace("``", "`")
    options = "\n".join(option_lines(entry.call("config").model_json_schema())) or "  none"
    text = module.replace("``", "`")
    return f"\n## {entry.name}\n\n{text}\n\n{formula}\n\nOptions (`algo.…`):\n\n```\n{options}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
