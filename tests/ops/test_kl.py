from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.ops import KL_ESTIMATORS, adapt_kl_coef, kl_estimate, masked_mean

numbers = partial(torch.tensor, dtype=torch.float64)
assert_close = partial(torch.testing.assert_close, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("estimator", "expected"), [("k1", [0.2, -0.5, 0]), ("k2", [0.02, 0.125, 0]),
                                                     ("k3", [0.01873075, 0.14872127, 0])])
def test_estimators(estimator, expected):
    assert_close(kl_estimate(numbers([-1, -2, -0.5]), numbers([-1.2, -1.5, -0.5]), estimator), numbers(expected))


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_values_means_and_gradients(case, estimator):
    m05 = case("M05_kl_k1_k2_k3")
    inputs, expected = m05["inputs"], m05["expected"]
    logprobs = numbers(inputs["logp"]).requires_grad_()
    kl = kl_estimate(logprobs, numbers(inputs["ref_logp"]), estimator)
    assert_close(kl, numbers(expected[estimator]))
    assert masked_mean(kl, torch.tensor(inputs["mask"])).item() == pytest.approx(
        expected["masked_mean"][estimator], abs=1e-6)
    kl.sum().backward()
    assert_close(logprobs.grad, numbers(expected["grad_wrt_logp"][estimator]))


def test_a_gap_of_a_hundred_stays_finite_in_float32(case):
    far = case("M05_kl_k1_k2_k3")["expected"]["far_apart"]
    logprobs, reference = torch.tensor([far["logp"]], requires_grad=True), torch.tensor([far["ref_logp"]])
    assert kl_estimate(logprobs, reference, "k1").item() == far["k1"]
    assert kl_estimate(logprobs, reference, "k2").item() == far["k2"]
    k3 = kl_estimate(logprobs, reference, "k3")
    k3.backward()
    assert k3.item() == pytest.approx(4.851652e8, rel=1e-6)  # e^20 − 20 − 1
    assert torch.isfinite(logprobs.grad).all()


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.floats(-1e4, 1e4, width=32))
def test_k2_and_k3_are_never_negative_and_never_infinite(gap):
    for estimator in ("k2", "k3"):
        kl = kl_estimate(numbers([gap]).float(), torch.zeros(1), estimator)
        assert torch.isfinite(kl)
        assert kl >= 0


@pytest.mark.parametrize("gap", [1e-1, 1e-2, 1e-3, 1e-4])
def test_k3_of_a_small_gap_is_not_rounding_noise(gap):
    """A policy that barely moved: e^-d − 1 taken literally in float32 would be off by 100 % at 1e-4."""
    kl = kl_estimate(torch.tensor([gap]), torch.zeros(1), "k3")
    assert kl.item() == pytest.approx(gap**2 / 2 - gap**3 / 6 + gap**4 / 24, rel=1e-2)


def test_k1_and_k3_are_unbiased():
    """Over a distribution, not a sample: Σ p·estimate is the KL itself."""
    p, q = numbers([0.5, 0.3, 0.2]).log(), numbers([0.2, 0.2, 0.6]).log()
    kl = (p.exp() * (p - q)).sum()
    for estimator in ("k1", "k3"):
        assert_close((p.exp() * kl_estimate(p, q, estimator)).sum(), kl)
    assert (p.exp() * kl_estimate(p, q, "k2")).sum() != pytest.approx(kl.item(), abs=1e-3)


@pytest.mark.parametrize(("kl", "expected"), [(6, 0.2), (12, 0.201024), (60, 0.201024), (0, 0.198976)])
def test_the_adaptive_coefficient_moves_by_at_most_a_fifth_of_n_over_horizon(kl, expected):
    assert adapt_kl_coef(0.2, kl, target=6, horizon=10_000, n=256) == pytest.approx(expected, abs=1e-12)


def test_the_adaptive_coefficient_over_several_steps(case):
    m11 = case("M11_adaptive_kl")
    inputs, coef, series = m11["inputs"], m11["inputs"]["beta0"], []
    for kl in inputs["observed_kl"]:
        coef = adapt_kl_coef(coef, kl, inputs["target"], inputs["horizon"], inputs["samples_per_step"])
        series.append(coef)
    assert series == pytest.approx(m11["expected"]["beta_after_each_step"], abs=m11["tolerance"])
