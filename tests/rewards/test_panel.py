"""Rewards as a run calls them: what they return, where they fail, and what the spec makes of it."""

import asyncio
import json
import logging
import threading

import numpy as np
import pytest
import torch

from rlx.spec import RewardSpec
from rlx_sdk import RewardError, Sample, Score, reward

from .conftest import CASES, ROWS

LENGTHS = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 1.0, 1.0]


@reward("length")
def length(samples):
    return [float(len(s.completion)) for s in samples]


@reward("parts")
def parts(samples):
    return [Score(1.0, {"a": float(len(s.completion)), "b": 0.0}) for s in samples]


def test_scores_are_summed_by_weight(score, panel, samples):
    judged = score(length, parts, weight=0.5)
    assert judged.rewards == [0.5 * n + 0.5 for n in LENGTHS]
    assert judged.judged == [True] * 8
    assert judged.by_provider == {"length": LENGTHS, "parts": [1.0] * 8}
    assert judged.parts == {"parts/a": LENGTHS, "parts/b": [0.0] * 8}
    assert judged.failed == 0
    assert panel().score(samples, range(8)).judged == [False] * 8
    assert panel(length).score([], []).rewards == []


@pytest.mark.parametrize(("name", "said"), [
    ("one_for_all", "it gave 1 reward for 8 completions; a list of 8 numbers is wanted, one a completion, in their"),
    ("one_short", "it gave 3 rewards for 8 completions"),
    ("bare_float", "it returned a float (0.5); a list of 8 numbers is wanted"),
])
def test_a_wrong_number_of_rewards_is_never_spread(score, case, name, said):
    with pytest.raises(RewardError) as error:
        score(case("R01_wrong_number", name))
    text = str(error.value)
    assert text.startswith(f"reward 'case_{name}' (case-rewards 0.1) failed on\n  all 8 samples together: {said}")
    assert text.endswith("Mend the reward, or set its on_error to 'skip' (not judged) or to a number.")


@pytest.mark.parametrize(("policy", "value"), [("skip", None), (0.25, 0.25)])
def test_a_wrong_number_of_rewards_counts_for_every_sample(score, case, policy, value):
    judged = score(case("R01_wrong_number", "one_for_all"), on_error=policy, max_failed=1)
    assert judged.by_provider == {"case_one_for_all": [value] * 8}
    assert judged.failed == 8


def test_values_that_are_not_finite_are_named_by_sample_and_row(score, case):
    with pytest.raises(RewardError) as error:
        score(case("R02_nan_inf", "nan_inf"))
    for said in ("reward 'case_nan_inf' (case-rewards 0.1) failed on",
                 "sample 2 of 8 (data row 12, completion 'bb'): it gave nan; rewards must be finite numbers",
                 "sample 3 of 8 (data row 13, completion 'ccc'): it gave inf;",
                 "sample 4 of 8 (data row 14, completion 'dddd'): it gave -inf;"):
        assert said in str(error.value)


@pytest.mark.parametrize(("policy", "value"), [("skip", None), (-1.0, -1.0)])
def test_by_policy_they_are_not_judged_or_get_a_value(score, case, policy, value):
    judged = score(case("R02_nan_inf", "nan_inf"), on_error=policy)
    assert judged.by_provider["case_nan_inf"] == [0.5, value, value, value, 0.25, 0.25, 0.25, 0.25]
    assert judged.failed == 3
    assert judged.judged == [True, *[value is not None] * 3, *[True] * 4]
    assert judged.rewards == [0.5, *[value or 0.0] * 3, *[0.25] * 4]


def test_none_means_not_judged(score, case):
    judged = score(case("R03_none", "none"))
    assert judged.judged == [True, False] * 4
    assert judged.by_provider["case_none"] == [1.0, None, 0.0, None, 1.0, None, 1.0, None]
    assert judged.rewards == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert judged.failed == 0
    assert score(case("R03_none", "all_none")).judged == [False] * 8


def test_one_provider_may_judge_what_another_leaves(score, case):
    judged = score(case("R03_none", "none"), length)
    assert judged.judged == [True] * 8
    assert judged.rewards == [a + (b or 0) for a, b in zip(LENGTHS, judged.by_provider["case_none"], strict=True)]


