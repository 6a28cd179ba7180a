import math
from functools import partial

import pytest
import torch

from rlx_plugins.ppo import PPO, PPOConfig
from rlx_sdk import Batch, Mean, TrainingError

numbers = partial(torch.tensor, dtype=torch.float64)
assert_close = partial(torch.testing.assert_close, atol=1e-6, rtol=0)
PLAIN = {"kl": {"coef": 0.0}, "whiten_advantages": False}


def ppo(**options):
    return PPO(PPOConfig.model_validate(options))


@pytest.fixture
def batch(sequences):
    """A batch as `prepare` would give it, with these numbers a token."""

    def make(masks, **per_token):
        seqs = sequences(masks, **per_token)
        tokens = seqs.mask.sum(1).double()
        return Batch({"completion": seqs}, {"policy": tokens, "critic": tokens})

    return make


def per_token(batch, name):
    """The numbers of the completions, without the prompt."""
    return batch.sequences["completion"].per_token[name][:, 1:]


# --- the policy's loss ---


@pytest.mark.parametrize("name", ["M07_ppo_clip", "M08_clip_higher", "M15_ppo_dual_clip"])
def test_clipped_losses_and_fractions(case, batch, context, lookup, grid, objective, name):
    inputs, expected = case(name)["inputs"], case(name)["expected"]
    rows = {key: grid([inputs[key][:7], inputs[key][7:]]) for key in ("logp_new", "logp_old", "advantages")}
    made = batch([[1] * 7, [1] * 3], old_logprobs=rows["logp_old"], advantages=rows["advantages"])
    ctx = context(policy=lookup(rows["logp_new"]))
    algorithm = ppo(**PLAIN, clip_low=inputs["clip_low"], clip_high=inputs["clip_high"],
                    dual_clip=inputs["dual_clip_c"])
    loss = objective(algorithm, "policy", made, ctx).item()
    assert loss == pytest.approx(expected["mean_loss"], abs=1e-6)
    for wrong in case(name).get("known_wrong_values", {}).values():
        assert loss != pytest.approx(wrong, abs=1e-3)
    metrics = algorithm.loss("policy", made, ctx).metrics
    for metric, fraction in (("clip_fraction", "clip_fraction"), ("dual_clip_fraction", "dual_clip_fraction")):
        found = metrics[f"policy/{metric}"]
        assert float(found.total / found.count) == pytest.approx(expected[fraction])


@pytest.mark.parametrize(("mode", "key"), [
    ("token-mean", "token_mean"), ("seq-mean-token-mean", "seq_mean_token_mean"),
    ("seq-mean-token-sum", "seq_mean_token_sum"), ("seq-mean-token-sum-norm", "dr_grpo_constant"),
])
def test_the_loss_is_one_number_for_every_split(case, rollouts, context, lookup, grid, objective, mode, key):
    """At ratio 1 the loss of a token is −A, and with γ = 0 and no reward A is minus what the critic says."""
    m10 = case("M10_aggregation_invariance")
    losses = m10["inputs"]["per_token_losses"]
    data = rollouts([[1] * len(row) for row in losses], [[-1.0] * len(row) for row in losses], [0, 0, 0, 0])
    table = lookup(torch.full((4, 7), -1.0).double().requires_grad_())
    ctx = context(policy=table, critic=lookup(grid(losses)), max_completion=m10["inputs"]["max_response_length"])
    algorithm = ppo(**PLAIN, gamma=0.0, aggregation=mode)
    made = algorithm.prepare(data, ctx)
    gradients = []
    for name, split in m10["inputs"]["splits"].items():
        loss = objective(algorithm, "policy", made, ctx, split)
        assert loss.item() == pytest.approx(m10["expected"]["every_split_gives"][key], abs=1e-6)
        wrong = m10["known_wrong_values"]["mean_of_micro_batch_means"][name].get(key)
        if wrong is not None and wrong != m10["expected"]["every_split_gives"][key]:
            assert loss.item() != pytest.approx(wrong, abs=1e-3)
        gradients.append(torch.autograd.grad(loss, table.table)[0])
    for gradient in gradients:
        assert gradient.abs().sum() > 0
        assert_close(gradient, gradients[0])


def test_a_single_update_uses_the_current_logprobs(batch, context, lookup, grid):
    """The ratio is 1 whatever the batch says, and the gradient is −A."""
    made = batch([[1, 1]], old_logprobs=grid([[-7, -9]]), advantages=grid([[0.5, -2]]))
    table = grid([[-1, -2]]).requires_grad_()
    loss = ppo(**PLAIN).loss("policy", made, context(policy=lookup(table), single_update=True))
    loss.rows.sum().backward()
    assert_close(loss.rows, numbers([0.75]))
    assert_close(table.grad[:, 1:], numbers([[-0.25, 1]]))
    several = ppo(**PLAIN).loss("policy", made, context(policy=lookup(table), single_update=False))
    assert_close(several.rows, numbers([(-0.5 * 1.2 + 2 * math.exp(7)) / 2]))


