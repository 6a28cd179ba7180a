"""Logprobs and entropy without a ``[tokens, vocabulary]`` tensor."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

CHUNK_ELEMENTS = 1 << 24
"""Logits held at once: 16 Mi floats, 64 MiB."""


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = nn.functional.linear(hidden, weight, bias).float()
    return torch.log_softmax(logits / temperature, dim=-1)


class _ChunkedLogprobs(torch.autograd.Function):
    """Forward keeps no logits; backward computes them again, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float,
                chunk: int, with_entropy: bool) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        entropy = torch.zeros_like(logprobs)
        for start in range(0, len(targets), chunk):
            rows = slice(start, start + chunk)
            logp = _log_softmax(hidden[rows], weight, bias, temperature)
            logprobs[rows] = logp.gather(1, targets[rows, None]).squeeze(1)
            if with_entropy:
                entropy[rows] = torch.special.entr(logp.exp()).sum(1)
        ctx.save_for_backward(hidden, weight, targets, entropy, *(() if bias is None else (bias,)))
        if not with_entropy:
            ctx.mark_non_differentiable(entropy)
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.chunk = temperature, chunk
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, d_logprobs: Tensor | None, d_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, entropy, *rest = ctx.saved_tensors
        bias = rest[0] if rest else None
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for start in range(0, len(targets), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            logp = _log_softmax(hidden[rows], weight, bias, ctx.temperature)
            p = logp.exp()
            d_logits = torch.zeros_like(p)
            if d_logprobs is not None:
                d_logits -= p * d_logprobs[rows, None]
                d_logits.scatter_add_(1, targets[rows, None], d_logprobs[rows, None])
            if d_entropy is not None:
                d_logits += (torch.special.entr(p) - p * entropy[rows, None]) * d_entropy[rows, None]
            d_logits = (d_logits / ctx.temperature).to(hidden.dtype)
            d_hidden[rows] = d_logits @ weight
            if d_weight is not None:
                d_weight += d_logits.T @ hidden[rows]
            if d_bias is not None:
                d_bias += d_logits.sum(0).float()
        return (d_hidden, None if d_weight is None else d_weight.to(weight.dtype),
                None if bias is None or d_bias is None else d_bias.to(bias.dtype), None, None, None, None)


def install_logprob_head(head: nn.Module) -> None:
    """Teach an output embedding ``head(hidden, targets=…, temperature=…)``; without targets it stays as it was.

    One call of the module a micro-batch, so that ZeRO-3 gathers its weight once, whatever the number of chunks.
    """
    plain = head.forward

    def forward(self: Any, hidden: Tensor, targets: Tensor | None = None, temperature: float = 1.0,
                entropy: bool = True) -> Any:
        if targets is None:
            return plain(hidden)
        chunk = max(1, CHUNK_ELEMENTS // self.weight.shape[0])
        bias = getattr(self, "bias", None)
        arguments = (hidden, self.weight, bias, targets, temperature, chunk, entropy)
        return _ChunkedLogprobs.apply(*arguments)  # type: ignore[no-untyped-call]

    head.forward = MethodType(forward, head)
