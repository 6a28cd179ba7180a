"""Is the completion JSON?"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from rlx_sdk import Config, Sample, reward

_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)
_KINDS: dict[str, Any] = {"object": dict, "array": list, "any": object}


class Options(Config):
    """What JSON counts."""

    kind: Literal["object", "array", "any"] = "object"
    """What it has to be."""
    keys: tuple[str, ...] = ()
    """Keys that an object has to have."""
    fenced: bool = True
    """A code fence around it is left out of account."""


@reward("json_valid", config=Options)
def json_valid(samples: Sequence[Sample], options: Options) -> list[float]:
    """1 for a completion that is one JSON object."""
    return [float(_valid(sample.completion, options)) for sample in samples]


def _valid(text: str, options: Options) -> bool:
    fence = _FENCED.fullmatch(text) if options.fenced else None
    try:
        value = json.loads(fence[1] if fence else text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    has_keys = not options.keys or (isinstance(value, dict) and all(key in value for key in options.keys))
    return isinstance(value, _KINDS[options.kind]) and has_keys


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


build = json_valid.build
