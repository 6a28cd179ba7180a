"""Calls rewards, checks what they return, and adds them up."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.registry import stdout_to_stderr
from rlx.spec import RewardSpec
from rlx.text import count, listing
from rlx_sdk import Reward, RewardError, Sample, Score


@dataclass
class Judged:
    """Scores of some samples.

    Attributes:
        rewards: the weighted sum over providers that judged the sample; 0 where none did.
        judged: whether any did.
        by_provider: each provider's own scores, None where it abstained or failed.
        parts: further numbers of a provider's `Score`, as ``provider/part``.
        failed: samples a provider failed on, under ``on_error: skip`` or a value.
    """

    rewards: list[float]
    judged: list[bool]
    by_provider: dict[str, list[float | None]]
    parts: dict[str, list[float]] = field(default_factory=dict)
    failed: int = 0


@dataclass(frozen=True)
class Provider:
    """A built reward with what the spec says of it; ``label`` is its name with package and version, for messages."""

    name: str
    label: str
    spec: RewardSpec
    reward: Reward


class RewardPanel:
    """All reward providers of a run."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        """Keep the providers; a thread for ``async`` ones starts with the first that needs it."""
        self._providers = tuple(providers)
        self._loop: asyncio.AbstractEventLoop | None = None

    def score(self, samples: Sequence[Sample], rows: Sequence[int]) -> Judged:
        """Score samples.

        Args:
            samples: in any order.
            rows: the data row of each, counted from 1, for messages.

        Raises:
            RewardError: a provider failed and its ``on_error`` is ``stop``.
        """
        found = Judged([0.0] * len(samples), [False] * len(samples), {})
        for provider in self._providers:
            scores = self._guarded(provider, samples, rows, found)
            found.by_provider[provider.name] = [None if s is None else s.value for s in scores]
            for i, score in enumerate(scores):
                if score is not None:
                    found.rewards[i] += provider.spec.weight * score.value
                    found.judged[i] = True
                    for part, value in score.parts.items():
                        found.parts.setdefault(f"{provider.name}/{part}", []).append(value)
        return found

    def close(self) -> None:
        """Close every provider and the thread."""
        for provider in self._providers:
            provider.reward.close()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _guarded(self, provider: Provider, samples: Sequence[Sample], rows: Sequence[int],
                 found: Judged) -> list[Score | None]:
        """The provider's scores; on a failure what its ``on_error`` says, sample by sample."""
        try:
            return self._call(provider.reward, samples)
        except Exception as error:  # a stranger's code may raise anything; it is wrapped here, once
            policy = provider.spec.on_error
            single = [self._attempt(provider.reward, sample) for sample in samples] if len(samples) > 1 else [error]
            bad = [i for i, result in enumerate(single) if isinstance(result, Exception)]
            if policy == "stop" or not bad:
                raise RewardError(_explain(provider, error, single, samples, rows)) from error
            found.failed += len(bad)
            instead = None if policy == "skip" else Score(float(policy))
            return [instead if isinstance(r, Exception) else r for r in single]

    def _attempt(self, reward: Reward, sample: Sample) -> Score | Exception | None:
        try:
            return self._call(reward, [sample])[0]
        except Exception as error:
            return error

    def _call(self, reward: Reward, samples: Sequence[Sample]) -> list[Score | None]:
        with stdout_to_stderr():
            result = reward.score(samples)
            if inspect.isawaitable(result):
                result = self._await(result)
        return check_scores(result, len(samples))

    def _await(self, awaitable: Awaitable[Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="rlx-rewards", daemon=True).start()

        async def outer() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(outer(), self._loop).result()


def check_scores(result: Any, wanted: int) -> list[Score | None]:
    """A reward's return value as one `Score` or None a sample.

    Accepts lists and tuples of numbers, None and `Score`, and numpy arrays or tensors of shape ``(n,)`` or ``(n, 1)``.

    Raises:
        ValueError: another type or number of values, or one that is not finite; says which.
    """
    shape = getattr(result, "shape", None)
    if shape is not None and hasattr(result, "tolist"):
        if tuple(shape) not in ((wanted,), (wanted, 1)):
            raise ValueError(f"it returned an array of shape {tuple(shape)}; {_wanted(wanted)}")
        result = result.reshape(-1).tolist()
    if isinstance(result, str | bytes | dict) or not isinstance(result, Sequence):
        raise ValueError(f"it returned a {type(result).__name__} ({result!r:.60}); {_wanted(wanted)}")
    if len(result) != wanted:
        raise ValueError(f"it gave {count(len(result), 'reward')} for {count(wanted, 'completion')}; {_wanted(wanted)}")
    scores = [_score(value, i) for i, value in enumerate(result)]
    odd = [(i, s.value) for i, s in enumerate(scores) if s is not None and not math.isfinite(s.value)]
    if odd:
        values = listing(f"{value} for sample {i + 1}" for i, value in odd)
        raise ValueError(f"it gave {values}; rewards must be finite numbers (None means: not judged)")
    return scores


def _wanted(n: int) -> str:
    return f"a list of {count(n, 'number')} is wanted, one a completion, in their order"


def _score(value: Any, index: int) -> Score | None:
    if value is None:
        return None
    if isinstance(value, Score):
        return Score(float(value.value), {k: float(v) for k, v in value.parts.items()})
    if not isinstance(value, str | bytes):
        try:
            return Score(float(value.item() if hasattr(value, "item") else value))
        except (TypeError, ValueError, RuntimeError):
            pass
    raise ValueError(f"it gave {value!r:.60} ({type(value).__name__}) for sample {index + 1}; a number is wanted")


def _explain(provider: Provider, error: Exception, single: Sequence[Score | Exception | None],
             samples: Sequence[Sample], rows: Sequence[int]) -> str:
    """Plugin, package, sample, data row, cause, and the way out."""
    at = next((i for i, result in enumerate(single) if isinstance(result, Exception)), None)
    where = f"all {count(len(samples), 'sample')} together"
    cause: Exception | Score | None = error
    if at is not None:
        where = f"sample {at + 1} of {len(samples)} (data row {rows[at]}, completion {samples[at].completion!r:.60})"
        # A wrong number of values, or values named by sample, is clearest as the whole batch saw it.
        cause = error if isinstance(error, ValueError) and str(error).startswith("it ") else single[at]
    text = str(cause) if str(cause).startswith("it ") else f"{type(cause).__name__}: {cause}"
    return (f"reward {provider.label} failed on {where}: {text}. Mend the reward, or set its on_error to 'skip' "
            "(not judged) or to a number.")
