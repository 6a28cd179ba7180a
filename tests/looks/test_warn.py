"""Warnings come once, after so many steps, and only where they hold."""

import re

import pytest

from rlx.looks.described import DESCRIBED, described
from rlx.looks.warn import RULES, Watch

HEALTHY = {"reward/std": 0.4, "kl/token": 0.01, "length/truncated": 0.0, "policy/entropy": 1.0,
           "policy/clip_fraction": 0.1, "policy/ratio": 1.01, "groups/dead": 0.1, "rollout/logprob_diff": 0.01}


@pytest.mark.parametrize(("change", "says", "steps"), [
    ({"reward/std": 0.0}, "the reward has no variance", 3),
    ({"kl/token": 2.0}, "KL to the reference explodes", 3),
    ({"length/truncated": 1.0}, "all completions are cut", 3),
    ({"policy/entropy": 0.05}, "entropy collapses", 3),
    ({"policy/clip_fraction": 0.0}, "no ratio was clipped in 20 steps", 20),
    ({"groups/dead": 0.7}, "most prompts are dead", 3),
    ({"rollout/logprob_diff": 0.3}, "logprobs differ from the policy's", 3),
])
def test_each_once_when_it_has_held_long_enough(change, says, steps):
    watch = Watch()
    said = [watch.step(HEALTHY)]
    said += [watch.step({**HEALTHY, **change}) for _ in range(2 * steps)]
    assert [i for i, texts in enumerate(said) if texts] == [steps]
    assert says in said[steps][0]
    assert len(said[steps]) == 1


def test_an_interruption_starts_the_count_anew():
    watch = Watch()
    assert not any(watch.step({"reward/std": value}) for value in (0.0, 0.0, 0.3, 0.0, 0.0))


def test_nothing_is_said_of_what_is_not_measured_or_not_finite():
    watch = Watch()
    assert not any(watch.step({"loss/policy": 0.1, "reward/std": None}) for _ in range(30))


def test_a_single_update_a_batch_clips_nothing_and_that_is_fine():
    watch = Watch()
    assert not any(watch.step({"policy/clip_fraction": 0.0, "policy/ratio": 1.0}) for _ in range(30))


def test_every_rule_names_the_setting_to_look_at():
    for rule in RULES:
        assert re.search(r"\b(rollout|train|algo|engine|--algo)[. ](\w+)", rule.says), rule.says


def test_every_rule_looks_at_documented_metrics():
    assert all(described(rule.when.split()[0]) for rule in RULES)
    assert len({one.name for one in DESCRIBED}) == len(DESCRIBED)