def test_numbers_of_numpy_and_torch_become_python_floats(score, case):
    judged = score(case("R04_numbers", "numpy"))
    assert judged.by_provider["case_numpy"] == [0.25, 1.0, 1.0, 0.5, 1.0, 1.0, float(np.float16(0.1)), 0.75]
    assert {type(v) for v in judged.rewards} == {float}
    assert score(case("R04_numbers", "numpy_array")).rewards == pytest.approx([n / 10 for n in LENGTHS])
    tensors = reward("tensors")(lambda samples: torch.tensor([len(s.completion) for s in samples]))
    assert score(tensors).rewards == LENGTHS
    square = reward("square")(lambda samples: torch.zeros(8, 8))
    with pytest.raises(RewardError, match=r"all 8 samples together: it returned an array of shape \(8, 8\)"):
        score(square)


def test_the_sample_that_raises_is_named_with_row_cause_and_line(score, case):
    with pytest.raises(RewardError) as error:
        score(case("R06_raises_on_one", "raises_on_one"))
    assert ("failed on\n  sample 3 of 8 (data row 13, completion 'ccc'): ValueError: no '####' marker in 'ccc' "
            "(rewards/R06_raises_on_one.py:11)\n") in str(error.value)
    assert isinstance(error.value.__cause__, ValueError)


def test_a_sample_that_raises_is_left_out_by_policy(score, case):
    judged = score(case("R06_raises_on_one", "raises_on_one"), on_error="skip")
    assert judged.by_provider["case_raises_on_one"] == [1.0, 1.0, None, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert judged.judged == [True, True, False, *[True] * 5]
    assert judged.failed == 1


@pytest.mark.parametrize("policy", ["skip", 0.0])
def test_more_than_a_set_share_of_failures_ends_the_run(panel, case, samples, policy):
    made = panel(case("R06_raises_on_one", "raises_on_one"), on_error=policy, max_failed=0.1)
    with pytest.raises(RewardError) as error:
        made.score(samples, ROWS)
    assert str(error.value).startswith("reward 'case_raises_on_one' (case-rewards 0.1) failed on\n  sample 3 of 8 ")
    assert str(error.value).endswith("\nMend the reward, or raise max_failed = 0.1: it failed on 1 of its last 8 "
                                     "samples.")
    assert isinstance(error.value.__cause__, ValueError)
    made = panel(case("R06_raises_on_one", "raises_on_one"), on_error=policy, max_failed=0.125)
    for _ in range(30):  # just the share that is allowed
        assert made.score(samples, ROWS).failed == 1


def test_failures_are_counted_over_the_last_hundred_samples(panel, samples):
    """A few that fail together are no reason to end a run in which thousands went well; half of a hundred are."""
    fails = []

    @reward("down_at_times")
    def down_at_times(samples):
        if fails:
            raise ConnectionError("judge is down")
        return [1.0] * len(samples)

    made = panel(down_at_times, on_error="skip")
    for _ in range(20):
        assert made.score(samples, ROWS).failed == 0
    fails.append(True)
    for _ in range(6):
        assert made.score(samples, ROWS).failed == 8
    with pytest.raises(RewardError, match=r"raise max_failed = 0\.5: it failed on 56 of its last 100 samples"):
        made.score(samples, ROWS)


def test_a_reward_that_ends_the_run_is_not_called_for_every_sample(panel, samples):
    calls = []

    @reward("down")
    def down(samples):
        calls.append(len(samples))
        raise ConnectionError("judge is down")

    with pytest.raises(RewardError, match=r"sample 1 of 8 \(data row 11, .*ConnectionError: judge is down"):
        panel(down).score(samples, ROWS)
    assert calls == [8, 1]


def test_a_reward_that_fails_on_samples_together_only_says_so(score):
    @reward("small_batches")
    def small_batches(samples):
        if len(samples) > 4:
            raise MemoryError("too many")
        return [1.0] * len(samples)

    with pytest.raises(RewardError, match="all 8 samples together: MemoryError: too many"):
        score(small_batches)
    assert score(small_batches, on_error="skip", max_failed=1).failed == 8


def test_many_failures_are_counted(score):
    with pytest.raises(RewardError, match=r"(?s)sample 3 of 8.*… and 5 more\nMend"):
        score(reward("text")(lambda samples: ["good"] * len(samples)))


def test_long_completions_are_cut_in_messages(panel):
    with pytest.raises(RewardError) as error:
        panel(reward("nan")(lambda samples: [float("nan")] * len(samples))).score([Sample("p", "x" * 10_000)], [1])
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("name", ["declared", "hidden"])
def test_async_rewards_are_awaited(score, case, name):
    judged = score(case("R07_async", name))
    assert judged.rewards == LENGTHS


@pytest.mark.parametrize("name", ["declared", "hidden"])
def test_async_rewards_are_awaited_while_a_loop_is_running(score, case, name):
    async def main():
        return score(case("R07_async", name))

    assert asyncio.run(main()).rewards == LENGTHS


def test_async_rewards_fail_like_others(score):
    @reward("later")
    async def later(samples):
        await asyncio.sleep(0)
        raise TimeoutError("no answer")

    with pytest.raises(RewardError, match=r"reward 'later' .*\n  sample 1 of 8 .*TimeoutError: no answer \("):
        score(later)


@pytest.mark.parametrize("name", ["swallowed", "raises"])
def test_rewards_run_where_signals_work(score, case, name):
    assert score(case("R11_alarm", name)).rewards == [1.0] * 8


def test_what_a_reward_prints_goes_to_stderr(score, capsys):
    @reward("noisy")
    def noisy(samples):
        print({"prompt": samples[0].prompt})
        return [1.0] * len(samples)

    @reward("noisy_later")
    async def noisy_later(samples):
        print("later")
        return [1.0] * len(samples)

    score(noisy, noisy_later)
    out, err = capsys.readouterr()
    assert out == ""
    assert "prompt 0" in err
    assert "later" in err


def test_rewards_see_the_rows_values(panel, case):
    samples = [Sample("6*12?", text, row={"ground_truth": 72}) for text in ("it is 72", "it is 71")]
    assert panel(case("R15_numeric_truth", "numeric_truth")).score(samples, [1, 2]).rewards == [1.0, 0.0]


class _Closing:
    """A reward that notes when it is closed."""

    def __init__(self, log, name, error=None):
        self.log, self.name, self.error = log, name, error

    def score(self, samples):
        return [1.0] * len(samples)

    def close(self):
        self.log.append(self.name)
        print("bye")
        if self.error:
            raise self.error


def test_closing_reaches_every_provider(capsys):
    from rlx.rewards import Provider, RewardPanel

    log = []
    providers = [Provider(n, f"'{n}' (case 0.1)", RewardSpec(name=n), _Closing(log, n, error))
                 for n, error in (("a", None), ("b", OSError("gone")), ("c", None))]
    with pytest.raises(RewardError, match=r"reward 'b' \(case 0\.1\) could not be closed: OSError: gone"):
        RewardPanel(providers).close()
    assert sorted(log) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "bye\n" * 3)


