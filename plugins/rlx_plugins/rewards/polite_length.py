"""A rule reward: the right length, and a polite word. Written as any third party would write one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from rlx_sdk import Config, Sample, reward

POLITE_WORDS = (
    "谢谢", "感谢", "您好", "你好", "麻烦", "请", "劳驾", "抱歉", "对不起", "不客气",
    "thank", "please", "hello", "sorry", "appreciate", "kindly", "welcome", "grateful", "excuse me",
)


class Options(Config):
    """Bounds and words."""

    min_chars: int = Field(50, ge=0)
    """Fewest characters for the length point."""
    max_chars: int = Field(200, ge=1)
    """Most characters for it."""
    length_score: float = 1.0
    """Score for a length within the bounds."""
    polite_score: float = 0.5
    """Score for a polite word."""
    polite_words: tuple[str, ...] = POLITE_WORDS
    """Any of them makes a completion polite; upper and lower case are the same."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.min_chars > self.max_chars:
            raise ValueError(f"min_chars {self.min_chars} is above max_chars {self.max_chars}: nothing could score")
        return self


@reward("polite_length", config=Options)
def polite_length(samples: Sequence[Sample], options: Options) -> list[float]:
    """1 for a completion of 50 to 200 characters, and 0.5 for a polite word."""
    return [
        options.length_score * (options.min_chars <= len(text) <= options.max_chars)
        + options.polite_score * any(word.lower() in text.lower() for word in options.polite_words)
        for text in (sample.completion.strip() for sample in samples)
    ]


build = polite_length.build
