"""From a loss a token to a loss and a weight a row.

The trainer minimises ``Σ weight·row / Σ weight`` over the global minibatch, so each mode is right for any split into
micro-batches and ranks. For losses ``[[1, 2, 3, ·], [4, ·, ·, ·]]``: token-mean 2.5, seq-mean-token-sum 5,
seq-mean-token-mean 3, seq-mean-token-sum-norm (÷ 4) 1.25.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlx.ops.masked import masked_mean, masked_sum
from rlx.ops.options import Aggregation


def aggregate_rows(losses: Tensor, mask: Tensor, mode: Aggregation, norm: int = 1) -> Tensor:
    """``[B, T]`` token losses to ``[B]`` row losses; ``norm`` is the fixed length of seq-mean-token-sum-norm."""
    if mode in ("token-mean", "seq-mean-token-mean"):
        return masked_mean(losses, mask, dim=1)
    total = masked_sum(losses, mask, dim=1)
    return total / norm if mode == "seq-mean-token-sum-norm" else total


def row_weights(mask: Tensor, mode: Aggregation) -> Tensor:
    """``[B]`` weights that belong to `aggregate_rows`: tokens for token-mean, else 1; 0 for a row without tokens."""
    tokens = mask.sum(1)
    weights = tokens if mode == "token-mean" else tokens > 0
    return weights.to(torch.float32)
