"""Advantages of groups: the recorded numbers, and what must hold for any rewards."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx import ops

numbers = partial(torch.tensor, dtype=torch.float64)
assert_close = partial(torch.testing.assert_close, atol=1e-6, rtol=0)


def grouped(groups):
    return numbers([r for group in groups for r in group]), torch.tensor([i for i, g in enumerate(groups) for _ in g])


def test_the_four_baselines():
    scores, group = numbers([1, 0, 0, 1]), torch.zeros(4, dtype=torch.long)
    signs = numbers([1, -1, -1, 1])
    assert_close(ops.normalised(scores, group, 1e-6), 0.8660239 * signs)
    assert_close(ops.centred(scores, group), 0.5 * signs)
    assert_close(ops.leave_one_out(scores, group), 2 / 3 * signs)


def test_groups_of_prompts(case):
    m30 = case("M30_grpo_groups")
    scores, group = grouped(m30["inputs"]["groups"])
    for eps in (1e-4, 1e-6):
        expected = numbers([a for g in m30["expected"][f"unbiased_std,eps={eps:.0e}".replace("e-0", "e-")] for a in g])
        assert_close(ops.normalised(scores, group, eps), expected)
    assert_close(ops.centred(scores, group), numbers([a for g in m30["expected"]["no_std"] for a in g]))
    order = torch.tensor([5, 0, 11, 3, 1, 7, 2, 9, 4, 10, 6, 8])
    assert_close(ops.normalised(scores[order], group[order], 1e-4), ops.normalised(scores, group, 1e-4)[order])


def test_leave_one_out(case):
    m34 = case("M34_rloo")
    for name in ("group", "ragged"):
        scores, group = grouped([m34["inputs"][name]])
        assert_close(ops.leave_one_out(scores, group), numbers(m34["expected"][
            "advantages" if name == "group" else name]))


def test_a_group_of_one_has_no_advantage():
    scores, group = numbers([0.7]), torch.tensor([3])
    assert [f(scores, group).item() for f in (ops.centred, ops.leave_one_out)] == [0, 0]
    assert ops.normalised(scores, group, 1e-6).item() == 0


@pytest.mark.parametrize("reward", [0.1, 1e-20, -3e8, 0.0])
def test_equal_rewards_give_exact_zeros(reward):
    scores, group = torch.full((3,), reward), torch.zeros(3, dtype=torch.long)
    assert ops.normalised(scores, group, 1e-12).tolist() == [0, 0, 0]
    assert ops.dead_groups(scores, group).all()


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5)), min_size=1, max_size=20))
def test_advantages_of_a_group_sum_to_zero(rows):
    group, scores = torch.tensor([g for g, _ in rows]), numbers([r for _, r in rows])
    for advantages in (ops.centred(scores, group), ops.leave_one_out(scores, group),
                       ops.normalised(scores, group, 1e-6)):
        assert ops.group_sums(advantages, group).abs().max() < 1e-6


def test_the_overlong_penalty(case):
    m36 = case("M36_dapo_overlong")
    lengths = torch.tensor(m36["inputs"]["lengths"])
    found = ops.overlong_penalty(lengths, m36["inputs"]["L_max"], m36["inputs"]["L_cache"])
    assert_close(found.double(), numbers(m36["expected"]["penalty"]))


def test_returns_to_go_skip_what_the_policy_did_not_write():
    rewards, mask = numbers([[9, 1, 2, 9, 3]]), torch.tensor([[0, 1, 1, 0, 1]])
    assert ops.returns_to_go(rewards, mask).tolist() == [[0, 6, 5, 0, 3]]


def test_a_ratio_a_token_and_a_ratio_a_sequence(case):
    m38 = case("M38_token_vs_sequence_ratio")
    old, new = (numbers([m38["inputs"][name]]) for name in ("logp_old", "logp_new"))
    mask, ones, clip = torch.ones_like(old), torch.ones_like(old), m38["inputs"]["clip"]
    token = ops.policy_loss(new, old, ones, clip, clip)
    assert_close(token.ratio[0], numbers(m38["expected"]["grpo_ratio"]))
    assert_close(ops.masked_mean(token.loss, mask), numbers(m38["expected"]["grpo_loss"]))
    sequence = ops.sequence_policy_loss(new, old, ones, mask, clip, clip)
    assert_close(sequence.ratio[0, 0], numbers(m38["expected"]["gspo_ratio"]))
    assert_close(ops.masked_mean(sequence.loss, mask), numbers(m38["expected"]["gspo_loss"]))


def test_a_clipped_weight_leaves_every_token_its_gradient():
    """CISPO: PPO's clipped token has none."""
    old, advantages = numbers([[-1.0, -1.0]]), numbers([[1.0, 1.0]])
    gradients = []
    for loss in (ops.policy_loss, ops.weighted_policy_loss):
        new = numbers([[-0.2, -1.0]]).requires_grad_()
        loss(new, old, advantages, 0.2, 0.28).loss.sum().backward()
        gradients.append(new.grad.tolist()[0])
    assert gradients[0] == [0, -1]
    assert gradients[1] == pytest.approx([-1.28, -1])
