from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.ops import importance_weights, policy_loss, value_loss

numbers = partial(torch.tensor, dtype=torch.float64)
assert_close = partial(torch.testing.assert_close, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("advantage", "log_ratio", "dual_clip", "expected"), [
    (1, 0.5, 3, -1.2), (1, -0.5, 3, -0.606531), (-1, 0.5, 3, 1.648721), (-1, -0.5, 3, 0.8), (-1, 2, 3, 3.0),
    (-1, 2, None, 7.389056),
])
def test_clipped_objective(advantage, log_ratio, dual_clip, expected):
    found = policy_loss(numbers([log_ratio]), numbers([0]), numbers([advantage]), 0.2, 0.2, dual_clip)
    assert found.loss.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
@pytest.mark.parametrize("name", ["M07_ppo_clip", "M08_clip_higher", "M15_ppo_dual_clip"])
def test_losses_ratios_and_clip_fractions(case, name, dtype, tolerance):
    inputs, expected = case(name)["inputs"], case(name)["expected"]
    tensors = [torch.tensor(inputs[key], dtype=dtype) for key in ("logp_new", "logp_old", "advantages")]
    found = policy_loss(*tensors, inputs["clip_low"], inputs["clip_high"], inputs["dual_clip_c"])
    assert_close(found.ratio.double(), numbers(expected["per_token_ratio"]), atol=tolerance)
    assert_close(found.loss.double(), numbers(expected["per_token_loss"]), atol=tolerance)
    assert found.loss.mean().item() == pytest.approx(expected["mean_loss"], abs=tolerance)
    assert found.clipped.double().mean().item() == expected["clip_fraction"]
    assert found.dual_clipped.double().mean().item() == expected["dual_clip_fraction"]
    for wrong in case(name).get("known_wrong_values", {}).values():
        assert found.loss.mean().item() != pytest.approx(wrong, abs=1e-3)


def test_a_clipped_token_pushes_no_further():
    """Gradient ``−A·ρ`` inside the range, none beyond it or above the dual clip."""
    logprobs = numbers([0.1, 0.5, -0.5, -0.1, -0.5, 2.0]).requires_grad_()
    advantages = numbers([1, 1, 1, -1, -1, -1])
    policy_loss(logprobs, torch.zeros_like(advantages), advantages, 0.2, 0.2, 3).loss.sum().backward()
    assert_close(logprobs.grad, numbers([-1.10517092, 0, -0.60653066, 0.90483742, 0, 0]))


def test_the_first_update_has_the_policy_gradient():
    logprobs = numbers([-1.0, -2.0]).requires_grad_()
    policy_loss(logprobs, logprobs.detach(), numbers([0.3, -0.7]), 0.2, 0.2).loss.sum().backward()
    assert_close(logprobs.grad, numbers([-0.3, 0.7]))


def test_a_ratio_stays_finite_in_float32():
    found = policy_loss(torch.tensor([0.0, -200.0]), torch.tensor([-200.0, 0.0]), torch.tensor([-1.0, 1.0]), 0.2, 0.2)
    assert torch.isfinite(found.loss).all()
    assert found.ratio.tolist() == pytest.approx([4.851652e8, 2.0611537e-9], rel=1e-5)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.floats(-3, 3), st.floats(-5, 5), st.floats(0.05, 0.9), st.floats(0.05, 2), st.floats(1.01, 10))
def test_the_objective_is_a_bound(log_ratio, advantage, low, high, dual):
    """Clipping only ever raises the loss, and the dual clip lowers it to ``−A·c`` at most, for A < 0 only."""
    one = numbers([log_ratio]), numbers([0]), numbers([advantage]), low, high
    single, both = policy_loss(*one), policy_loss(*one, dual)
    assert single.loss >= -advantage * single.ratio - 1e-12
    assert both.loss <= single.loss
    if advantage >= 0:
        assert torch.equal(both.loss, single.loss)
    else:
        assert both.loss <= -advantage * dual


@pytest.mark.parametrize(("clip", "expected"), [(0.5, 0.845), (0.2, 1.28), (None, 0.5)])
def test_value_loss(clip, expected):
    assert value_loss(numbers([1]), numbers([0.2]), numbers([2]), clip).item() == pytest.approx(expected, abs=1e-6)


def test_a_value_gains_nothing_by_moving_further_than_the_clip():
    values = numbers([0.0, 1.0, -1.0]).requires_grad_()
    value_loss(values, numbers([0, 0, 0]), numbers([2, 2, 2]), 0.5).sum().backward()
    # Inside: V − R. Moved towards the return by more than 0.5: none. Moved away from it: V − R again.
    assert_close(values.grad, numbers([-2, 0, -3]))


def test_importance_of_a_small_gap_over_many_tokens(case):
    m52 = case("M52_rollout_correction")
    here, there, mask = (torch.full((1, 80), x).double() for x in (-1.0, -1.02, 1.0))
    found, limit = m52["expected"], m52["inputs"]["C"]
    weights, over = importance_weights(here, there, mask.bool(), limit)
    assert_close(weights, torch.full((1, 80), found["token_weights_all"]).double())
    assert not over.any()
    for chosen, ceiling, expected in (("truncate", 1e9, "weight"), ("truncate", limit, "truncated"),
                                      ("mask", limit, "masked")):
        weights, over = importance_weights(here, there, mask.bool(), ceiling, "sequence", chosen)
        assert weights.mean().item() == pytest.approx(found[f"sequence_{expected}"], abs=1e-5)
        assert weights.unique().numel() == 1
        assert bool(over.all()) is (ceiling == limit)


def test_importance_is_truncated_and_detached():
    logprobs = numbers([[0.0, 1.0, 100.0, -1.0, -100.0, 7.0]]).requires_grad_()
    mask = torch.tensor([[True, True, True, True, True, False]])
    weights, over = importance_weights(logprobs, torch.zeros_like(logprobs), mask, 2.0)
    assert_close(weights, numbers([[1, 2, 2, 0.36787944, 2.0611536e-9, 1]]))
    assert over.tolist() == [[False, True, True, False, False, False]]
    assert not weights.requires_grad
    masked, _ = importance_weights(logprobs, torch.zeros_like(logprobs), mask, 2.0, beyond="mask")
    assert_close(masked, numbers([[1, 0, 0, 0.36787944, 2.0611536e-9, 1]]))
