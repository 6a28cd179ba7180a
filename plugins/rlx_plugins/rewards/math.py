"""Is the mathematical answer right? Compared as expressions by the ``math-verify`` package.

The package limits its time with SIGALRM, which works on the main thread alone; elsewhere it would raise, or score 0
without a word. So it gets a limit on the main thread only, and a comparison that it gives up is counted.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

from pydantic import Field

from rlx_sdk import Config, Sample, Score, reward


class Options(Config):
    """What is compared."""

    column: str = "ground_truth"
    r"""Column with the right answer, a number or LaTeX, with or without \boxed or $; a row without it is not judged."""
    seconds: int = Field(5, ge=1)
    """For reading a completion, and for comparing it, on the main thread; elsewhere only the reward's timeout acts."""


@reward("math", config=Options, requires={"math_verify": "rlx[math]"})
def math(samples: Sequence[Sample], options: Options) -> list[Score | Exception | None]:
    """1 for an answer that equals the column ground_truth as mathematics."""
    return [_score(sample, options) for sample in samples]


def _score(sample: Sample, options: Options) -> Score | Exception | None:
    from math_verify.errors import TimeoutException

    truth = sample.row.get(options.column)
    if truth is None:
        return None
    limit: Any = options.seconds if threading.current_thread() is threading.main_thread() else None
    gold = _gold(str(truth))
    if not gold:
        return ValueError(f"the column '{options.column}' holds {truth!r:.60}, which is no mathematical expression")
    try:
        said = _library().parse(sample.completion, parsing_timeout=limit, raise_on_error=True)
        right = _library().verify(list(gold), said, timeout_seconds=limit, raise_on_error=True)
    except (Exception, TimeoutException):  # what a completion holds may be beyond any comparison
        return Score(0.0, {"undecided": 1.0})
    return Score(float(right), {"undecided": 0.0})


@cache
def _library() -> ModuleType:
    """math-verify, which would say each time that its own limit of time is off, as it is meant to be."""
    for part in ("parser", "grader"):
        logging.getLogger(f"math_verify.{part}").setLevel(logging.ERROR)
    return importlib.import_module("math_verify")


@lru_cache(4096)
def _gold(truth: str) -> tuple[Any, ...]:
    marked = truth if "\\boxed" in truth or "$" in truth else f"\\boxed{{{truth}}}"
    return tuple(_library().parse(marked, parsing_timeout=None))


build = math.build
