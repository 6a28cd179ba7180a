"""What the rlx-tiny corpus talks about: one topic per line of topics_en.txt and topics_zh.txt.

A line holds `name | traits | tips | reasons`, the last three being lists with `; ` between the items:

* a trait completes "<name> is ..." (English) or directly follows the name (Chinese);
* a tip is an imperative that may follow "remember to" (记得);
* a reason is a clause that may follow "because" (因为).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Topic:
    """One subject and what can be said about it."""

    name: str
    traits: tuple[str, ...]
    tips: tuple[str, ...]
    reasons: tuple[str, ...]


def load(language: str) -> tuple[Topic, ...]:
    """The topics of a language, "en" or "zh"."""
    lines = Path(__file__).with_name(f"topics_{language}.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.split(" | ") for line in lines)
    return tuple(Topic(name, *(tuple(items.split("; ")) for items in lists)) for name, *lists in rows)
