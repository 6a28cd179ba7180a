"""Rollouts with the trainer's own weights: HF ``generate``, and on a GPU its step played from a CUDA graph."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.cache_utils import DynamicLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlx.models import plain_model
from rlx_plugins.hf_decode import can_record, decode
from rlx_plugins.options import HFOptions
from rlx_plugins.seeds import spread_seed, uniforms
from rlx_sdk import Fingerprint, Generation, Request, RolloutContext, Sampling

ROOM = 256
"""Positions for which a KV cache that is full gets room at once."""


class HFRollout:
    """Samples with the very module that is trained: there are no weights to copy and none to be stale."""

    def __init__(self, options: HFOptions, context: RolloutContext) -> None:
        """Keep the trainer's module."""
        self._options, self._context, self._version = options, context, -1
        self._records = context.device != "cpu" and not options.enforce_eager and can_record(
            plain_model(context.policy))

    @property
    def exact(self) -> bool:
        """In float32; in bfloat16 a KV cache gives slightly other numbers than one pass over the sequence."""
        return self._context.dtype == "float32"

    def generate(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Generation]]]:
        """Prompts of like length together, as many rows as the token budget allows."""
        with self._context.whole():
            for group in self._batches(requests):
                done = iter(self._sample([requests[i] for i in group]))
                for i in group:
                    yield i, [next(done) for _ in range(requests[i].n)]

    def sync(self, weights: Iterator[tuple[str, Tensor]], version: int) -> Fingerprint | None:
        """Nothing to copy."""
        self._version = version
        return None

    def release(self) -> None:
        """Nothing is held between calls."""

    def close(self) -> None:
        """Nothing is held."""

    def _batches(self, requests: Sequence[Request]) -> Iterator[list[int]]:
        group: list[int] = []
        for i in sorted(range(len(requests)), key=lambda i: (requests[i].sampling.max_tokens, len(requests[i].tokens))):
            length = len(requests[i].tokens) + requests[i].sampling.max_tokens
            rows = sum(requests[j].n for j in (*group, i))
            if group and (rows * length > self._options.batch_tokens
                          or requests[i].sampling != requests[group[0]].sampling):
                yield group
                group = []
            group.append(i)
        if group:
            yield group

    @torch.no_grad()
    def _sample(self, requests: Sequence[Request]) -> list[Generation]:
        """All completions of some requests of one `Sampling`, in order."""
        device = self._context.device
        prompts = [torch.tensor(r.tokens) for r in requests]
        width = max(len(p) for p in prompts)
        tokens = torch.full((len(prompts), width), self._context.pad_token_id)
        attention = torch.zeros_like(tokens)
        for i, prompt in enumerate(prompts):
            tokens[i, width - len(prompt):], attention[i, width - len(prompt):] = prompt, 1
        rows = torch.arange(len(prompts)).repeat_interleave(torch.tensor([r.n for r in requests]))
        uniforms = torch.cat([_uniforms(r) for r in requests])
        given = tokens.to(device), attention.to(device), rows.to(device), uniforms.to(device), requests[0].sampling
        with _keys_in_place():
            written, logprobs = (self._recorded(*given) if self._records else None) or self._generated(*given)
        return [self._generation(ids, values)
                for ids, values in zip(written.tolist(), logprobs.tolist(), strict=True)]

    def _recorded(self, tokens: Tensor, attention: Tensor, rows: Tensor, uniforms: Tensor,
                  sampling: Sampling) -> tuple[Tensor, Tensor] | None:
        """``[R, L]`` tokens and logprobs, with CUDA graphs; nothing if they fail, as from then on."""
        try:
            return decode(plain_model(self._context.policy), tokens, attention, rows, uniforms,
                          partial(_draw, sampling=sampling), self._context.stop_token_ids)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a model's own: whatever it does that a graph cannot hold
            print(f"hf: samples without CUDA graphs: {type(error).__name__}: {error}", file=sys.stderr)
            self._records = False
            return None

    def _generated(self, tokens: Tensor, attention: Tensor, rows: Tensor, uniforms: Tensor,
                   sampling: Sampling) -> tuple[Tensor, Tensor]:
        """The same with HF's ``generate``, whatever the model and device."""
        sampler = _Sampler(uniforms, sampling)
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=sampling.max_tokens, do_sample=False, use_cache=True,
            eos_token_id=list(self._context.stop_token_ids), pad_token_id=self._context.pad_token_id)
        with _bare_generation_config(self._context.policy):
            out = self._context.policy.generate(
                input_ids=tokens[rows], attention_mask=attention[rows], generation_config=config,
                logits_processor=LogitsProcessorList([sampler]))
        return out[:, tokens.shape[1]:], torch.stack(sampler.logprobs, 1)

    def _generation(self, ids: list[int], logprobs: list[float]) -> Generation:
        """Cut a row after its stop token; what follows is padding."""
        stops = self._context.stop_token_ids
        end = next((i + 1 for i, token in enumerate(ids) if token in stops), len(ids))
        reason = "stop" if ids[end - 1] in stops else "length"
        return Generation(ids[:end], logprobs[:end], reason, self._version)  # type: ignore[arg-type]


