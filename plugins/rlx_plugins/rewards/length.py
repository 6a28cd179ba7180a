"""A length within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from rlx_sdk import Config, Sample, reward


class Options(Config):
    """Bounds, and how fast the score falls outside."""

    shortest: int = Field(1, ge=0)
    """Least length for the full score."""
    longest: int = Field(200, ge=1)
    """Greatest length for it."""
    falloff: int = Field(0, ge=0)
    """Outside, the score falls to 0 over this length; 0: at once."""
    unit: Literal["characters", "words"] = "characters"
    """What is counted, blanks at both ends left out."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError(f"shortest {self.shortest} is above longest {self.longest}: nothing could score")
        return self


@reward("length", config=Options)
def length(samples: Sequence[Sample], options: Options) -> list[float]:
    """1 for a length within bounds, falling outside."""
    return [_score(len(text.split() if options.unit == "words" else text.strip()), options)
            for text in (sample.completion for sample in samples)]


def _score(n: int, options: Options) -> float:
    away = max(options.shortest - n, n - options.longest, 0)
    return 1.0 if away == 0 else max(0.0, 1 - away / (options.falloff + 1))


build = length.build
