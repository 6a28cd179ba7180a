"""Clipped objectives, arXiv 1707.06347."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rlx.ops.masked import clamped_exp, masked_mean


class PolicyLoss(NamedTuple):
    """``[B, T]`` each: loss a token, ratio, and where the clipped branch or the dual clip decided."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    dual_clipped: Tensor


def policy_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float,
                dual_clip: float | None = None) -> PolicyLoss:
    """``max(−A·ρ, −A·clip(ρ, 1 − clip_low, 1 + clip_high))``, ρ = exp(logprobs − old_logprobs).

    With a dual clip c > 1 (arXiv 1912.09729), where A < 0 the loss is at most ``−A·c``.
    """
    ratio = clamped_exp(logprobs - old_logprobs)
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, bounded)
    dual_clipped = torch.zeros_like(loss, dtype=torch.bool)
    if dual_clip is not None:
        ceiling = -advantages * dual_clip
        dual_clipped = (advantages < 0) & (loss > ceiling)
        loss = torch.where(dual_clipped, ceiling, loss)
    return PolicyLoss(loss, ratio, bounded > plain, dual_clipped)


def sequence_policy_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, clip_low: float,
                         clip_high: float) -> PolicyLoss:
    """GSPO (arXiv 2507.18071): one ratio a sequence, ``exp(mean of logprobs − old_logprobs)``, clipped as in PPO.

    Every token of a row gets the row's loss, so a mean over its tokens is the paper's.
    """
    mean = masked_mean(logprobs - old_logprobs, mask, dim=1)[:, None].expand_as(logprobs)
    return policy_loss(mean, torch.zeros_like(mean), advantages, clip_low, clip_high)


def weighted_policy_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_low: float,
                         clip_high: float) -> PolicyLoss:
    """CISPO (arXiv 2506.13585): ``−sg(clip(ρ, 1 − clip_low, 1 + clip_high))·A·logprob``: every token has a gradient."""
    ratio = clamped_exp(logprobs - old_logprobs).detach()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    never = torch.zeros_like(weight, dtype=torch.bool)
    return PolicyLoss(-weight * advantages * logprobs, ratio, weight != ratio, never)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """``½·max((V − R)², (clip(V, V_old ± clip) − R)²)`` a token; without the second branch if ``clip`` is None."""
    squares = (values - returns) ** 2
    if clip is not None:
        near = torch.minimum(torch.maximum(values, old_values - clip), old_values + clip)
        squares = torch.maximum(squares, (near - returns) ** 2)
    return 0.5 * squares


def importance_weights(logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, limit: float,
                       level: Literal["token", "sequence"] = "token",
                       beyond: Literal["truncate", "mask"] = "truncate") -> tuple[Tensor, Tensor]:
    """``w = exp(logprobs − rollout_logprobs)`` a token or a sequence: corrects for a sampler that is not the policy.

    Beyond the limit a weight is cut to it (truncated importance sampling) or 0 (masked).

    Returns:
        ``[B, T]`` weights, detached, and where they were beyond the limit.
    """
    log_ratio = (logprobs - rollout_logprobs) * mask
    if level == "sequence":
        log_ratio = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
    weights = clamped_exp(log_ratio).detach()
    over = (weights > limit) & mask
    return (weights.clamp(max=limit) if beyond == "truncate" else weights.masked_fill(over, 0.0)), over
