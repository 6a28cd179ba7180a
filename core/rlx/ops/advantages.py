"""Rewards a token, and advantages from them."""

from __future__ import annotations

import torch
from torch import Tensor


def token_rewards(scores: Tensor, mask: Tensor) -> Tensor:
    """``[B]`` scores to ``[B, T]`` rewards: each score at the last kept token of its row, 0 elsewhere."""
    rewards = torch.zeros(mask.shape, dtype=scores.dtype, device=mask.device)
    positions = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    last = torch.where(mask.bool(), positions, -1).amax(1)
    rows = (last >= 0).nonzero().flatten()
    rewards[rows, last[rows]] = scores[rows]
    return rewards


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation, arXiv 1506.02438, over kept tokens only.

    ``δ = r_t + γ·V_next − V_t`` and ``A = δ + γλ·A_next``, where "next" is the next kept token: tokens in between
    (tool output) neither decay nor carry value. The value after the last kept token is 0.

    Args:
        rewards: ``[B, T]``.
        values: ``[B, T]``, ``values[:, t] = v(tokens[:, :t])``.
        mask: ``[B, T]``, the policy's own tokens.
        gamma: discount.
        lam: λ.

    Returns:
        ``[B, T]`` advantages and returns (advantages + values), 0 outside the mask.
    """
    mask = mask.bool()
    advantages = torch.zeros_like(values)
    ahead = torch.zeros_like(values[:, 0])
    next_value = torch.zeros_like(values[:, 0])
    for t in range(values.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        here = mask[:, t]
        ahead = torch.where(here, delta + gamma * lam * ahead, ahead)
        next_value = torch.where(here, values[:, t], next_value)
        advantages[:, t] = torch.where(here, ahead, torch.zeros_like(ahead))
    returns = torch.where(mask, advantages + values, torch.zeros_like(values))
    return advantages, returns
