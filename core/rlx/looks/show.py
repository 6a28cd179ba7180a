"""A comparison on a terminal, and in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlx.looks.page import number
from rlx.text import count, printable

if TYPE_CHECKING:
    from rich.console import Console

CELL = 480
"""Characters of a text that are shown."""


def sentences(found: Mapping[str, Any]) -> Iterator[str]:
    """What a comparison found."""
    won, moved, kl = found["win_rate"], found["difference"], found["kl"]
    if won:
        n = won["wins"] + won["ties"] + won["losses"]
        yield (f"tuned wins {won['wins']} of {count(n, 'prompt')} and draws {won['ties']}: win rate {won['rate']:.0%} "
               f"(95% interval {won['low']:.0%} to {won['high']:.0%}), {_verdict(won['low'] - 0.5, won['high'] - 0.5)}")
    if moved:
        yield f"reward {moved['mean']:+.3f} a prompt (95% interval {moved['low']:+.3f} to {moved['high']:+.3f})"
    if kl:
        yield (f"KL(tuned‖base) {number(kl['token'])} nats a token, {number(kl['completion'])} a completion, over the "
               "whole vocabulary along what tuned wrote")


def _verdict(low: float, high: float) -> str:
    return "so tuned is better" if low > 0 else "so tuned is worse" if high < 0 else "so this may be chance"


def print_comparison(found: Mapping[str, Any], console: Console) -> None:
    """Side by side, cut to fit; the whole is in the page and in the JSON."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True)
    for title in ("prompt", "base", "tuned"):
        table.add_column(title, overflow="fold", ratio=2 if title == "prompt" else 3)
    for row in found["prompts"]:
        cells = ["\n\n".join(f"{_cut(line['completion'])}\n[{_facts(line)}]" for line in row[side])
                 for side in ("base", "tuned")]
        table.add_row(Text(_cut(row["prompt"])), *map(Text, cells))
    console.print(table)
    summary = Table()
    summary.add_column("mean")
    for side in ("base", "tuned"):
        summary.add_column(side, justify="right")
    for name, value in found["summary"]["base"].items():
        summary.add_row(Text(name), number(value), number(found["summary"]["tuned"][name]))
    console.print(summary)
    for line in (*sentences(found), *found["notes"]):
        console.print(printable(line), markup=False, soft_wrap=True)


def _facts(line: Mapping[str, Any]) -> str:
    by_provider = "".join(f", {name} {number(value)}" for name, value in line["rewards"].items()) \
        if len(line["rewards"]) > 1 else ""
    judged = "" if line["reward"] is None else f"reward {number(line['reward'])}{by_provider}, "
    return f"{judged}{count(line['length'], 'token')}{', cut' if line['finish_reason'] == 'length' else ''}"


def _cut(text: str) -> str:
    return printable(text if len(text) <= CELL else f"{text[:CELL]} …")