def test_rollouts_that_are_not_exact_are_weighted(case, rollouts, context, lookup, objective):
    m52 = case("M52_rollout_correction")
    data = rollouts([[1] * 80], [[-1.02] * 80], [1])
    table = lookup(torch.full((1, 81), -1.0).double())
    ctx = context(policy=table, critic=lookup(torch.zeros(1, 81).double()), exact_rollouts=False)
    algorithm = ppo(**PLAIN, lam=1.0, importance={"limit": m52["inputs"]["C"]})
    made = algorithm.prepare(data, ctx)
    assert table.calls == 1
    assert_close(per_token(made, "old_logprobs"), torch.full((1, 80), -1.0).double())
    assert_close(per_token(made, "importance"), torch.full((1, 80), m52["expected"]["token_weights_all"]).double())
    loss = objective(algorithm, "policy", made, ctx).item()
    assert loss == pytest.approx(-m52["expected"]["token_weights_all"], abs=1e-6)


def test_importance_is_truncated_token_by_token(rollouts, context, lookup, grid):
    data = rollouts([[1, 1, 1]], [[-3, -1, -0.5]], [1])
    ctx = context(policy=lookup(grid([[-1, -1, -1]])), critic=lookup(torch.zeros(1, 4).double()),
                  exact_rollouts=False)
    found = ppo(**PLAIN).prepare(data, ctx)
    assert_close(per_token(found, "importance"), numbers([[2, 1, 0.60653066]]))
    measured = {name: metric.total / metric.count for name, metric in found.metrics.items() if "rollout" in name}
    kl = (math.exp(2) - 1 - 2 + math.exp(-0.5) - 1 + 0.5) / 3
    assert measured == pytest.approx({"rollout/logprob_diff": 2.5 / 3, "rollout/kl": kl,
                                      "rollout/is_weight": 3.60653066 / 3, "rollout/is_beyond": 1 / 3})
    off = ppo(**PLAIN, importance={"level": None}).prepare(data, ctx)
    assert "importance" not in off.sequences["completion"].per_token
    assert "rollout/kl" in off.metrics
    step = {"completions": 1.0, "kl/mean": 0.0, "rollout/logprob_diff": measured["rollout/logprob_diff"]}
    with pytest.raises(TrainingError, match=r"differ by 0.83 a token from the policy's .* = 0.5"):
        ppo(**PLAIN).check(step)
    ppo(**PLAIN, importance={"max_logprob_diff": 0.9}).check(step)


def test_a_single_update_passes_the_policy_once(rollouts, context, lookup, grid, objective):
    """Its own pass is the old policy's: weights, metrics and loss are what they are with old logprobs made before."""
    data = rollouts([[1, 1, 1], [1]], [[-3, -1, -0.5], [-2]], [1, 0])
    options = {"whiten_advantages": False, "kl": {"coef": 0.1, "where": "loss", "estimator": "k3"}}
    outcomes = {}
    for single in (True, False):
        table = lookup(grid([[-1, -1, -1], [-2.5]]))
        ctx = context(policy=table, critic=lookup(torch.zeros(2, 4).double()), exact_rollouts=False,
                      reference=lookup(grid([[-1.5, -1, -1], [-2]])), single_update=single)
        algorithm = ppo(**options)
        made = algorithm.prepare(data, ctx)
        loss = algorithm.loss("policy", made, ctx)
        assert table.calls == (1 if single else 2)
        assert ("old_logprobs" in loss.per_token) == single
        means = {**made.metrics, **loss.metrics}
        outcomes[single] = (loss.rows.tolist(), {name: float(m.total / m.count) for name, m in means.items()
                                                 if name.startswith(("rollout/", "kl/"))})
        assert objective(algorithm, "policy", made, ctx).isfinite()
    assert outcomes[True] == outcomes[False]
    assert {"rollout/logprob_diff", "rollout/is_weight", "kl/mean", "kl/clamped"} <= outcomes[True][1].keys()


def test_rollouts_drawn_otherwise_are_measured_by_the_policy_itself(rollouts, context, lookup, grid):
    """As an evaluation at another temperature does: the sampler's logprobs are then left out."""
    data = rollouts([[1, 1]], [[-3, -1]], [1])
    del data.seqs.per_token["rollout_logprobs"]
    for exact in (True, False):
        ctx = context(policy=lookup(grid([[-1, -2]])), critic=lookup(torch.zeros(1, 3).double()), exact_rollouts=exact)
        found = ppo(**PLAIN).prepare(data, ctx)
        assert_close(per_token(found, "old_logprobs"), numbers([[-1, -2]]))
        assert "importance" not in found.sequences["completion"].per_token


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_loss(case, rollouts, context, lookup, grid, objective, estimator):
    m05 = case("M05_kl_k1_k2_k3")
    logprobs = m05["inputs"]["logp"]
    table = grid([logprobs]).requires_grad_()
    ctx = context(policy=lookup(table), critic=lookup(torch.zeros(1, 6).double()),
                  reference=lookup(grid([m05["inputs"]["ref_logp"]])))
    algorithm = ppo(whiten_advantages=False, kl={"coef": 0.5, "where": "loss", "estimator": estimator})
    made = algorithm.prepare(rollouts([m05["inputs"]["mask"]], [logprobs], [0]), ctx)
    assert per_token(made, "advantages").abs().sum() == 0  # the KL is in the loss and not in the reward too
    loss = objective(algorithm, "policy", made, ctx)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * m05["expected"]["masked_mean"][estimator], abs=1e-6)
    assert_close(table.grad[0, 1:5], 0.5 / 4 * numbers(m05["expected"]["grad_wrt_logp"][estimator][:4]))
    assert table.grad[0, 5] == 0


