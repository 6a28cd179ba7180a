"""1 where the completion is the right answer, letter by letter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import field_validator

from rlx_sdk import Config, Sample, reward


class Options(Config):
    """What is compared with what."""

    column: str = "ground_truth"
    """Column with the right answer, or a list of several; a row without it is not judged."""
    pattern: str | None = None
    """Regular expression; its last match in the completion (its first group, if it has one) is compared. Default: the
    whole completion."""
    ignore_case: bool = False
    """Upper and lower case are the same."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        return compiled(value)


def compiled(pattern: str | None) -> str | None:
    """The pattern, if it is a regular expression; raises `ValueError` that says where it is none."""
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


def last_match(pattern: str, text: str) -> str | None:
    """The last match in a text, or its first group if the pattern has one."""
    found = list(re.finditer(pattern, text, re.DOTALL))
    return found[-1][min(1, found[-1].re.groups)] or "" if found else None


@reward("exact_match", config=Options)
def exact_match(samples: Sequence[Sample], options: Options) -> list[float | None]:
    """1 for the text of the column ground_truth, else 0."""
    return [_score(sample.completion, sample.row.get(options.column), options) for sample in samples]


def _score(completion: str, truth: Any, options: Options) -> float | None:
    return None if truth is None else float(_equal(completion, truth, options))


def _equal(completion: str, truth: Any, options: Options) -> bool:
    said = completion if options.pattern is None else last_match(options.pattern, completion)
    right = [str(one).strip() for one in (truth if isinstance(truth, list) else [truth])]
    if options.ignore_case:
        said, right = said and said.casefold(), [one.casefold() for one in right]
    return said is not None and said.strip() in right


build = exact_match.build
