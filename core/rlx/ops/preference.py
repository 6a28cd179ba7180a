"""Losses over preference pairs."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def dpo_logits(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    """``h = (logπ − logπ_ref) of chosen − the same of rejected``, from ``[B]`` sums over completion tokens, nats."""
    return (chosen - ref_chosen) - (rejected - ref_rejected)


def dpo_sigmoid_loss(h: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """``−log σ(βh)`` a pair, arXiv 2305.18290; with label smoothing ε mixed with ``−log σ(−βh)`` (cDPO).

    β .1, h 1.5 gives .62095705, with ε .1 .63595705.
    """
    return -(1 - label_smoothing) * F.logsigmoid(beta * h) - label_smoothing * F.logsigmoid(-beta * h)
