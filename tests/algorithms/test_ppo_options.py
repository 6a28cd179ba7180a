import json
import math
from functools import partial

import pytest
import torch
from pydantic import ValidationError

from rlx_plugins.ppo import PPO, PPOConfig

numbers = partial(torch.tensor, dtype=torch.float64)


def ppo(**options):
    return PPO(PPOConfig.model_validate(options))


def per_token(batch, name):
    """The numbers of the completions, without the prompt."""
    return batch.sequences["completion"].per_token[name][:, 1:]


# --- what moves between steps ---


def test_the_policy_waits_for_the_critic():
    algorithm = ppo(critic_warmup=2)
    assert [algorithm.trains("policy", step) for step in range(4)] == [False, False, True, True]
    assert all(algorithm.trains("critic", step) for step in range(4))


def test_kl_is_measured_a_completion_and_a_token(rollouts, context, lookup, grid):
    data = rollouts([[1, 1, 1], [1], [1]], [[-1, -1, -1], [-1], [-1]], [0, 0, None])
    table = lookup(torch.zeros(3, 4).double())
    reference = lookup(grid([[-2, -3, -1], [0], [50]]))
    metrics = ppo(kl={"coef": 0.3, "estimator": "k2"}).prepare(data, context(critic=table, reference=reference)).metrics
    found = {name: float(metrics[name].total) / float(metrics[name].count)
             for name in ("kl/mean", "kl/token", "kl/coef")}
    assert found == pytest.approx({"kl/mean": (3 - 1) / 2, "kl/token": 2 / 4, "kl/coef": 0.3})


def test_gaps_beyond_the_clamp_are_counted(rollouts, context, lookup, grid):
    data = rollouts([[1, 1, 1, 1]], [[-1, -30, -1, -1]], [0])
    ctx = context(critic=lookup(torch.zeros(1, 5).double()), reference=lookup(grid([[-1, -1, -20, -40]])))
    found = ppo(kl={"coef": 0.1, "estimator": "k3"}).prepare(data, ctx)
    clamped = found.metrics["kl/clamped"]
    assert float(clamped.total / clamped.count) == 0.5
    assert torch.isfinite(per_token(found, "advantages")).all()
    assert "kl/clamped" not in ppo(kl={"coef": 0.1, "estimator": "k1"}).prepare(data, ctx).metrics


def test_the_kl_coefficient_follows_its_target(case):
    m11 = case("M11_adaptive_kl")
    inputs = m11["inputs"]
    algorithm = ppo(kl={"coef": inputs["beta0"], "target": inputs["target"], "horizon": inputs["horizon"]})
    series = []
    for kl in inputs["observed_kl"]:
        algorithm.after_step({"kl/mean": kl, "completions": inputs["samples_per_step"]})
        series.append(algorithm.kl_coef)
    assert series == pytest.approx(m11["expected"]["beta_after_each_step"], abs=m11["tolerance"])


def test_a_moved_coefficient_is_used_and_survives_a_checkpoint(rollouts, context, lookup, grid):
    options = {"gamma": 0.0, "whiten_advantages": False, "kl": {"coef": 0.2, "target": 6, "horizon": 10_000}}
    first, resumed = ppo(**options), ppo(**options)
    first.after_step({"kl/mean": 60.0, "completions": 256.0})
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    ctx = context(critic=lookup(torch.zeros(1, 2).double()), reference=lookup(grid([[-2]])))
    for _ in range(2):  # preparing changes no state: it is done for evaluation too
        found = resumed.prepare(rollouts([[1]], [[-1]], [0]), ctx)
        assert per_token(found, "advantages").item() == pytest.approx(-0.201024, abs=1e-9)
    assert resumed.state_dict() == first.state_dict() != ppo(**options).state_dict()


@pytest.mark.parametrize(("kl", "metrics"), [
    ({"coef": 0.2}, {"kl/mean": 60.0, "completions": 256.0}),
    ({"coef": 0.2, "target": 6, "horizon": 10_000}, {"completions": 0.0}),
    ({"coef": 0.2, "target": 6, "horizon": 10_000}, {"kl/mean": math.nan, "completions": 256.0}),
])
def test_the_coefficient_stays_without_a_target_or_without_a_measurement(kl, metrics):
    algorithm = ppo(kl=kl)
    algorithm.after_step(metrics)
    assert algorithm.kl_coef == 0.2


# --- options ---


@pytest.mark.parametrize(("options", "said"), [
    ({"dual_clip": 1.0}, "greater than 1"),
    ({"dual_clip": 0.5}, "greater than 1"),
    ({"clip_low": 0.0}, "greater than 0"),
    ({"clip_low": 1.0}, "less than 1"),
    ({"clip_high": 0.0}, "greater than 0"),
    ({"value_clip": 0.0}, "greater than 0"),
    ({"gamma": 1.1}, "less than or equal to 1"),
    ({"lam": -0.1}, "greater than or equal to 0"),
    ({"importance": {"limit": 0.0}}, "greater than 0"),
    ({"entropy_coef": float("nan")}, "finite"),
    ({"critic_warmup": -1}, "greater than or equal to 0"),
    ({"aggregation": "token_mean"}, "'token-mean', 'seq-mean-token-sum'"),
    ({"clip": 0.2}, "Extra inputs"),
    ({"gamma": "1.0"}, "valid number"),
    ({"kl": {"coef": -0.1}}, "greater than or equal to 0"),
    ({"kl": {"estimator": "k4"}}, "'k1', 'k2' or 'k3'"),
    ({"kl": {"target": 6.0}}, "target and horizon belong together"),
    ({"kl": {"horizon": 100.0}}, "target and horizon belong together"),
    ({"kl": {"target": 0.0, "horizon": 100.0}}, "greater than 0"),
    ({"kl": {"target": 6.0, "horizon": 0.0}}, "greater than 0"),
    ({"kl": {"coef": 0.0, "estimator": "k3"}}, "estimator can have no effect"),
    ({"kl": {"coef": 0.0, "where": "loss"}}, "where can have no effect"),
    ({"kl": {"coef": 0.0, "target": 6.0, "horizon": 100.0}}, "horizon, target can have no effect"),
])
def test_options_that_cannot_work_are_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        PPOConfig.model_validate(options)


def test_the_defaults_are_the_documented_ones():
    o = PPOConfig()
    assert (o.clip_low, o.clip_high, o.value_clip, o.gamma, o.lam) == (0.2, 0.2, 0.2, 1.0, 0.95)
    assert (o.kl.coef, o.kl.estimator, o.kl.where, o.importance.limit, o.dual_clip) == (0.01, "k1", "reward", 2, None)
