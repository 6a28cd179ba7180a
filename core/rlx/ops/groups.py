"""Advantages from the rewards of one prompt's completions. ``group`` is ``[B]``, equal for those of one prompt."""

from __future__ import annotations

import torch
from torch import Tensor

EQUAL = 1e-8
"""Rewards of a group that differ by less than this share of their size are equal: there is nothing to learn."""


def _places(group: Tensor) -> tuple[int, Tensor]:
    """How many groups there are, and the number of each row's."""
    groups, place = torch.unique(group, return_inverse=True)
    return len(groups), place


def group_sizes(group: Tensor) -> Tensor:
    """``[B]`` completions in each row's group."""
    places, place = _places(group)
    return torch.bincount(place, minlength=places)[place]


def group_sums(x: Tensor, group: Tensor) -> Tensor:
    """``[B]`` float64 sum over each row's group."""
    places, place = _places(group)
    return torch.zeros(places, dtype=torch.float64).index_add_(0, place, x.double())[place]


def dead_groups(scores: Tensor, group: Tensor) -> Tensor:
    """``[B]`` bool: all scores of the row's group are equal, to 1e-8 of their size."""
    places, place = _places(group)
    empty = torch.zeros(places, dtype=torch.float64)
    low, high = (empty.scatter_reduce(0, place, scores.double(), how, include_self=False) for how in ("amin", "amax"))
    return (high - low <= EQUAL * torch.maximum(low.abs(), high.abs()))[place]


def centred(scores: Tensor, group: Tensor) -> Tensor:
    """``r − mean`` of the group (Dr. GRPO, arXiv 2503.20783); exactly 0 in a dead group. ``[1,0,0,1]`` gives ±0.5."""
    away = scores.double() - group_sums(scores, group) / group_sizes(group)
    return torch.where(dead_groups(scores, group), 0.0, away).to(scores.dtype)


def normalised(scores: Tensor, group: Tensor, eps: float) -> Tensor:
    """``(r − mean) / (std + eps)`` of the group (GRPO, arXiv 2402.03300), std with n − 1; 0 in a dead group.

    ``[1,0,0,1]`` with eps 1e-6 gives ±0.8660239.
    """
    away = centred(scores, group).double()
    std = (group_sums(away**2, group) / (group_sizes(group) - 1).clamp(min=1)).sqrt()
    return (away / (std + eps)).to(scores.dtype)


def leave_one_out(scores: Tensor, group: Tensor) -> Tensor:
    """``r − mean of the others`` (RLOO, arXiv 2402.14740); 0 where there is no other. ``[1,0,0,1]`` gives ±2/3."""
    size = group_sizes(group)
    return torch.where(size > 1, centred(scores, group) * size / (size - 1).clamp(min=1), 0.0).to(scores.dtype)


def overlong_penalty(lengths: Tensor, longest: int, margin: int) -> Tensor:
    """DAPO's soft punishment (arXiv 2503.14476, eq. 13): 0, then falling over ``margin`` tokens to −1 at ``longest``.

    Args:
        lengths: ``[B]`` tokens of each completion, its stop token included.
        longest: tokens a completion may have.
        margin: tokens before that over which it falls.
    """
    return (((longest - margin) - lengths) / margin).clamp(-1, 0)


def returns_to_go(rewards: Tensor, mask: Tensor) -> Tensor:
    """``[B, T]`` sums of the rewards from each kept token on, 0 elsewhere (REINFORCE++, arXiv 2501.03262)."""
    kept = torch.where(mask.bool(), rewards, torch.zeros_like(rewards))
    return torch.where(mask.bool(), kept.flip(1).cumsum(1).flip(1), torch.zeros_like(kept))
