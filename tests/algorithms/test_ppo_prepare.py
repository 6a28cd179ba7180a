from functools import partial

import pytest
import torch

from rlx_plugins.ppo import PPO, PPOConfig, needs

numbers = partial(torch.tensor, dtype=torch.float64)
assert_close = partial(torch.testing.assert_close, atol=1e-6, rtol=0)
PLAIN = {"kl": {"coef": 0.0}, "whiten_advantages": False}


def ppo(**options):
    return PPO(PPOConfig.model_validate(options))


def per_token(batch, name):
    """The numbers of the completions, without the prompt."""
    return batch.sequences["completion"].per_token[name][:, 1:]


# --- rewards, advantages, returns ---


@pytest.mark.parametrize(("gamma", "lam", "mask", "advantages", "returns"), [
    (1.0, 1.0, [1, 1, 1, 1], [0.9, 0.8, 0.7, 0.6], [1, 1, 1, 1]),
    (0.99, 0.95, [1, 1, 1, 1], [0.77329043, 0.71801215, 0.6603, 0.6], [0.87329043, 0.91801215, 0.9603, 1]),
    (0.99, 0.95, [1, 0, 1, 1], [0.81801215, 0, 0.6603, 0.6], [0.91801215, 0, 0.9603, 1]),
])
def test_a_score_becomes_advantages(rollouts, context, lookup, grid, gamma, lam, mask, advantages, returns):
    data = rollouts([mask], [[-1, -1, -1, -1]], [1])
    ctx = context(critic=lookup(grid([[0.1, 0.2, 0.3, 0.4]])))
    found = ppo(**PLAIN, gamma=gamma, lam=lam).prepare(data, ctx)
    assert_close(per_token(found, "advantages"), numbers([advantages]))
    assert_close(per_token(found, "returns"), numbers([returns]))


def test_advantages_are_whitened_and_returns_are_not(rollouts, context, lookup, grid):
    data = rollouts([[1, 1, 1, 1]], [[-1, -1, -1, -1]], [1])
    ctx = context(critic=lookup(grid([[0.1, 0.2, 0.3, 0.4]])))
    found = ppo(kl={"coef": 0}, gamma=0.99).prepare(data, ctx)
    assert_close(per_token(found, "advantages"), numbers([[1.14494426, 0.40374849, -0.37008174, -1.17861101]]))
    assert_close(per_token(found, "returns"), numbers([[0.87329043, 0.91801215, 0.9603, 1]]))


def test_whitening_takes_the_batch_of_all_ranks(rollouts, context, lookup, grid):
    """Two ranks with the same rollouts: 8 tokens instead of 4, so the variance divides by 7 and not by 3."""
    data = rollouts([[1, 1, 1, 1]], [[-1, -1, -1, -1]], [1])
    ctx = context(critic=lookup(grid([[0.1, 0.2, 0.3, 0.4]])), all_sum=lambda tensor: tensor * 2)
    found = ppo(kl={"coef": 0}, gamma=0.99).prepare(data, ctx)
    white = numbers([[1.14494426, 0.40374849, -0.37008174, -1.17861101]])
    assert_close(per_token(found, "advantages"), white * (7 / 6) ** 0.5)


def settings_of(key):
    gamma, lam = (float(part.split("=")[1]) for part in key.split(","))
    return {"gamma": gamma, "lam": lam, "whiten_advantages": False, "kl": {"coef": 0.1}}


def kl_rewards(rewards, mask):
    """Logprobs that, against a reference of zeros, cost these rewards at coefficient 0.1, and the score beside them."""
    last = max(t for t, kept in enumerate(mask) if kept)
    return [-10 * r if t != last else 0.0 for t, r in enumerate(rewards)], rewards[last]


def test_padding_stays_out_of_advantages(case, rollouts, context, lookup, grid):
    m01 = case("M01_gae_padding")
    masks, values = m01["inputs"]["mask"], m01["inputs"]["values"]
    logprobs, scores = zip(*map(kl_rewards, m01["inputs"]["rewards"], masks), strict=True)
    lengths = [sum(mask) for mask in masks]
    data = rollouts([mask[:n] for mask, n in zip(masks, lengths, strict=True)], logprobs, scores)
    ctx = context(critic=lookup(grid(values)), reference=lookup(torch.zeros(2, 6).double()))
    for key, expected in m01["expected"].items():
        found = ppo(**settings_of(key)).prepare(data, ctx)
        assert_close(per_token(found, "advantages"), numbers(expected["advantages"]))
        assert_close(per_token(found, "returns"), numbers(expected["returns"]))


