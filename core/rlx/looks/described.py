"""What each metric means, as metrics.yaml has it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Described:
    """A metric.

    Attributes:
        name: as in metrics.jsonl; ``<x>`` stands for a role, a provider, a part or a phase.
        unit: of its value.
        meaning: what is measured.
        good: what a healthy run looks like.
    """

    name: str
    unit: str
    meaning: str
    good: str


DESCRIBED = tuple(Described(name, **facts) for name, facts in yaml.safe_load(
    Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8")).items())
_PATTERNS = [(re.compile(re.sub(r"<\w+>", "[^/]+", one.name)), one) for one in DESCRIBED]


def described(name: str) -> Described | None:
    """What a metric of training or of an evaluation (``eval/…``) means; None if it is a plugin's own."""
    plain = name.removeprefix("eval/")
    return next((one for pattern, one in _PATTERNS if pattern.fullmatch(plain)), None)
