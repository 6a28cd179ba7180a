"""The users' own files, named as they are: ``path/to/R01_bare_float.py:score``, in TRL's style."""

from __future__ import annotations

import asyncio
import json

import pytest

from rlx.data import open_rows
from rlx.functions import find_reward
from rlx.registry import Registry
from rlx.rewards import Provider, RewardPanel
from rlx.spec import RewardSpec
from rlx_sdk import RewardContext, RewardError, Sample

from .conftest import CASES, ROWS

EXPECTED = CASES.parent / "expected/reward"


@pytest.fixture
def run():
    """Scores the case's eight completions with a file's function."""
    made = []

    def score(file, samples=None, **settings):
        case = json.loads((EXPECTED / f"{file[:3]}.json").read_text())
        name = f"{CASES}/files/{file}.py:score"
        entry, own = find_reward(Registry(), name)
        reward = entry.call("build", entry.call("config")(**own), RewardContext())
        made.append(RewardPanel([Provider("case", entry.label, RewardSpec(name=name, **settings), reward)]))
        samples = samples or [Sample(f"prompt {'x' if i % 2 else i}", c) for i, c in enumerate(case["completions"])]
        return made[-1].score(samples, ROWS), case

    yield score
    for panel in made:
        panel.close()


@pytest.mark.parametrize(("file", "said"), [
    ("R01_one_for_all", "it gave 1 reward for 8 completions"), ("R01_one_short", "it gave 3 rewards for 8 completions"),
    ("R01_bare_float", "it returned a float (0.5); a list of 8 numbers is wanted"),
    ("R02_nan_inf", "sample 2 of 8 (data row 12, completion 'bb'): it gave nan"),
    ("R02_nan_inf", "sample 3 of 8 (data row 13, completion 'ccc'): it gave inf"),
    ("R02_nan_inf", "sample 4 of 8 (data row 14, completion 'dddd'): it gave -inf"),
])
def test_what_cannot_be_a_reward_names_the_reward_and_the_sample(run, file, said):
    with pytest.raises(RewardError) as error:
        run(file)
    assert said in str(error.value)
    assert f"{file}.py sha256" in str(error.value)


def test_by_policy_values_that_are_not_finite_are_not_judged(run):
    judged, _ = run("R02_nan_inf", on_error="skip")
    assert (judged.judged, judged.failed) == ([True, False, False, False, *[True] * 4], 3)


def test_none_is_not_judged(run):
    judged, _ = run("R03_none")
    assert judged.judged == [True, False] * 4
    assert run("R03_all_none")[0].judged == [False] * 8


def test_numbers_of_every_kind_are_python_floats(run):
    judged, case = run("R04_numpy")
    assert judged.rewards == case["values"]
    assert {type(value) for value in judged.rewards} == {float}
    assert run("R04_numpy_array")[0].rewards == pytest.approx([len(c) / 10 for c in case["completions"]])


def test_a_function_that_raises_for_the_third_of_a_batch(run):
    """Alone, no sample is the third: so all of them are named together, with the cause and its line."""
    with pytest.raises(RewardError, match=r"all 8 samples together: ValueError: no '####' marker in 'ccc' "
                                          r"\(files/R06_raises_on_one\.py:8\)") as error:
        run("R06_raises_on_one")
    assert isinstance(error.value.__cause__, ValueError)


def test_by_policy_they_are_not_judged_and_counted_up_to_a_set_share(run):
    judged, _ = run("R06_raises_on_one", on_error="skip", max_failed=1.0)
    assert (judged.judged, judged.failed) == ([False] * 8, 8)
    with pytest.raises(RewardError, match="it failed on 8 of its last 8 samples"):
        run("R06_raises_on_one", on_error="skip")


@pytest.mark.parametrize("file", ["R07_async", "R07_async_hidden"])
def test_coroutines_are_awaited_also_in_a_running_loop(run, file):
    judged, case = run(file)
    assert judged.rewards == case["values"]

    async def main():
        return run(file)[0]

    assert asyncio.run(main()).rewards == case["values"]


def test_one_that_never_returns_is_named_with_its_limit_and_its_stack(run):
    with pytest.raises(RewardError, match=r"(?s)reward 'score' \(.*R08_hangs_on_one.*did not return within 0\.3 s\. It "
                                          r"was here:.*time\.sleep\(0\.2\)"):
        run("R08_hangs_on_one", timeout=0.3)


def test_standard_output_stays_rlxs_own(run, capsys):
    import logging

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        assert run("R10_stdout")[0].rewards == [1.0] * 8
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    out, err = capsys.readouterr()
    assert out == ""
    assert "[case_stdout] loaded" in err
    assert "half way" in err


@pytest.mark.parametrize("file", ["R11_alarm_swallowed", "R11_alarm_raises"])
def test_rewards_that_use_alarms_run_where_these_work(run, file):
    judged, case = run(file)
    assert judged.rewards == case["any_way_the_product_calls_it"]


def test_numeric_truth_is_seen_as_it_is(run, tmp_path):
    rows = open_rows(str(CASES.parent / "data/D31_numeric_truth.parquet"), tmp_path)
    seen = [rows[i]["ground_truth"] for i in range(3)]
    case = json.loads((EXPECTED / "R15.json").read_text())
    assert seen == case["ground_truth_seen"]
    samples = [Sample("p", f"it is {t}", row={"ground_truth": t}) for t in seen]
    assert run("R15_numeric_truth", samples)[0].rewards == [1.0] * 3