def test_closing_ends_the_thread_of_async_rewards(panel, case, samples):
    made = panel(case("R07_async", "declared"))
    made.score(samples, range(8))
    assert "rlx-rewards" in {t.name for t in threading.enumerate()}
    made.close()
    assert "rlx-rewards" not in {t.name for t in threading.enumerate()}


def test_scores_may_be_normalised_before_they_are_summed(case):
    """M39: a reward of large scale drowns a small one in a sum; normalised first, both count."""
    from rlx import ops
    from rlx.rewards import Provider, RewardPanel, measure

    def table(name, values):
        return Provider(name, name, RewardSpec(name=name), _Fixed(values))

    expected = json.loads((CASES.parent / "math/M39_two_rewards.json").read_text())
    a, b = (expected["inputs"][f"reward_{which}"] for which in "ab")
    samples = [Sample("p", str(i)) for i in range(4)]

    def panel(normalised, first=a):
        return RewardPanel([table("a", first), table("b", b)], normalised).score(samples, range(4), [7] * 4)

    each = panel(True)
    assert each.rewards == pytest.approx(expected["expected"]["normalise_then_sum"], abs=1e-5)
    assert each.totals == [x + y for x, y in zip(a, b, strict=True)] == panel(False).rewards
    whole = ops.normalised(torch.tensor(panel(False).rewards).double(), torch.zeros(4), 1e-4)
    assert whole.tolist() == pytest.approx(expected["expected"]["sum_then_normalise"], abs=1e-5)
    partly = panel(True, [None, 0.0, None, 1.0])
    assert partly.judged == [True] * 4
    assert partly.rewards[0] == pytest.approx(0.866, abs=1e-3)
    assert RewardPanel([table("a", [None] * 4)], True).score(samples, range(4), [7] * 4).judged == [False] * 4
    figures = measure(each, [7, 7, 8, 8])
    assert figures["reward/a/zero_variance"].total == 0
    assert measure(panel(False, [1.0, 1.0, 0.0, None]), [7, 7, 8, 8])["reward/a/zero_variance"].total == 1
    assert (figures["reward/b/min"].value, figures["reward/b/max"].value) == (0.0, 10.0)


