"""Losses over preference pairs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def dpo_logits(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    """``h = (logπ − logπ_ref) of chosen − the same of rejected``, from ``[B]`` sums over completion tokens, nats."""
    return (chosen - ref_chosen) - (rejected - ref_rejected)


def dpo_hinge_loss(h: Tensor, beta: float) -> Tensor:
    """``max(0, 1 − βh)`` a pair (SLiC, arXiv 2305.10425). β .1, h 1.5 gives .85."""
    return F.relu(1 - beta * h)


def dpo_ipo_loss(h: Tensor, beta: float) -> Tensor:
    """``(h − 1/(2β))²`` a pair (arXiv 2310.12036). β .1, h 1.5 gives 12.25.

    Its authors take ``h`` from means over tokens, not sums.
    """
    return (h - 1 / (2 * beta)) ** 2


def dpo_robust_loss(h: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """Unbiased where a share ε of the labels is flipped (arXiv 2403.00409).

    ``((1 − ε)·−log σ(βh) − ε·−log σ(−βh)) / (1 − 2ε)``; β .1, h 1.5, ε .1 gives .60220705.
    """
    right, wrong = -F.logsigmoid(beta * h), -F.logsigmoid(-beta * h)
    return ((1 - label_smoothing) * right - label_smoothing * wrong) / (1 - 2 * label_smoothing)


def simpo_loss(chosen: Tensor, rejected: Tensor, beta: float, gamma: float) -> Tensor:
    """``−log σ(β(chosen − rejected) − γ)`` a pair, of mean logprobs a token (arXiv 2405.14734)."""
    return -F.logsigmoid(beta * (chosen - rejected) - gamma)


def orpo_loss(chosen: Tensor, rejected: Tensor, lam: float) -> Tensor:
    """``−chosen − λ·log σ(log odds chosen − log odds rejected)`` a pair, of mean logprobs a token (arXiv 2403.07691).

    The odds are those of the mean token probability, ``p / (1 − p)`` with ``log p`` the mean logprob.
    """
    odds = (chosen - rejected) - (log1mexp(chosen) - log1mexp(rejected))
    return -chosen - lam * F.logsigmoid(odds)


def log1mexp(x: Tensor) -> Tensor:
    """``log(1 − eˣ)`` for x < 0, without losing digits near 0."""
    x = x.clamp(max=-1e-7)
    return torch.where(x > -0.6931472, torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))


def kto_loss(log_ratio: Tensor, label: Tensor, z0: Tensor, beta: float) -> Tensor:
    """``1 − σ(β(log-ratio − z0))`` of a good answer, ``1 − σ(β(z0 − log-ratio))`` of a bad one (arXiv 2402.01306)."""
    away = torch.where(label, log_ratio - z0, z0 - log_ratio)
    return torch.sigmoid(-beta * away)


def ranking_loss(chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0) -> Tensor:
    """``−log σ(chosen − rejected − margin)`` a pair of scores (Bradley-Terry; arXiv 2203.02155)."""
    return -F.logsigmoid(chosen - rejected - margin)


def dpo_sigmoid_loss(h: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """``−log σ(βh)`` a pair, arXiv 2305.18290; with label smoothing ε mixed with ``−log σ(−βh)`` (cDPO).

    β .1, h 1.5 gives .62095705, with ε .1 .63595705.
    """
    return -(1 - label_smoothing) * F.logsigmoid(beta * h) - label_smoothing * F.logsigmoid(-beta * h)
