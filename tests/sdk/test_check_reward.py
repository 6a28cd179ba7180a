"""`check_reward` accepts good rewards and refuses each kind of bad one with a text that helps."""

import asyncio
import contextlib
import random

import pytest
from pydantic import BaseModel

from rlx_sdk import Config, RewardPlugin, Score, reward
from rlx_sdk.reward import FunctionReward
from rlx_sdk.testing import check_reward


class Options(Config):
    """Options."""

    column: str = "answer"
    """Column."""


class Needy(Config):
    """An option without a default."""

    url: str
    """Address."""


@reward("good", config=Options)
def good(samples, options):
    return [None if (truth := s.row.get(options.column)) is None else Score(float(truth in s.completion), {"length": 1})
            for s in samples]


@reward("good_async")
async def good_async(samples):
    await asyncio.sleep(0)
    return [len(s.completion) for s in samples]


def plugin(function=lambda samples: [1.0] * len(samples), config=lambda: Config, **more):
    return RewardPlugin(name="bad", summary="", config=config, **{
        "build": lambda options, context: FunctionReward(function), **more})


def test_good_rewards_pass():
    check_reward(good)
    check_reward(good, {"column": "truth"}, row={"truth": "4"})
    check_reward(good, Options(column="truth"), row={"truth": "4"})
    check_reward(good.plugin)
    check_reward(good_async)


def test_it_works_while_a_loop_is_running():
    async def main():
        check_reward(good_async)

    asyncio.run(main())


def test_an_option_without_a_default_must_be_given():
    @reward("needy", config=Needy)
    def needy(samples, options):
        return [1.0] * len(samples)

    check_reward(needy, {"url": "http://here"})
    with pytest.raises(AssertionError, match=r"(?s)'needy', built with the options left at their defaults: .*url.*"
                                             r"give every option a default, or pass working ones"):
        check_reward(needy)


def test_a_drawn_reward_passes_only_when_it_says_so():
    @reward("drawn")
    def drawn(samples):
        return [random.random() for _ in samples]

    check_reward(drawn, deterministic=False)
    with pytest.raises(AssertionError, match=r"the same samples twice: for sample 1 it gave Score.*, then Score.*"
                                             r"pass deterministic=False"):
        check_reward(drawn)


def _each(value):
    return lambda samples: [value] * len(samples)


def _noisy(samples):
    print("scoring")
    return [1.0] * len(samples)


def _raises_on(test):
    def function(samples):
        if any(test(s) for s in samples):
            raise ValueError("oh no")
        return [1.0] * len(samples)

    return function


BAD = {
    "one for all": (lambda samples: [1.0], r"given 11 samples together: it gave 1 reward for 11 completions; a list"),
    "a float": (lambda samples: 0.5, "given an ordinary completion: it returned a float"),
    "nan": (_each(float("nan")), r"it gave nan; rewards must be finite numbers \(None means"),
    "text": (_each("good"), r"it gave 'good' \(str\); a number is wanted"),
    "no list for no sample": (lambda samples: [1.0] * len(samples) or None, "given no sample at all: it returned a"),
    "prints": (_noisy, r"it printed 'scoring\\n' on stdout; .* use logging"),
    "empty": (_raises_on(lambda s: not s.completion), r"given an empty completion: it raised ValueError: oh no \("),
    "long": (_raises_on(lambda s: len(s.completion) > 50_000), "given a completion of 100,000 characters: it raised"),
    "emoji": (_raises_on(lambda s: "👍" in s.completion), "given a completion of emoji"),
    "right to left": (_raises_on(lambda s: "שלום" in s.completion), "given a right-to-left completion"),
    "Chinese": (_raises_on(lambda s: "谢谢" in s.completion), "given a Chinese completion"),
    "cut": (_raises_on(lambda s: s.finish_reason == "length"), "given a completion that the length limit cut"),
    "no messages": (_raises_on(lambda s: not s.messages), "given a plain text prompt, so no messages"),
    "unknown column": (_raises_on(lambda s: "unknown" in s.row), "given columns it does not know"),
    "by place": (lambda samples: [float(i) for i in range(len(samples))],
                 "together, then each alone: for sample 2 .* score each sample by itself"),
    "by batch": (lambda samples: [float(len(samples))] * len(samples), "together, then each alone"),
    "the first only": (lambda samples: [float(s is samples[0]) for s in samples], "score each sample by itself"),
}


