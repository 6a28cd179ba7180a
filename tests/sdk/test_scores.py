"""What a reward may return, and how it is called."""

import asyncio
import fractions
import threading

import numpy as np
import pytest
import torch

from rlx_sdk import Sample, Score
from rlx_sdk.reward import FunctionReward
from rlx_sdk.scores import Caller, ScoreError, check_scores


@pytest.mark.parametrize("result", [
    [1.0, 0.5], (1, 0.5), np.array([1.0, 0.5]), np.array([[1.0], [0.5]]), np.array([1, 0.5], np.float32),
    torch.tensor([1.0, 0.5], requires_grad=True), torch.tensor([[1.0], [0.5]], dtype=torch.bfloat16),
    [torch.tensor(1.0), np.array([0.5])], [True, fractions.Fraction(1, 2)], [Score(1.0), Score(np.float32(0.5))],
])
def test_numbers_of_any_library_become_python_floats(result):
    scores = check_scores(result, 2)
    assert [s.value for s in scores] == [1.0, 0.5]
    assert {type(s.value) for s in scores} == {float}


def test_none_and_parts_stay():
    assert check_scores([None, Score(1.0, {"a": np.float64(2)})], 2) == [None, Score(1.0, {"a": 2.0})]
    assert check_scores([], 0) == []


@pytest.mark.parametrize(("result", "said"), [
    ([1.0], "it gave 1 reward for 8 completions; a list of 8 numbers is wanted"),
    ([1.0] * 9, "it gave 9 rewards for 8 completions"),
    (0.5, "it returned a float (0.5); a list of 8 numbers is wanted, one a completion, in their order"),
    (None, "it returned a NoneType"), (7, "it returned an int (7); a list"),
    ("12345678", "it returned a str"), ({"a": 1}, "it returned a dict"),
    ((x for x in [1.0]), "it returned a generator"),
    (np.zeros((8, 8)), "it returned an array of shape (8, 8)"), (torch.tensor(1.0), "array of shape ()"),
])
def test_a_result_that_fits_no_sample_is_refused_whole(result, said):
    with pytest.raises(ScoreError) as error:
        check_scores(result, 8)
    assert said in str(error.value)


@pytest.mark.parametrize(("value", "said"), [
    (float("nan"), "it gave nan; rewards must be finite"), (np.float32("inf"), "must be finite"),
    (Score(float("-inf")), "must be finite"), (Score(1.0, {"a": float("nan")}), "must be finite"),
    ("1.0", "it gave '1.0' (str); a number is wanted, or None"), ([1.0], "(list)"), ({}, "(dict)"),
    (np.array([1.0, 2.0]), "(ndarray)"), (torch.zeros(2), "(Tensor)"), (1j, "(complex)"), (10**400, "(int)"),
    (Score(None), "(Score)"), (Score(1.0, {"a": "b"}), "(Score)"), (Score(1.0, None), "(Score)"),
])
def test_a_bad_value_stands_in_the_place_of_its_sample(value, said):
    first, bad, last = check_scores([1.0, value, None], 3)
    assert (first, last) == (Score(1.0), None)
    assert isinstance(bad, ScoreError)
    assert said in str(bad)


@pytest.fixture
def caller():
    made = Caller()
    yield made
    made.close()


async def _later(samples):
    await asyncio.sleep(0)
    return threading.current_thread().name


def test_plain_rewards_run_on_the_calling_thread(caller):
    assert caller(FunctionReward(lambda samples: threading.current_thread()), []) is threading.current_thread()


@pytest.mark.parametrize("function", [_later, lambda samples: _later(samples)])
def test_async_rewards_run_on_a_thread_of_their_own(caller, function):
    assert caller(FunctionReward(function), [Sample("p", "c")]) == "rlx-rewards"


def test_async_rewards_work_while_a_loop_is_running(caller):
    async def main():
        return caller(FunctionReward(_later), [])

    assert asyncio.run(main()) == "rlx-rewards"


def test_async_rewards_keep_one_loop_between_calls(caller):
    async def loop(samples):
        return asyncio.get_running_loop()

    assert caller(FunctionReward(loop), []) is caller(FunctionReward(loop), [])


def test_closing_ends_what_is_awaited():
    """Such as the rewards of a batch sampled ahead, when a run is stopped."""
    caller = Caller()
    waited = caller.start(asyncio.Event().wait())
    caller.close()
    assert waited.cancelled()


def test_closing_ends_the_thread_and_may_be_done_twice():
    caller = Caller()
    caller(FunctionReward(_later), [])
    caller.close()
    caller.close()
    assert "rlx-rewards" not in {t.name for t in threading.enumerate()}
