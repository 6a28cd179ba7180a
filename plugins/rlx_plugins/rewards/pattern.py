"""Does the completion match a regular expression?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import field_validator

from rlx_plugins.rewards.exact_match import compiled
from rlx_sdk import Config, Sample, reward


class Options(Config):
    """What is looked for."""

    pattern: str
    """Regular expression, where a dot also matches a line break; ``--reward regex:PATTERN`` sets it."""
    whole: bool = False
    """It has to match the whole completion, not a part."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        compiled(value)
        return value


@reward("regex", config=Options, argument="pattern")
def regex(samples: Sequence[Sample], options: Options) -> list[float]:
    """1 for a completion that matches a pattern, regex:PATTERN."""
    pattern = re.compile(options.pattern, re.DOTALL)
    match = pattern.fullmatch if options.whole else pattern.search
    return [float(match(sample.completion) is not None) for sample in samples]


build = regex.build
