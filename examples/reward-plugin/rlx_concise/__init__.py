"""Two rewards in one package, a plain one and an ``async`` one. It needs rlx-sdk alone, which imports no torch."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from pydantic import Field

from rlx_sdk import Config, RewardPlugin, Sample, Score, hookimpl, reward


class Options(Config):
    """How short is short."""

    words: int = Field(20, ge=1)
    """Words up to which an answer has the full score; twice as many have none."""


@reward("concise", config=Options)
def concise(samples: Sequence[Sample], options: Options) -> list[float]:
    """1 for an answer of at most 20 words, falling to 0 at 40; 0 for none at all."""
    counts = [len(sample.completion.split()) for sample in samples]
    return [min(1.0, max(0.0, 2 - n / options.words)) if n else 0.0 for n in counts]


@reward("on_topic")
async def on_topic(samples: Sequence[Sample]) -> list[Score | None]:
    """The share of the question's longer words that the answer takes up; without such words it is not judged."""
    return list(await asyncio.gather(*map(_one, samples)))


async def _one(sample: Sample) -> Score | None:
    await asyncio.sleep(0)  # here a service would be asked
    wanted = set(re.findall(r"\w{4,}", sample.prompt.lower()))
    found = wanted & set(re.findall(r"\w{4,}", sample.completion.lower()))
    return Score(len(found) / len(wanted), {"words": len(wanted)}) if wanted else None


@hookimpl
def rlx_rewards() -> list[RewardPlugin]:
    """Both."""
    return [concise.plugin, on_topic.plugin]
