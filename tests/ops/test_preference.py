import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx import ops
from rlx.ops import dpo_logits, dpo_sigmoid_loss

numbers = partial(torch.tensor, dtype=torch.float64)
assert_close = partial(torch.testing.assert_close, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("h", "smoothing", "expected"), [
    (1.5, 0.0, 0.62095705), (1.5, 0.1, 0.63595705), (0, 0.0, 0.69314718), (0, 0.1, 0.69314718),
])
def test_sigmoid_and_cdpo(h, smoothing, expected):
    assert dpo_sigmoid_loss(numbers([h]), 0.1, smoothing).item() == pytest.approx(expected, abs=1e-6)


def test_a_batch_of_pairs(case):
    m20 = case("M20_dpo_losses")
    inputs, expected = m20["inputs"], m20["expected"]
    h = dpo_logits(*(numbers(inputs[name]) for name in ("policy_chosen", "policy_rejected", "ref_chosen",
                                                       "ref_rejected")))
    assert_close(h, numbers(expected["h"]))
    loss = dpo_sigmoid_loss(h, inputs["beta"])
    assert_close(loss, numbers(expected["sigmoid"]["per_pair"]))
    assert loss.mean().item() == pytest.approx(expected["sigmoid"]["loss"], abs=1e-6)
    smooth = dpo_sigmoid_loss(h, inputs["beta"], 0.1).mean().item()
    assert smooth == pytest.approx(expected["sigmoid_label_smoothing_0_1"], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_margins_stay_finite(case, dtype):
    m22 = case("M22_dpo_stability")
    h = torch.tensor(m22["inputs"]["h"], dtype=dtype, requires_grad=True)
    loss = dpo_sigmoid_loss(h, m22["inputs"]["beta"])
    loss.sum().backward()
    assert_close(loss, torch.tensor(m22["expected"]["loss"], dtype=dtype), atol=1e-4)
    assert_close(h.grad, torch.tensor(m22["expected"]["grad_wrt_h"], dtype=dtype))


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.floats(-200, 200), st.floats(0.01, 2), st.floats(0, 0.49))
def test_smoothing_mixes_the_pair_with_its_reverse(h, beta, smoothing):
    right, wrong = (dpo_sigmoid_loss(numbers([sign * h]), beta) for sign in (1, -1))
    assert_close(right - wrong, numbers([-beta * h]))
    assert_close(dpo_sigmoid_loss(numbers([h]), beta, smoothing), (1 - smoothing) * right + smoothing * wrong)


@pytest.mark.parametrize(("h", "hinge", "ipo", "robust"), [(1.5, 0.85, 12.25, 0.60220705), (0, 1, 25, 0.69314718)])
def test_other_losses_of_the_family(h, hinge, ipo, robust):
    h = numbers([h])
    assert ops.dpo_hinge_loss(h, 0.1).item() == pytest.approx(hinge, abs=1e-6)
    assert ops.dpo_ipo_loss(h, 0.1).item() == pytest.approx(ipo, abs=1e-6)
    assert ops.dpo_robust_loss(h, 0.1, 0.1).item() == pytest.approx(robust, abs=1e-6)


def test_scores_of_a_reward_model(case):
    m25 = case("M25_reward_model_loss")
    inputs, expected = m25["inputs"], m25["expected"]
    chosen, rejected, margin = (numbers(inputs[name]) for name in ("chosen", "rejected", "margin"))
    assert_close(ops.ranking_loss(chosen, rejected, margin), numbers(expected["per_pair"]))
    assert ops.ranking_loss(chosen, rejected).mean().item() == pytest.approx(expected["loss_without_margin"], abs=1e-6)


def test_simpo_and_orpo_by_hand():
    chosen, rejected = numbers([-0.5]), numbers([-1.25])
    assert ops.simpo_loss(chosen, rejected, 2.0, 1.0).item() == pytest.approx(math.log1p(math.exp(-0.5)), abs=1e-9)
    odds = math.log(math.exp(-0.5) / (1 - math.exp(-0.5))) - math.log(math.exp(-1.25) / (1 - math.exp(-1.25)))
    expected = 0.5 + 0.1 * math.log1p(math.exp(-odds))
    assert ops.orpo_loss(chosen, rejected, 0.1).item() == pytest.approx(expected, abs=1e-9)


def test_odds_of_a_certain_answer_stay_finite():
    chosen = numbers([0.0, -1e-12]).requires_grad_()
    loss = ops.orpo_loss(chosen, numbers([-40.0, 0.0]), 0.1)
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert torch.isfinite(chosen.grad).all()


def test_kto_by_hand():
    ratio, label, z0 = numbers([1.0, 1.0]), torch.tensor([True, False]), numbers(0.2)
    sigmoid = 1 / (1 + math.exp(-0.1 * 0.8))
    assert_close(ops.kto_loss(ratio, label, z0, 0.1), numbers([1 - sigmoid, sigmoid]))
