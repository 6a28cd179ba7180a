"""Sampling on a GPU with one decoding step recorded as a CUDA graph and played again for every token.

HF's ``generate`` starts some thousand small kernels from Python for each token, which takes longer than they do. A step
over a cache of fixed size starts the same kernels on the same memory every time, so the GPU can start them itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import StaticCache, StaticLayer

ROOM = 256
"""Tokens that a cache has room for beside what it holds; then a larger one is made, of unfinished rows alone."""
LOOK = 32
"""Steps between two looks whether all rows have ended."""
NEEDED = {"attention_mask", "position_ids", "past_key_values", "logits_to_keep"}

Draw = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""``[R, 1]`` tokens and ``[R]`` logprobs, of ``[R, V]`` logits and ``[R]`` random numbers."""


def can_record(model: Any) -> bool:
    """Whether a model's step can be played again: attention to all earlier positions, told from a mask."""
    config = model.config.get_text_config(decoder=True)
    return (getattr(config, "_attn_implementation", None) == "sdpa"
            and inspect.signature(model.forward).parameters.keys() >= NEEDED
            and all(type(layer) is StaticLayer for layer in StaticCache(config=config, max_cache_len=1).layers))


def decode(model: Any, tokens: Tensor, attention: Tensor, rows: Tensor, uniforms: Tensor, draw: Draw,
           stops: Sequence[int], record: bool = True) -> tuple[Tensor, Tensor]:
    """Completions of left-padded prompts, ``[R, L]`` tokens and logprobs; what follows a stop token means nothing.

    Args:
        model: which `can_record`, on a GPU if it is to record.
        tokens: ``[B, W]`` prompts.
        attention: ``[B, W]``, 1 where they are no padding.
        rows: ``[R]``, the prompt of each completion: it is read once for all of its completions.
        uniforms: ``[R, M]`` random numbers, of which a token each is drawn.
        draw: the sampling.
        stops: tokens that end a row.
        record: play steps again, instead of running each as it stands.
    """
    position = (attention.cumsum(1) - 1).clamp(min=0)
    read = model(input_ids=tokens, attention_mask=attention, position_ids=position, use_cache=True, logits_to_keep=1)
    written, logprobs = tokens.new_zeros(uniforms.shape), torch.zeros_like(uniforms)
    token, logprobs[:, 0] = draw(read.logits[rows, -1], uniforms[:, 0])
    written[:, :1] = token
    ends = torch.tensor(list(stops), device=tokens.device, dtype=tokens.dtype)
    held = [(layer.keys[rows], layer.values[rows]) for layer in read.past_key_values.layers]
    live, at, seen = torch.arange(len(rows), device=tokens.device), 1, attention[rows].bool()
    place = position[rows, -1:] + 1
    del read
    while at < uniforms.shape[1]:
        room = min(ROOM, uniforms.shape[1] - at)
        step = _Step(model, held, seen, place, token, uniforms[live, at:at + room], draw)
        del held
        ran, ended = step.run(room, ends, written[live, :at], record)
        written[live, at:at + ran], logprobs[live, at:at + ran] = step.written[:, :ran], step.logprobs[:, :ran]
        at += ran
        if ended.all():
            break
        live, held, seen, place, token = live[~ended], *step.kept(~ended)
    return written[:, :at], logprobs[:, :at]


class _Step:
    """One step of some rows over caches of a fixed size. All that it changes stays where it is in memory."""

    def __init__(self, model: Any, held: list[tuple[Tensor, Tensor]], seen: Tensor, place: Tensor, token: Tensor,
                 uniforms: Tensor, draw: Draw) -> None:
        self._model, self._draw, self._uniforms = model, draw, uniforms
        self._width, room = seen.shape[1], uniforms.shape[1]
        self._cache: Any = StaticCache(config=model.config, max_cache_len=self._width + room)
        layers: list[Any] = self._cache.layers
        for layer, (keys, values) in zip(layers, held, strict=True):
            layer.lazy_initialization(keys, values)
            layer.keys[:, :, :self._width], layer.values[:, :, :self._width] = keys, values
            layer.cumulative_length.fill_(self._width)
        self._seen = torch.cat([seen, torch.zeros_like(uniforms, dtype=torch.bool)], 1)[:, None, None]
        self._place, self._token, self._at = place, token, torch.zeros(1, dtype=torch.long, device=token.device)
        self.written, self.logprobs = token.new_zeros(uniforms.shape), torch.zeros_like(uniforms)

    def run(self, steps: int, ends: Tensor, before: Tensor, record: bool) -> tuple[int, Tensor]:
        """Steps that were run, at most so many, and ``[R]`` which rows have ended by then."""
        ended, again = torch.isin(before, ends).any(1), self._once
        for ran in range(steps):
            if ran % LOOK == 0:
                ended |= torch.isin(self.written[:, max(0, ran - LOOK):ran], ends).any(1)
                if ended.all():
                    return ran, ended
            if ran == 1 and record:
                again = self._recorded()
            again()
        return steps, ended | torch.isin(self.written, ends).any(1)

    def kept(self, rows: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor, Tensor]:
        """What a larger one begins with: keys and values, which positions are real, the next position, last token."""
        held = [(layer.keys[rows], layer.values[rows]) for layer in self._cache.layers]
        return held, self._seen[rows, 0, 0], self._place[rows], self._token[rows]

    def _once(self) -> None:
        self._seen.index_fill_(3, self._at + self._width, True)
        logits = self._model(input_ids=self._token, attention_mask=self._seen, position_ids=self._place,
                             past_key_values=self._cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        token, logprobs = self._draw(logits, self._uniforms.index_select(1, self._at)[:, 0])
        self.written.index_copy_(1, self._at, token)
        self.logprobs.index_copy_(1, self._at, logprobs[:, None])
        self._token.copy_(token)
        self._place.add_(1)
        self._at.add_(1)

    def _recorded(self) -> Callable[[], None]:
        """The step as a graph; recording runs nothing. A first run before it has set up the libraries' memory."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")  # a reward model may run in another thread
            try:
                self._once()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return graph.replay
