"""What can be said of two sets of rewards of the same prompts. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

Z = 1.959964
"""Standard errors of a 95% confidence interval."""
FEW = 8
"""Prompts of which nothing is concluded."""


def win_rate(pairs: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """How often the second of each pair is larger, an equal pair counting half, with Wilson's 95% score interval.

    Source: E. B. Wilson, JASA 22 (1927). Ties vary less than the binomial it assumes, so with ties it is a little wide.
    """
    if not pairs:
        return None
    n, wins = len(pairs), sum(tuned > base for base, tuned in pairs)
    ties = sum(tuned == base for base, tuned in pairs)
    rate, z = (wins + ties / 2) / n, Z * Z / n
    middle, half = (rate + z / 2) / (1 + z), Z * math.sqrt(rate * (1 - rate) / n + z / (4 * n)) / (1 + z)
    return {"rate": rate, "low": middle - half, "high": middle + half, "wins": wins, "ties": ties,
            "losses": n - wins - ties}


def difference(pairs: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """The mean of second minus first, with a 95% interval from the standard error over pairs."""
    if len(pairs) < 2:
        return None
    deltas = [tuned - base for base, tuned in pairs]
    mean, half = fmean(deltas), Z * stdev(deltas) / math.sqrt(len(pairs))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def verdict(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> str | None:
    """Whether training helped, in a sentence: mean rewards of the same rows' completions, early and late.

    None where no two rows have rewards of both.
    """
    early, late = (_by_row(lines) for lines in (before, after))
    pairs = [(early[row], late[row]) for row in early if row in late]
    moved = difference(pairs)
    if moved is None:
        return None
    start, end = (fmean(side) for side in zip(*pairs, strict=True))
    so = ("which are too few to tell" if len(pairs) < FEW else "so training helped" if moved["low"] > 0 else
          "so training did harm" if moved["high"] < 0 else "so this may be chance: train longer, or hold out more")
    return (f"On {len(pairs)} held-out prompts the reward went from {start:.3f} to {end:.3f}: {moved['mean']:+.3f} a "
            f"prompt (95% interval {moved['low']:+.3f} to {moved['high']:+.3f}), {so}.")


def _by_row(lines: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """The mean reward of each row's judged completions."""
    found: dict[int, list[float]] = {}
    for line in lines:
        if line["reward"] is not None:
            found.setdefault(line["row"], []).append(line["reward"])
    return {row: fmean(rewards) for row, rewards in found.items()}