class _Fixed:
    """The same scores each time."""

    def __init__(self, values):
        self.values = values

    def score(self, samples):
        return self.values

    def close(self):
        pass


def test_abstained_and_failed_are_told_apart(score, case):
    from rlx.rewards import measure

    judged = score(case("R02_nan_inf", "nan_inf"), case("R03_none", "none"), on_error="skip")
    figures = measure(judged, range(8))
    shares = {name: figures[f"reward/{name}"].total / 8 for name in (
        "case_nan_inf/failed", "case_nan_inf/abstained", "case_none/failed", "case_none/abstained")}
    assert list(shares.values()) == [3 / 8, 0.0, 0.0, 4 / 8]


def test_the_whole_trace_is_logged(score, case, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("rlx"), "handlers", [caplog.handler])
    score(case("R06_raises_on_one", "raises_on_one"), on_error="skip")
    [record] = caplog.records
    assert record.getMessage() == "reward 'case_raises_on_one' (case-rewards 0.1) failed on data row 13"
    assert "ValueError: no '####' marker" in caplog.text
    assert "Traceback" in caplog.text


def test_async_rewards_begin_while_others_are_still_sampled(panel, samples):
    calls = []

    @reward("early")
    async def early(samples):
        calls.append(len(samples))
        await asyncio.sleep(0)
        return [float(len(s.completion)) for s in samples]

    made, groups = panel(early, length), [5, 5, 3, 3, 4, 4, 9, 9]
    for group, part in ((9, samples[6:]), (5, samples[:2]), (3, samples[2:4])):
        made.start(group, part)
    judged = made.score(samples, ROWS, groups)
    assert judged.by_provider["early"] == LENGTHS
    assert sorted(calls) == [2, 2, 2, 2]
    assert made.score(samples, ROWS, groups).by_provider["early"] == LENGTHS


def test_a_wrong_number_for_one_prompt_names_its_samples(panel, samples):
    """What a reward returned for the second prompt fits none of its two samples; the first prompt's are fine."""
    @reward("short")
    async def short(part):
        return [1.0] * (2 if part[0] is samples[0] else 1)

    made = panel(short)
    made.start(5, samples[:2])
    made.start(3, samples[2:4])
    with pytest.raises(RewardError, match=r"failed on\n  2 of 4 \(data row 13 and on\) samples together: it gave 1 re"):
        made.score(samples[:4], ROWS[:4], [5, 5, 3, 3])


def test_an_async_reward_that_takes_too_long_has_failed(panel, samples):
    @reward("slow")
    async def slow(samples):
        await asyncio.sleep(0 if samples[0].completion == "a" else 30)
        return [1.0] * len(samples)

    made = panel(slow, on_error="skip", timeout=0.5, max_failed=1)
    for i, sample in enumerate(samples):
        made.start(i, [sample])
    judged = made.score(samples, ROWS)
    assert judged.judged == [True] + [False] * 7
    with pytest.raises(RewardError, match=r"(?s)data row 12, completion 'bb'\): TimeoutError: no answer within 0\.1 s"):
        panel(slow, timeout=0.1).score(samples[1:2], ROWS[1:])


def test_a_stuck_reward_ends_the_run_with_its_stack(panel, samples):
    from rlx.functions import find_reward
    from rlx.registry import Registry

    entry, _ = find_reward(Registry(), f"{CASES}/files/R08_hangs_on_one.py:score")
    provider = panel(reward("case_hangs")(entry.plugin.build(entry.plugin.config()(), None).score), timeout=0.3,
                     on_error="skip")
    with pytest.raises(RewardError) as error:
        provider.score(samples, ROWS)
    for said in ("reward 'case_hangs' (case-rewards 0.1), given 8 samples, did not return within 0.3 s. It was here:",
                 "R08_hangs_on_one.py", "time.sleep(0.2)", "set isolate: process"):
        assert said in str(error.value)
