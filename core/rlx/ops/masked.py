"""Means over the tokens that count."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Differences of logprobs are clamped to ± this before ``exp``, so that e^100 never reaches a float32."""


def masked_sum(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """``Σ x·m``; what the mask leaves out may hold anything, NaN included."""
    kept = torch.where(mask.bool(), x, torch.zeros_like(x))
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """``Σ x·m / Σ m``, 0 where nothing is kept."""
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(x, mask, dim) / count.clamp(min=1)


def last_run(mask: Tensor) -> Tensor:
    """``[B, T]`` bool: of each row only the last run of kept entries, as the last turn of a conversation."""
    ahead = (~mask[:, :-1] & mask[:, 1:]).flip(1).cumsum(1).flip(1)  # runs that begin behind an entry
    return mask & (torch.nn.functional.pad(ahead, (0, 1)) == 0)


def clamped_exp(x: Tensor) -> Tensor:
    """``exp(x)`` with ``x`` clamped to ±20."""
    return torch.exp(x.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def whiten(x: Tensor, mask: Tensor, all_sum: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """``(x − mean) · rsqrt(var + 1e-8)`` over kept entries of all ranks, 0 elsewhere.

    ``var`` divides by n − 1; with one entry the result is 0.

    Args:
        x: any shape.
        mask: of the same shape.
        all_sum: sums over ranks; statistics are always those of the global batch.
    """
    wide = x.double()
    count, total = all_sum(torch.stack([mask.double().sum(), masked_sum(wide, mask)]))
    mean = total / count.clamp(min=1)
    squares = all_sum(masked_sum((wide - mean) ** 2, mask))
    white = (wide - mean) * torch.rsqrt(squares / (count - 1).clamp(min=1) + 1e-8)
    return torch.where(mask.bool(), white, torch.zeros_like(white)).to(x.dtype)
