"""Calls rewards, and turns what they return into one `Score` or None a sample. rlx and `rlx_sdk.testing` share it."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from typing import Any

from rlx_sdk.contracts import Reward, Sample, Score
from rlx_sdk.errors import type_of

_GRACE = 5.0
"""Seconds that a loop gets to say that time is up."""


class ScoreError(ValueError):
    """A reward returned something unusable; the text begins with ``it`` and says what is wanted."""


class Caller:
    """Calls rewards: plain ones on the calling thread, ``async`` ones on one loop of its own, whatever loops run."""

    def __init__(self) -> None:
        """The thread of the loop starts with the first reward that needs it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __call__(self, reward: Reward, samples: Sequence[Sample], timeout: float | None = None) -> Any:
        """What the reward returns, awaited if need be."""
        return self.result(reward.score(samples), timeout)

    def result(self, returned: Any, timeout: float | None = None) -> Any:
        """What a reward returned, awaited if need be.

        Raises:
            TimeoutError: an awaitable took more seconds than ``timeout``.
        """
        if inspect.isawaitable(returned):
            returned = self.start(returned, timeout)
        if not isinstance(returned, Future):
            return returned
        try:
            return returned.result(None if timeout is None else timeout + _GRACE)
        except TimeoutError as error:
            if returned.done():
                raise
            raise TimeoutError(f"no answer within {timeout:g} s; it blocks the loop of all async rewards") from error

    def start(self, awaitable: Awaitable[Any], timeout: float | None = None) -> Future[Any]:
        """Begin to await it on the loop; `result` gives what comes of it."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon: a reward that never returns must not keep the program alive.
            self._thread = threading.Thread(target=self._loop.run_forever, name="rlx-rewards", daemon=True)
            self._thread.start()

        async def outer() -> Any:
            try:
                async with asyncio.timeout(timeout) as limit:
                    return await awaitable
            except TimeoutError as error:
                if limit.expired():
                    raise TimeoutError(f"no answer within {timeout:g} s") from error
                raise

        return asyncio.run_coroutine_threadsafe(outer(), self._loop)

    def close(self) -> None:
        """End what is awaited, the loop and its thread; one that a reward blocks is left behind."""

        async def end() -> None:
            waiting = asyncio.all_tasks() - {asyncio.current_task()}
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            asyncio.get_running_loop().stop()

        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(end(), self._loop)
            self._thread.join(_GRACE)
            if not self._thread.is_alive():
                self._loop.close()
            self._loop = None


def check_scores(result: Any, wanted: int) -> list[Score | Exception | None]:
    """A reward's return value as one `Score` or None a sample, and a `ScoreError` in the place of an unusable value.

    An exception in the place of a value stays: the reward failed on that sample. Accepts lists and tuples of numbers,
    None and `Score`, and numpy arrays or tensors of shape ``(n,)`` or ``(n, 1)``.

    Raises:
        ScoreError: another type or number of values, so that none can be given to its sample.
    """
    shape = getattr(result, "shape", None)
    if shape is not None and hasattr(result, "tolist"):
        if tuple(shape) not in ((wanted,), (wanted, 1)):
            raise ScoreError(f"it returned an array of shape {tuple(shape)}; {_wanted(wanted)}")
        result = [value[0] if len(shape) == 2 else value for value in result.tolist()]
    if isinstance(result, str | bytes) or not isinstance(result, Sequence):
        raise ScoreError(f"it returned {type_of(result)} ({result!r:.60}); {_wanted(wanted)}")
    values = list(result)
    if len(values) != wanted:
        raise ScoreError(f"it gave {_count(len(values), 'reward')} for {_count(wanted, 'completion')}; "
                         f"{_wanted(wanted)}")
    return [_score(value) for value in values]


def _score(value: Any) -> Score | Exception | None:
    if value is None or isinstance(value, Exception):
        return value
    try:
        if isinstance(value, Score):
            score = Score(_number(value.value), {name: _number(part) for name, part in value.parts.items()},
                          tuple((int(end), _number(reward)) for end, reward in value.spans))
        else:
            score = Score(_number(value))
    except (AttributeError, TypeError, ValueError, ArithmeticError, RuntimeError):
        return ScoreError(f"it gave {value!r:.60} ({type(value).__name__}); a number is wanted, or None for not judged")
    if all(map(math.isfinite, (score.value, *score.parts.values(), *(reward for _, reward in score.spans)))):
        return score
    return ScoreError(f"it gave {value!r:.60}; rewards must be finite numbers (None means: not judged)")


def _number(value: Any) -> float:
    """A Python float from a number of any library, also one in an array of one element."""
    if isinstance(value, str | bytes):
        raise TypeError("text")
    return float(value.item() if hasattr(value, "item") else value)


def _wanted(n: int) -> str:
    return f"a list of {_count(n, 'number')} is wanted, one a completion, in their order"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
