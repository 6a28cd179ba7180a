"""What settings of verl and TRL are called here, as peers.yaml has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rlx.layers import leaves

TITLES = {"verl": "verl", "trl": "TRL"}


@dataclass(frozen=True)
class Named:
    """A peer's setting.

    Attributes:
        peer: whose.
        name: there; of a setting that one of TRL's configurations has alone, with that before it.
        ours: what does the same here; none where nothing need be set.
        en: what differs.
        zh: the same in Chinese.
    """

    peer: str
    name: str
    ours: tuple[str, ...]
    en: str
    zh: str


@cache
def peers() -> tuple[Named, ...]:
    """All that is known."""
    text = Path(__file__).with_name("peers.yaml").read_text(encoding="utf-8")
    return tuple(_named(peer, name, value) for peer, names in yaml.safe_load(text).items()
                 for name, value in names.items())


def _named(peer: str, name: str, value: Any) -> Named:
    facts = value if isinstance(value, dict) else {"ours": value}
    ours = facts.get("ours", [])
    return Named(peer, name, tuple([ours] if isinstance(ours, str) else ours), facts.get("en", ""), facts.get("zh", ""))


def called_here(setting: str, value: Any) -> Iterator[str]:
    """A sentence for each setting of a peer's, in a setting that rlx does not know and in what is under it."""
    given = set(leaves({setting: value}))
    for one in peers():
        if one.name in given or (one.peer == "trl" and one.name.rpartition(".")[2] in given):
            ours = " and ".join(one.ours) or "not needed"
            yield f"{TITLES[one.peer]}'s {one.name} is {ours} here{f' ({one.en})' if one.en else ''}"