@contextlib.contextmanager
def _bare_generation_config(model: Any) -> Iterator[None]:
    """HF fills in what the model's own file says (repetition penalty, top_k): that would not be the policy."""
    own, model.generation_config = model.generation_config, GenerationConfig()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        model.generation_config = own


@contextlib.contextmanager
def _keys_in_place() -> Iterator[None]:
    """HF's ``sdpa`` copies masked keys and values once for each head that shares them: half the time of a CPU.

    And its cache copies all that it holds for each new token: two thirds of the time after 4,096 of them.
    """
    layer: Any = DynamicLayer
    plain, update = ALL_ATTENTION_FUNCTIONS["sdpa"], layer.update
    ALL_ATTENTION_FUNCTIONS["sdpa"], layer.update = partial(_attend, plain), _append
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"], layer.update = plain, update


def _append(layer: Any, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """``[B, heads, T, D]`` keys and values with the new ones, which a layer of HF's cache holds from now on."""
    if not layer.is_initialized:
        layer.lazy_initialization(keys, values)
    rooms = vars(layer).setdefault("rooms", {})
    for name, new in (("keys", keys), ("values", values)):
        held, (room, seen) = getattr(layer, name), rooms.get(name, (None, None))
        start = held.shape[-2] if held.numel() else 0
        end = start + new.shape[-2]
        if room is None or held is not seen or end > room.shape[-2]:
            room = new.new_empty(*new.shape[:-2], end + (ROOM if start else 0), new.shape[-1])
            room[..., :start, :] = held if start else 0
        room[..., start:end, :] = new
        setattr(layer, name, room[..., :end, :])
        rooms[name] = room, getattr(layer, name)
    return layer.keys, layer.values


def _attend(plain: Callable[..., Any], module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
            **kwargs: Any) -> Any:
    """``[B, 1, heads, D]`` for one new token: the heads that share keys stand where its positions would."""
    rows, heads, positions, _ = query.shape
    shared = heads // key.shape[1]
    if shared == 1 or positions > 1 or mask is None or mask.shape[1] > 1 or kwargs.get("position_bias") is not None:
        return plain(module, query, key, value, mask, **kwargs)
    found = scaled_dot_product_attention(query.reshape(rows, -1, shared, query.shape[3]), key, value, attn_mask=mask,
                                         scale=kwargs.get("scaling"))
    return found.reshape(rows, 1, heads, -1), None


class _Sampler(LogitsProcessor):
    """Draws each row's token by its own random number and leaves only that token possible.

    Random numbers belong to the request, not to the batch, so a prompt gets the same completions in any company.
    """

    def __init__(self, uniforms: Tensor, sampling: Sampling) -> None:
        self._uniforms, self._sampling = uniforms, sampling
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        token, logprobs = _draw(scores, self._uniforms[:, len(self.logprobs)], self._sampling)
        self.logprobs.append(logprobs)
        return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)


def _draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """``[R, 1]`` tokens and ``[R]`` logprobs before any cut, of ``[R, V]`` logits and ``[R]`` random numbers."""
    scaled = logits if sampling.temperature in (0.0, 1.0) else logits.float() / sampling.temperature
    logp = torch.log_softmax(scaled, -1, dtype=torch.float32)
    most = 1 if sampling.temperature == 0 else sampling.top_k or logp.shape[1]
    cut = sampling.top_p < 1 or most < logp.shape[1]
    ranked, ids = logp.exp().sort(dim=-1, descending=True) if cut else (logp.exp(), None)
    mass = ranked.cumsum(-1)
    kept = mass[:, -1]
    if ids is not None:
        top = mass[:, min(most, mass.shape[1]) - 1 :][:, :1]
        last = (mass < sampling.top_p * top).sum(-1, keepdim=True)
        kept = mass.gather(1, last.clamp(max=mass.shape[1] - 1))[:, 0]
    place = torch.searchsorted(mass, (uniforms * kept)[:, None], right=True).clamp(max=mass.shape[1] - 1)
    token = place if ids is None else ids.gather(1, place)
    return token, logp.gather(1, token)[:, 0]


def _uniforms(request: Request) -> Tensor:
    """``[n, max_tokens]`` numbers in [0, 1), from the request's seed alone."""
    seeds = spread_seed(request.seed) + np.arange(request.n, dtype=np.uint64)[:, None]
    return torch.from_numpy(uniforms(seeds, np.arange(request.sampling.max_tokens, dtype=np.uint64)[None]))
