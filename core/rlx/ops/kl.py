"""Estimates of KL(policy ‖ reference) from sampled tokens, and the adaptive coefficient."""

from __future__ import annotations

import torch
from torch import Tensor

from rlx.ops.masked import LOG_RATIO_LIMIT
from rlx.ops.options import KLEstimator


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KLEstimator = "k1") -> Tensor:
    """Schulman's estimators a token, nats, for tokens drawn from the policy.

    With ``d = logprobs − ref_logprobs``: k1 = d, k2 = d²/2, k3 = exp(−d) + d − 1. In k3 ``d`` is clamped to ±20, so
    that it stays finite. k1 may be negative for a token; k2 and k3 never are. Source: Schulman, "Approximating KL
    divergence" (2020).
    """
    d = logprobs - ref_logprobs
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d * d / 2
    d = d.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(-d) + d  # exp(−d) − 1 by itself would lose all digits where d is small


def adapt_kl_coef(coef: float, kl: float, target: float, horizon: float, n: float) -> float:
    """``coef · (1 + clip(KL/target − 1, ±0.2) · n/horizon)``, arXiv 1909.08593.

    Args:
        coef: the coefficient used in this step.
        kl: mean over completions of the sum of k1 over a completion, nats.
        target: of that mean.
        horizon: completions over which the coefficient moves.
        n: completions of the step, over all ranks.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coef * (1 + error * n / horizon)
