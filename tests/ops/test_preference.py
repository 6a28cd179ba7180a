from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