@pytest.mark.parametrize("function", BAD)
def test_each_broken_rule_is_named(function):
    broken, said = BAD[function]
    with pytest.raises(AssertionError, match=said) as error:
        check_reward(reward("bad")(broken))
    assert "'bad'" in str(error.value)


def test_a_missing_column_is_named_with_the_way_out():
    @reward("greedy")
    def greedy(samples):
        return [float(s.row["answer"] in s.completion) for s in samples]

    with pytest.raises(AssertionError, match=r"it raised KeyError: 'answer' \(sdk/test_check_reward\.py:\d+\); a "
                                             r"completion is any text, and a column may be missing \(sample\.row\.get"):
        check_reward(greedy)
    with pytest.raises(AssertionError, match="given a row without any columns"):
        check_reward(greedy, row={"answer": "4"})


def test_order_within_a_batch_is_checked_both_ways():
    @reward("sorted")
    def ordered(samples):
        return sorted(float(len(s.completion)) for s in samples)

    with pytest.raises(AssertionError, match="together, then each alone: for sample"):
        check_reward(ordered)


class _Open(BaseModel):
    """Accepts anything."""


class _Loose(Config, extra="ignore"):
    """Ignores what it does not know."""


def _raise(*_):
    raise OSError("no key")


@pytest.mark.parametrize(("made", "said"), [
    (lambda: plugin(config=lambda: _Loose), "given the unknown option .*: it was accepted.*misspelt"),
    (lambda: plugin(config=lambda: _Open), "its config is .*_Open.*derive the class of its options from rlx_sdk"),
    (lambda: plugin(config=Config), r"its config is Config\(\)"),
    (lambda: plugin(config=_raise), "asked for its config: it raised OSError: no key .*; config must"),
    (lambda: plugin(build=_raise, requires={"judge": "my-judge"}),
     r"when built: it raised OSError: no key .*\(it requires my-judge\)"),
    (lambda: plugin(build=lambda options, context: None), "when built: it gave None; an object with the methods"),
    (lambda: len, r"check_reward was given <built-in function len>. Give it the function under @reward"),
])
def test_a_bad_plugin_is_named(made, said):
    with pytest.raises(AssertionError, match=said):
        check_reward(made())


class _Closing(FunctionReward):
    def __init__(self, function, closed):
        super().__init__(function)
        self._closed = closed

    def close(self):
        self._closed()


def test_a_reward_is_closed_also_when_it_fails():
    closed = []
    for value in (1.0, "bad"):
        made = plugin(build=lambda options, context, value=value: _Closing(_each(value), lambda: closed.append(value)))
        with contextlib.suppress(AssertionError):
            check_reward(made)
    assert closed == [1.0, "bad"]


def test_a_failing_close_is_named():
    with pytest.raises(AssertionError, match=r"'bad', when closed: it raised OSError: no key .*; make close"):
        check_reward(plugin(build=lambda options, context: _Closing(_each(1.0), _raise)))


def test_several_calls_at_once_must_give_what_one_gives():
    import signal
    import time

    @reward("alarmed")
    def alarmed(samples):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return [1.0] * len(samples)

    check_reward(alarmed, threads=False)
    with pytest.raises(AssertionError, match=r"given several calls at once in threads: it raised ValueError: signal "
                                             r"only works in main thread.*if it uses signals, pass threads=False"):
        check_reward(alarmed)

    seen = []

    @reward("shared")
    def shared(samples):
        seen.clear()
        for s in samples:
            seen.append(float(len(s.completion)))
            time.sleep(0.0005)
        return list(seen)

    with pytest.raises(AssertionError, match="several calls at once"):
        check_reward(shared)

    @reward("shared_async")
    async def shared_async(samples):
        seen.clear()
        for s in samples:
            seen.append(float(len(s.completion)))
            await asyncio.sleep(0)
        return list(seen)

    with pytest.raises(AssertionError, match="several calls at once"):
        check_reward(shared_async)