def test_kl_in_the_reward_is_not_in_the_loss_too(rollouts, context, lookup, grid, objective):
    data = rollouts([[1, 1]], [[-1, -2]], [0.0])
    table = grid([[-1, -2]]).requires_grad_()
    ctx = context(policy=lookup(table), critic=lookup(torch.zeros(1, 3).double()), reference=lookup(grid([[-3, -3]])))
    algorithm = ppo(gamma=0.0, whiten_advantages=False, kl={"coef": 0.5, "where": "reward"})
    loss = objective(algorithm, "policy", algorithm.prepare(data, ctx), ctx)
    loss.backward()
    assert loss.item() == pytest.approx((1.0 + 0.5) / 2)  # −A alone, A = −0.5·d
    assert_close(table.grad[:, 1:], numbers([[0.5, 0.25]]))


def test_a_moved_coefficient_acts_in_the_loss(rollouts, context, lookup, grid, objective):
    data = rollouts([[1, 1]], [[-1, -2]], [0.0])
    ctx = context(policy=lookup(grid([[-1, -2]])), critic=lookup(torch.zeros(1, 3).double()),
                  reference=lookup(grid([[-3, -3]])))
    algorithm = ppo(kl={"coef": 0.2, "where": "loss", "target": 6, "horizon": 10_000})
    made = algorithm.prepare(data, ctx)
    assert objective(algorithm, "policy", made, ctx).item() == pytest.approx(0.2 * 1.5, abs=1e-9)
    algorithm.after_step({"kl/mean": 60.0, "completions": 256.0})
    assert objective(algorithm, "policy", made, ctx).item() == pytest.approx(0.201024 * 1.5, abs=1e-9)


def test_the_entropy_bonus_lowers_the_loss(batch, context, lookup, grid, objective):
    made = batch([[1, 1], [1]], old_logprobs=grid([[-1, -1], [-1]]), advantages=grid([[0, 0], [0]]))
    entropy = grid([[1, 2], [6]]).requires_grad_()
    ctx = context(policy=lookup(grid([[-1, -1], [-1]]), entropy))
    algorithm = ppo(**PLAIN, entropy_coef=0.1)
    loss = objective(algorithm, "policy", made, ctx)
    loss.backward()
    assert loss.item() == pytest.approx(-0.3, abs=1e-6)
    assert_close(entropy.grad[made.sequences["completion"].mask], numbers([-0.1 / 3] * 3))
    found = algorithm.loss("policy", made, ctx).metrics["policy/entropy"]
    assert float(found.total.detach() / found.count) == 3


# --- the critic's loss ---


@pytest.mark.parametrize(("clip", "expected"), [(0.5, 0.845), (0.2, 1.28), (None, 0.5)])
def test_the_value_loss_is_a_mean_over_tokens(batch, context, lookup, grid, objective, clip, expected):
    """Two tokens have the golden error, one has none."""
    made = batch([[1, 1], [1]], old_values=grid([[0.2, 0.2], [3]]), returns=grid([[2, 2], [3]]))
    ctx = context(critic=lookup(grid([[1, 1], [3]])))
    for split in ([[0, 1]], [[0], [1]]):
        loss = objective(ppo(**PLAIN, value_clip=clip), "critic", made, ctx, split)
        assert loss.item() == pytest.approx(expected * 2 / 3, abs=1e-6)


def test_metrics_are_sums_and_counts(batch, context, lookup, grid):
    """So that the trainer can add them over micro-batches."""
    made = batch([[1, 1, 1], [1]], old_logprobs=grid([[-1, -1, -1], [-1]]), advantages=grid([[1, 1, 1], [1]]),
                 old_values=grid([[0, 0, 0], [0]]), returns=grid([[1, 2, 3], [10]]))
    ctx = context(policy=lookup(grid([[-1, -0.5, -1], [-1]])), critic=lookup(grid([[4, 5, 6], [1]])))
    for role in ("policy", "critic"):
        whole = ppo(**PLAIN).loss(role, made, ctx).metrics
        parts = [ppo(**PLAIN).loss(role, made[torch.tensor([row])], ctx).metrics for row in (0, 1)]
        for name, metric in whole.items():
            assert isinstance(metric, Mean)
            assert float(metric.total) == pytest.approx(sum(float(part[name].total) for part in parts))
            assert float(metric.count) == sum(float(part[name].count) for part in parts) == 4
    assert float(whole["critic/value"].total) == 16
    assert float(whole["critic/return"].total) == 16
