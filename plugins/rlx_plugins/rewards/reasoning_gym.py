"""Scores answers to tasks of the ``reasoning-gym`` package; examples/reasoning_gym_tasks.py writes such tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from rlx_plugins.rewards.exact_match import last_match
from rlx_sdk import Config, Sample, reward


class Options(Config):
    """Where the answer stands."""

    pattern: str = r"<answer>(.*?)</answer>"
    """Its last match in the completion is the answer; without one, the whole completion is."""


@reward("reasoning_gym", config=Options, requires={"reasoning_gym": "rlx[reasoning-gym]"})
def reasoning_gym(samples: Sequence[Sample], options: Options) -> list[float | Exception | None]:
    """The score that reasoning-gym gives, from the columns answer and metadata."""
    return [_score(sample, options) for sample in samples]


def _score(sample: Sample, options: Options) -> float | Exception | None:
    metadata: Any = sample.row.get("metadata")
    if metadata is None:
        return None
    said = last_match(options.pattern, sample.completion)
    said = (sample.completion if said is None else said).strip()
    try:
        metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
        entry = {"question": sample.prompt, "answer": sample.row.get("answer"), "metadata": metadata}
        return float(_scorer(metadata["source_dataset"])(said, entry)) if said else 0.0
    except Exception as error:  # the task's own code, on a row of the data
        return error


@lru_cache
def _scorer(name: str) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym import get_score_answer_fn

    scorer: Callable[[str, dict[str, Any]], float] = get_score_answer_fn(name)
    return scorer


build = reasoning_gym.build
