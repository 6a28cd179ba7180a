"""Writes the tables of verl's and TRL's names into the tutorials: ``python docs/names_in_tutorial.py``."""

from __future__ import annotations

from pathlib import Path

from rlx.looks.peers import TITLES, Named, peers

DOCS = Path(__file__).parent
BEGIN = "<!-- names: made by docs/names_in_tutorial.py from core/rlx/looks/peers.yaml -->\n"
END = "<!-- end of names -->\n"
HEADS = {"zh": ("rlx 里的设置", "说明", "不用写"), "en": ("here", "remarks", "not needed")}


def table(peer: str, language: str) -> str:
    """One peer's names."""
    ours, remarks, none = HEADS[language]
    rows = "".join(f"| `{one.name}` | {_ours(one) or none} | {getattr(one, language)} |\n"
                   for one in peers() if one.peer == peer)
    return f"\n| {TITLES[peer]} | {ours} | {remarks} |\n|---|---|---|\n{rows}"


def _ours(one: Named) -> str:
    return ", ".join(f"`{name}`" for name in one.ours)


def page(language: str) -> str:
    """The tutorial with its tables made anew."""
    text = (DOCS / language / "tutorial.md").read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    tables = "".join(table(peer, language) for peer in TITLES)
    return before + BEGIN + tables + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    for language in HEADS:
        (DOCS / language / "tutorial.md").write_text(page(language), encoding="utf-8")
