"""The contract test of rewards, for the tests of a package that publishes one; it needs no torch.

For example::

    from rlx_sdk.testing import check_reward
    from my_package import my_reward

    def test_contract():
        check_reward(my_reward)
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlx_sdk.contracts import Reward, RewardContext, Sample, Score
from rlx_sdk.errors import cause
from rlx_sdk.plugins import RewardPlugin
from rlx_sdk.reward import RewardFunction
from rlx_sdk.scores import Caller, ScoreError, check_scores

_UNKNOWN = "no_reward_has_this_option"
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
                 row: Mapping[str, Any] | None = None) -> None:
    """Check everything that rlx relies on.

    One finite number, `Score` or None a sample, in order; the same for a sample alone and in a batch, and each time;
    for empty, very long, cut, emoji, right-to-left and Chinese completions; with columns missing and columns unknown;
    nothing on standard output; unknown options refused.

    Args:
        plugin: what ``@reward`` made, or a `RewardPlugin`.
        options: a mapping, or an object of the plugin's class; default: every option's default.
        deterministic: False for a reward that may give other numbers each time (a sampled judge).
        row: columns that the reward reads from ``sample.row``; without them it must abstain, or score all the same.

    Raises:
        AssertionError: what was given, what came back, and what to change.
    """
    plugin = plugin.plugin if isinstance(plugin, RewardFunction) else plugin
    if not isinstance(plugin, RewardPlugin):
        raise AssertionError(f"check_reward was given {plugin!r:.80}. Give it the function under @reward(\"name\"), or "
                             "the RewardPlugin that your rlx_rewards hook returns.")
    subject = _Subject(plugin.name, _built(plugin, _options(plugin, options)))
    try:
        samples = _check_samples(subject, dict(row or {}))
        if deterministic:
            _check_repeats(subject, samples)
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
        fix = ("a completion is any text, and a column may be missing (sample.row.get): return None for a sample that "
               "cannot be judged")
        with _owned(self._name, f"given {given}", fix):
            result = self._caller(self._reward, samples)
        try:
            scores = check_scores(result, len(samples))
            for score in scores:
                if isinstance(score, ScoreError):
                    raise score
        except ScoreError as error:
            raise AssertionError(f"reward '{self._name}', given {given}: {error}.") from error
        return [score for score in scores if not isinstance(score, ScoreError)]

    def same(self, first: Sequence[Score | None], second: Sequence[Score | None], given: str, fix: str) -> None:
        """Both must be alike."""
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            if not _alike(a, b):
                raise AssertionError(f"reward '{self._name}', given {given}: for sample {i + 1} it gave {a}, then {b}; "
                                     f"{fix}.")

    def close(self) -> None:
        """Close the reward and the thread of ``async`` ones."""
        self._caller.close()
        with _owned(self._name, "when closed", "make close() harmless"):
            self._reward.close()


def _alike(a: Score | None, b: Score | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a.value, b.value, rel_tol=1e-4, abs_tol=1e-4)  # models differ a little in other batches


@contextlib.contextmanager
def _owned(name: str, given: str, fix: str) -> Iterator[None]:
    """Neither raises nor prints."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    except Exception as error:
        raise AssertionError(f"reward '{name}', {given}: it raised {cause(error)}; {fix}.") from error
    if printed.getvalue():
        raise AssertionError(f"reward '{name}', {given}: it printed {printed.getvalue()!r:.80} on stdout; that "
                             "belongs to rlx, so use logging, or print(..., file=sys.stderr).")


def _options(plugin: RewardPlugin, options: Any) -> Any:
    """The options as rlx would make them; unknown ones must be refused."""
    from rlx_sdk.config import Config

    with _owned(plugin.name, "asked for its config", "config must return the class of its options"):
        config = plugin.config()
    if not (isinstance(config, type) and issubclass(config, Config)):
        raise AssertionError(f"reward '{plugin.name}': its config is {config!r:.80}; derive the class of its options "
                             "from rlx_sdk.Config, which refuses unknown and ill-typed ones.")
    given = {} if isinstance(options, config) else dict(options or {})
    fix = "give every option a default, or pass working ones: check_reward(…, options={…})"
    with _owned(plugin.name, f"built with the options {given or 'left at their defaults'}", fix):
        made = options if isinstance(options, config) else config.model_validate_json(json.dumps(given))
    if _accepts(config, {**given, _UNKNOWN: 1}):
        raise AssertionError(f"reward '{plugin.name}', given the unknown option '{_UNKNOWN}': it was accepted, so a "
                             "misspelt option would go unnoticed; leave Config's extra=\"forbid\" as it is.")
    return made


def _accepts(config: Any, options: Mapping[str, Any]) -> bool:
    try:
        config.model_validate_json(json.dumps(options))
    except ValueError:
        return False
    return True


def _built(plugin: RewardPlugin, options: Any) -> Reward:
    missing = "".join(f" (it requires {what})" for what in plugin.requires.values())
    with _owned(plugin.name, "when built", f"build(options, context) must return the reward{missing}"):
        reward = plugin.build(options, RewardContext())
    if not isinstance(reward, Reward):
        raise AssertionError(f"reward '{plugin.name}', when built: it gave {reward!r:.80}; an object with the methods "
                             "score(samples) and close() is wanted.")
    return reward
