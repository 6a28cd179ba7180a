"""A penalty for completions that say the same again and again (as in arXiv 2502.03373, over n-grams)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import Field

from rlx_sdk import Config, Sample, reward

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+|[^\w\s]")
"""A word, a sign, or one Chinese, Japanese or Korean character."""


class Options(Config):
    """What counts as repeated."""

    ngram: int = Field(3, ge=1)
    """Words in a row; of Chinese, Japanese and Korean, characters."""
    penalty: float = Field(1.0, ge=0)
    """The score of a text of nothing but repetition is close to minus this."""


@reward("repetition", config=Options)
def repetition(samples: Sequence[Sample], options: Options) -> list[float]:
    """Minus the share of word triples that stood before: 0 to −1."""
    return [-options.penalty * _repeated(_WORD.findall(sample.completion.lower()), options.ngram) for sample in samples]


def _repeated(words: list[str], n: int) -> float:
    grams = [tuple(words[i:i + n]) for i in range(len(words) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


build = repetition.build
