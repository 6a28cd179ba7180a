"""Logprobs and entropy without a ``[tokens, vocabulary]`` tensor."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

CHUNK_ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 27}
"""Logits held at once: in float32 64 MiB on a CPU, 512 MiB on a GPU, where small products leave most of it idle."""


def _logp(logits: Tensor, temperature: float) -> Tensor:
    """Float32, without a copy of the logits where that can be."""
    scaled = logits if temperature == 1.0 else logits.float() / temperature
    return torch.log_softmax(scaled, -1, dtype=torch.float32)


def _logprobs_and_entropy(logits: Tensor, targets: Tensor, temperature: float,
                          with_entropy: bool) -> tuple[Tensor, Tensor]:
    """``[N]`` each, of ``[N, V]`` logits; entropy is 0 if it is not asked for."""
    logp = _logp(logits, temperature)
    logprobs = logp.gather(1, targets[:, None]).squeeze(1)
    return logprobs, torch.special.entr(logp.exp_()).sum(1) if with_entropy else torch.zeros_like(logprobs)


def _d_logits(logits: Tensor, targets: Tensor, temperature: float, entropy: Tensor, d_logprobs: Tensor | None,
              d_entropy: Tensor | None) -> Tensor:
    """``[N, V]`` gradient of the logits, in their dtype."""
    p = _logp(logits, temperature).exp_()
    of_entropy = None if d_entropy is None else (torch.special.entr(p) - p * entropy[:, None]) * d_entropy[:, None]
    found = p.zero_() if d_logprobs is None else p.mul_(-d_logprobs[:, None]).scatter_add_(
        1, targets[:, None], d_logprobs[:, None])
    found = found if of_entropy is None else found.add_(of_entropy)
    return (found if temperature == 1.0 else found / temperature).to(logits.dtype)


class Kernels(NamedTuple):
    """The two functions of logits, which `torch.compile` fuses into a pass each over them."""

    forward: Callable[..., tuple[Tensor, Tensor]] = _logprobs_and_entropy
    backward: Callable[..., Tensor] = _d_logits


def fused(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled when it is first called; what of it cannot be compiled goes on without."""
    import torch._inductor.config as inductor

    # A fusion that it chooses by the number of tokens: each choice would be compiled apart, until it takes no more.
    by_size = hasattr(inductor.triton, "mix_order_reduction")
    compiled = torch.compile(plain, dynamic=True, options={"triton.mix_order_reduction": False} if by_size else None)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(suppress_errors=True):
            return compiled(*args, **kwargs)

    return call


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``total += left.T @ right`` in float32; of bfloat16 a GPU makes it without a rounded product in between."""
    if left.is_cuda and left.dtype != total.dtype:
        torch.addmm(total, left.T, right, out_dtype=total.dtype, out=total)
    else:
        total += left.T @ right


class _ChunkedLogprobs(torch.autograd.Function):
    """Forward keeps no logits; backward computes them again, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float,
                chunk: int, with_entropy: bool, kernels: Kernels) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        entropy = torch.zeros_like(logprobs)
        for start in range(0, len(targets), chunk):
            rows = slice(start, start + chunk)
            logprobs[rows], entropy[rows] = kernels.forward(nn.functional.linear(hidden[rows], weight, bias),
                                                            targets[rows], temperature, with_entropy)
        ctx.save_for_backward(hidden, weight, bias, targets, entropy)
        if not with_entropy:
            ctx.mark_non_differentiable(entropy)
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.chunk, ctx.kernels = temperature, chunk, kernels
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, d_logprobs: Tensor | None, d_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for start in range(0, len(targets), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            d_logits = ctx.kernels.backward(nn.functional.linear(hidden[rows], weight, bias), targets[rows],
                                            ctx.temperature, entropy[rows],
                                            *(None if d is None else d[rows] for d in (d_logprobs, d_entropy)))
            d_hidden[rows] = d_logits @ weight
            if d_weight is not None:
                _add_product(d_weight, d_logits, hidden[rows])
            if d_bias is not None:
                d_bias += d_logits.sum(0)
            del d_logits  # the next chunk's, or the rounded gradient of the weight, would come beside it
        return (d_hidden, None if d_weight is None else d_weight.to(weight.dtype),
                None if d_bias is None else d_bias.to(bias.dtype), None, None, None, None, None)


def install_logprob_head(head: nn.Module) -> None:
    """Teach an output embedding ``head(hidden, targets=…, temperature=…)``; without targets it stays as it was.

    One call of the module a micro-batch, so that ZeRO-3 gathers its weight once, whatever the number of chunks.
    """
    plain = head.forward.__func__  # type: ignore[attr-defined]  # not bound: a copied model has a head of its own

    def forward(self: Any, hidden: Tensor, targets: Tensor | None = None, temperature: float = 1.0,
                entropy: bool = True, kernels: Kernels = Kernels()) -> Any:  # noqa: B008 - it is immutable
        if targets is None:
            return plain(self, hidden)
        chunk = max(1, CHUNK_ELEMENTS[hidden.device.type] // self.weight.shape[0])
        return _ChunkedLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden, self.weight, getattr(self, "bias", None), targets, temperature, chunk, entropy, kernels)

    head.forward = MethodType(forward, head)
