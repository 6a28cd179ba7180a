"""``rlx.train``: what its keywords become, without training."""

from pathlib import Path

import pytest

import rlx
from rlx_sdk import SpecError


@pytest.fixture
def planned(monkeypatch):
    """Calls ``rlx.train`` and gives the plan it would run."""
    plans = []
    monkeypatch.setattr("rlx.api.run", lambda plan, view: plans.append(plan))

    def call(*arguments, **keywords):
        rlx.train(*arguments, quiet=True, **keywords)
        return plans[-1]

    return call


def constant(samples):
    """1 for all."""
    return [1.0] * len(samples)


def test_a_function_is_a_reward_under_its_own_name(planned):
    plan = planned("ppo", constant)
    assert [(r.name, r.entry.package) for r in plan.rewards] == [("constant", "this program")]


def test_a_function_may_have_the_name_of_an_installed_reward(planned):
    def polite_length(samples):
        return [0.0] * len(samples)

    [chosen] = planned("ppo", polite_length).rewards
    assert chosen.entry.package == "this program"


def test_names_weights_functions_and_mappings_together(planned):
    plan = planned("ppo", ["polite_length=0.5", {"name": constant, "weight": 2.0}])
    assert [(r.name, s.weight) for r, s in zip(plan.rewards, plan.spec.rewards, strict=True)] == [
        ("polite_length", 0.5), ("constant", 2.0)]


def test_paths_may_be_paths(planned, tmp_path):
    plan = planned("sft", data=tmp_path / "x.jsonl", run={"dir": tmp_path, "name": "a"}, steps=2)
    assert (plan.spec.data.path, plan.spec.run.dir) == (str(tmp_path / "x.jsonl"), str(tmp_path))
    assert plan.spec.train.steps == 2


def test_several_files_may_be_given(planned, tmp_path):
    plan = planned("sft", data=[tmp_path / "x.jsonl", "y.jsonl"])
    assert plan.spec.data.path == [str(tmp_path / "x.jsonl"), "y.jsonl"]


def test_home_is_written_out(planned):
    assert planned("sft", run={"dir": "~/runs"}).spec.run.dir == str(Path("~/runs").expanduser())


@pytest.mark.parametrize(("keywords", "said"), [
    ({"reward": constant, "rewards": ["polite_length"]}, "reward and rewards are both given"),
    ({"reward": 5}, "reward 5 is neither a name, nor a function of the samples, nor a mapping"),
    ({"reward": lambda: [1.0]}, r"rewards\[0\]\.options'?: the function <lambda>\(\) is none of f\(samples\), TRL's"),
    ({"reward": "polite_lenght"}, "no reward 'polite_lenght'. Did you mean 'polite_length'?"),
])
def test_rewards_that_cannot_be(planned, keywords, said):
    with pytest.raises(SpecError, match=said):
        planned("ppo", **keywords)
