"""The contract test of rewards; it needs no torch."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlx_sdk.contracts import Reward, RewardContext, Sample, Score
from rlx_sdk.errors import cause
from rlx_sdk.plugins import RewardPlugin
from rlx_sdk.reward import RewardFunction
from rlx_sdk.scores import Caller, ScoreError, check_scores
from rlx_sdk.testing.common import failure, options_of, owned

_PATIENCE = 60.0
_ANY_TEXT = ("a completion is any text, and a column may be missing (sample.row.get): return None for a sample that "
             "cannot be judged")
_PROMPT = "What is 2 + 2?"
_COMPLETIONS = {
    "an ordinary completion": "It is 4. Thank you for asking, and please come back with the next question.",
    "an empty completion": "",
    "a completion of blanks": " \n\t ",
    "a completion of 100,000 characters": "word " * 20_000,
    "a completion of emoji": "👩‍👩‍👧 👍🏽 🎉",
    "a right-to-left completion": "مرحبا بالعالم, שלום",
    "a Chinese completion": "谢谢您的提问，答案是四。",
}


def check_reward(plugin: RewardFunction | RewardPlugin, options: Any = None, *, deterministic: bool = True,
                 row: Mapping[str, Any] | None = None, threads: bool = True) -> None:
    """Check everything that rlx relies on.

    One finite number, `Score` or None a sample, in order; the same for a sample alone and in a batch, and each time;
    for empty, very long, cut, emoji, right-to-left and Chinese completions; with columns missing and columns unknown;
    several calls at once; nothing on standard output; unknown options refused. It is never pickled.

    Args:
        plugin: what ``@reward`` made, or a `RewardPlugin`.
        options: a mapping, or an object of the plugin's class; default: every option's default.
        deterministic: False for a reward that may give other numbers each time (a sampled judge).
        threads: False for a plain function that works on the main thread only, as one that limits its time with
            signals does: rlx calls it there. An ``async`` one is always called several times at once.
        row: columns that the reward reads from ``sample.row``; without them it must abstain, or score all the same.

    Raises:
        AssertionError: what was given, what came back, and what to change.
    """
    plugin = plugin.plugin if isinstance(plugin, RewardFunction) else plugin
    if not isinstance(plugin, RewardPlugin):
        raise failure(f"check_reward was given {plugin!r:.80}. Give it the function under @reward(\"name\"), or "
                             "the RewardPlugin that your rlx_rewards hook returns.")
    subject = _Subject(plugin.name, _built(plugin, options_of(f"reward '{plugin.name}'", plugin, options)))
    try:
        samples = _check_samples(subject, dict(row or {}))
        if deterministic:
            _check_repeats(subject, samples)
        subject.check_concurrency(samples, deterministic, threads)
    finally:
        subject.close()


def _check_samples(subject: _Subject, row: dict[str, Any]) -> list[Sample]:
    """Every kind of sample alone and all of them together; returns them."""
    samples = []
    for given, sample in _samples(row):
        subject.scores([sample], given)
        samples.append(sample)
    subject.scores(samples, f"{len(samples)} samples together")
    subject.scores([], "no sample at all")
    return samples


def _samples(row: dict[str, Any]) -> Iterator[tuple[str, Sample]]:
    first = Sample(_PROMPT, _COMPLETIONS["an ordinary completion"], [{"role": "user", "content": _PROMPT}], row=row)
    for given, text in _COMPLETIONS.items():
        yield given, replace(first, completion=text)
    yield "a completion that the length limit cut", replace(first, finish_reason="length")
    yield "a plain text prompt, so no messages", replace(first, messages=())
    yield "columns it does not know", replace(first, row={**row, "unknown": {"nested": [1, None]}, "other": None})
    yield "a row without any columns", replace(first, row={})


def _check_repeats(subject: _Subject, samples: Sequence[Sample]) -> None:
    together = subject.scores(samples, "samples together")
    subject.same(together, subject.scores(samples, "samples together"), "the same samples twice",
                 "draw no random numbers and keep no state between calls, or pass deterministic=False")
    single = [subject.scores([sample], "one sample")[0] for sample in samples]
    subject.same(together, single, "samples together, then each alone",
                 "score each sample by itself and give the scores in the order of the samples")
    backwards = subject.scores(samples[::-1], "samples backwards")[::-1]
    subject.same(together, backwards, "samples together, then backwards", "give the scores in the order of the samples")


class _Subject:
    """The reward in test; every failure names it, what it was given, what came back and the fix."""

    def __init__(self, name: str, reward: Reward) -> None:
        self._name, self._reward, self._caller = name, reward, Caller()

    def scores(self, samples: Sequence[Sample], given: str) -> list[Score | None]:
        """What the reward gives, checked."""
        with owned(f"reward '{self._name}'", f"given {given}", _ANY_TEXT):
            result = self._caller(self._reward, samples)
        return self._checked(result, samples, given)

    def _checked(self, result: Any, samples: Sequence[Sample], given: str) -> list[Score | None]:
        try:
            scores = check_scores(result, len(samples))
            for score in scores:
                if isinstance(score, Exception):
                    raise score
        except ScoreError as error:
            raise failure(f"reward '{self._name}', given {given}: {error}.") from error
        except Exception as error:
            raise failure(f"reward '{self._name}', given {given}: it failed: {cause(error)}; {_ANY_TEXT}.") from error
        return [score for score in scores if not isinstance(score, Exception)]

    def same(self, first: Sequence[Score | None], second: Sequence[Score | None], given: str, fix: str) -> None:
        """Both must be alike."""
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            if not _alike(a, b):
                raise failure(f"reward '{self._name}', given {given}: for sample {i + 1} it gave {a}, then {b}; "
                                     f"{fix}.")

    def check_concurrency(self, samples: Sequence[Sample], deterministic: bool, threads: bool) -> None:
        """Several calls at once all come back, with what one alone gives."""
        given = "several calls at once"
        alone = self.scores(samples, "samples together")
        is_async = getattr(self._reward, "is_async", False) or inspect.iscoroutinefunction(self._reward.score)
        if is_async:
            with owned(f"reward '{self._name}'", f"given {given}", "share no state between calls without a lock"):
                results = self._caller.result(self._caller.start(self._at_once(samples), _PATIENCE))
        elif threads:
            results = self._in_threads(lambda: self._caller(self._reward, samples))
        else:
            return
        for result in results if deterministic else ():
            self.same(alone, self._checked(result, samples, given), given,
                      "share no state between calls without a lock; if it uses signals, pass threads=False")

    async def _at_once(self, samples: Sequence[Sample]) -> list[Any]:
        """Four calls, none of which is over before all have begun."""
        waiting: list[Any] = [self._reward.score(samples) for _ in range(4)]
        return list(await asyncio.gather(*waiting))

    def _in_threads(self, call: Callable[[], Any]) -> list[Any]:
        results: list[Any] = []
        errors: list[Exception] = []

        def work() -> None:
            try:
                results.append(call())
            except Exception as error:
                errors.append(error)

        pool = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        fix = "share no state between calls without a lock; if it uses signals, pass threads=False"
        with owned(f"reward '{self._name}'", "given several calls at once in threads", fix):
            for thread in pool:
                thread.start()
            for thread in pool:
                thread.join(_PATIENCE)
            if errors:
                raise errors[0]
            if any(thread.is_alive() for thread in pool):
                raise TimeoutError(f"no answer within {_PATIENCE:g} s")
        return results

    def close(self) -> None:
        """Close the reward and the thread of ``async`` ones."""
        self._caller.close()
        with owned(f"reward '{self._name}'", "when closed", "make close() harmless"):
            self._reward.close()


def _alike(a: Score | None, b: Score | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a.value, b.value, rel_tol=1e-4, abs_tol=1e-4)  # models differ a little in other batches


def _built(plugin: RewardPlugin, options: Any) -> Reward:
    missing = "".join(f" (it requires {what})" for what in plugin.requires.values())
    with owned(f"reward '{plugin.name}'", "when built", f"build(options, context) must return the reward{missing}"):
        reward = plugin.build(options, RewardContext())
    if not isinstance(reward, Reward):
        raise failure(f"reward '{plugin.name}', when built: it gave {reward!r:.80}; an object with the methods "
                             "score(samples) and close() is wanted.")
    return reward
