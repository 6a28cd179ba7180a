"""Small helpers for messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that looks most like this one, if any does; before others one of the same letters."""
    near = difflib.get_close_matches(word.lower(), known, n=9, cutoff=0.6)
    return min(near, key=lambda other: sorted(other) != sorted(word.lower()), default=None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` with a leading blank, or nothing."""
    return f" Did you mean '{near}'?" if (near := nearest(word, known)) else ""


def did_you_mean_file(path: Path) -> str:
    """The same of what lies beside a file or folder that is not there."""
    return did_you_mean(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])


def listing(items: Iterable[object], limit: int = 6) -> str:
    """``a, b, c and 4 more``."""
    all_items = [str(i) for i in items]
    shown = ", ".join(all_items[:limit])
    return f"{shown} and {len(all_items) - limit} more" if len(all_items) > limit else shown


def count(n: int, noun: str, plural: str | None = None) -> str:
    """``1 row``, ``2 rows``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """The text without what would steer a terminal: a model may write escape sequences."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "�", text)


def clock(seconds: float) -> str:
    """``1:05`` minutes, ``1:00:05`` hours."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