def test_tool_tokens_neither_decay_nor_end_the_episode(case, rollouts, context, lookup, grid):
    m02 = case("M02_gae_tool_tokens_inside")
    mask = m02["inputs"]["response_mask"]
    logprobs, score = kl_rewards(m02["inputs"]["rewards"], mask)
    data = rollouts([mask], [logprobs], [score])
    ctx = context(critic=lookup(grid([m02["inputs"]["values"]])), reference=lookup(torch.zeros(1, 7).double()))
    for key, expected in m02["expected"].items():
        found = ppo(**settings_of(key)).prepare(data, ctx)
        assert_close(per_token(found, "advantages"), numbers([expected["advantages"]]))
        assert_close(per_token(found, "returns"), numbers([expected["returns"]]))


def test_the_score_lands_on_the_last_token_and_kl_on_each(case, rollouts, context, lookup, grid):
    """With γ = 0 and a critic that says 0, an advantage is the reward of its token."""
    m04 = case("M04_reward_on_eos")
    for name, length in (("own_pad", 3), ("pad_is_eos", 3), ("cut_by_length", 5)):
        data = rollouts([[1] * length], [m04["inputs"]["logp"]], [m04["inputs"]["score"]])
        ctx = context(critic=lookup(torch.zeros(1, 6).double()), reference=lookup(grid([m04["inputs"]["ref_logp"]])))
        found = ppo(gamma=0.0, whiten_advantages=False, kl={"coef": m04["inputs"]["beta"]}).prepare(data, ctx)
        expected = numbers([m04["expected"][name]["rewards"]])
        assert_close(per_token(found, "advantages")[:, :length], expected[:, :length])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_each_estimator_in_the_reward(case, rollouts, context, lookup, grid, estimator):
    m05 = case("M05_kl_k1_k2_k3")
    data = rollouts([m05["inputs"]["mask"]], [m05["inputs"]["logp"]], [0])
    ctx = context(critic=lookup(torch.zeros(1, 6).double()), reference=lookup(grid([m05["inputs"]["ref_logp"]])))
    options = {"gamma": 0.0, "whiten_advantages": False, "kl": {"coef": 0.5, "estimator": estimator}}
    found = per_token(ppo(**options).prepare(data, ctx), "advantages")
    assert_close(found, -0.5 * numbers([m05["expected"][estimator]]) * numbers(m05["inputs"]["mask"]))


# --- which samples and which models take part ---


def test_samples_that_no_reward_judged_are_left_out(rollouts, context, lookup, grid):
    data = rollouts([[1, 1], [1, 1, 1], [1]], [[-1, -2], [-3, -4, -5], [-6]], [1, None, 2])
    found = ppo(**PLAIN, lam=1.0).prepare(data, context(critic=lookup(torch.zeros(3, 4).double())))
    assert found.sequences["completion"].tokens[:, 0].tolist() == [0, 8]
    assert_close(per_token(found, "advantages"), numbers([[1, 1], [2, 0]]))
    assert found.weight["policy"].tolist() == found.weight["critic"].tolist() == [2, 1]
    assert float(found.metrics["completions"].value) == 2


def test_a_batch_in_which_nothing_was_judged_is_empty(rollouts, context, lookup):
    data = rollouts([[1, 1], [1]], [[-1, -2], [-3]], [None, None])
    table = lookup(torch.zeros(2, 3).double())
    found = ppo().prepare(data, context(critic=table, reference=table))
    assert len(found) == 0
    assert found.weight["policy"].sum() == found.weight["critic"].sum() == 0
    assert float(found.metrics["kl/mean"].count) == 0


@pytest.mark.parametrize("role", ["policy", "critic"])
def test_without_kl_the_reference_is_never_asked(rollouts, context, lookup, role):
    table = lookup(torch.zeros(1, 3).double())
    ctx = context(policy=table, critic=table)
    algorithm = ppo(kl={"coef": 0})
    found = algorithm.prepare(rollouts([[1, 1]], [[-1, -2]], [1]), ctx)
    assert torch.isfinite(algorithm.loss(role, found, ctx).rows).all()
    assert "kl/mean" not in found.metrics
    assert needs(algorithm.options, True).frozen == frozenset()
    assert needs(PPOConfig(), True).frozen == {"reference"}


def test_exact_rollouts_cost_no_forward_of_the_old_policy(rollouts, context, lookup):
    ctx = context(critic=lookup(torch.zeros(1, 3).double()))  # the policy is forbidden
    found = ppo(**PLAIN).prepare(rollouts([[1, 1]], [[-1, -2]], [1]), ctx)
    assert_close(per_token(found, "old_logprobs"), numbers([[-1, -2]]))
    assert "importance" not in found.sequences["completion"].per_token
