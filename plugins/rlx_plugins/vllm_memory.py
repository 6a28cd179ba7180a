"""How much of a GPU vLLM takes beside the training it shares it with, and whether it gives that back meanwhile."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from rlx_plugins.options import VLLMOptions

BLOCK = 64
"""Tokens of a KV cache that are given at once: 16 mostly, with some kinds of attention more."""
BESIDE = 3 << 30
"""Bytes that vLLM keeps beside weights and KV cache: buffers and CUDA graphs."""
MOST_ROWS = 1024
"""That are sampled at once; more wait, as vLLM has it by itself on the largest GPUs."""


@dataclass(frozen=True)
class Memory:
    """What is known of the GPU that the engine shares with training.

    Attributes:
        options: what the user asks for.
        weights: bytes of the model's.
        later: bytes that training will allocate for good before the engine sleeps for the first time: Adam's moments.
        rows: that are sampled at once at most; None leaves it to vLLM.
        cache: bytes of a KV cache that holds all that is sampled at once; None where that is not known.
        spare: bytes that training leaves free when it needs most, by estimate; None where that is not known.
    """

    options: VLLMOptions
    weights: int
    later: int
    rows: int | None
    cache: int | None
    spare: int | None

    def settings(self) -> tuple[dict[str, Any], bool]:
        """Of vLLM, and whether it is to sleep while the trainer updates.

        By default a KV cache for all that is sampled at once, but no more than most of what is free. It stays while
        training where it takes at most half of what that leaves: half a second a step is saved, and estimates are not
        exact.
        """
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        asked, spare = self.options, self.spare or 0
        if asked.kv_cache_gib is not None:  # vLLM, asleep, would take what others allocate for an error of its own
            return _kept(int(asked.kv_cache_gib * 2**30)), False
        part = asked.gpu_memory_utilization or max(0.2 * free, 0.8 * (free - self.later)) / total
        needs = (self.cache or 0) + self.weights + BESIDE
        if asked.gpu_memory_utilization is None and self.cache and needs <= max(part * total, spare):
            sleeps = needs > spare / 2
            print(f"vllm: a KV cache of {self.cache / 2**30:.1f} GiB, for all that is sampled at once"
                  f"{'' if sleeps else '; it stays while the trainer updates'}", file=sys.stderr)
            return {**_kept(self.cache), "enable_sleep_mode": sleeps}, sleeps
        print(f"vllm: takes {part * total / 2**30:.1f} GiB while it samples; {free / 2**30:.1f} of "
              f"{total / 2**30:.1f} GiB are free", file=sys.stderr)
        return {"gpu_memory_utilization": part, "enable_sleep_mode": True}, True


def _kept(cache: int) -> dict[str, Any]:
    """A KV cache of so many bytes; the part of the GPU, which then decides nothing, must be free."""
    return {"kv_cache_memory_bytes": cache, "gpu_memory_utilization": 0.01}


def cache_bytes(config: Any, rows: int, tokens: int, dtype: torch.dtype) -> int | None:
    """Of a KV cache for so many rows of so many tokens; None where not all layers keep keys and values of equal heads.

    Others have states in place of them, or compress them, or differ from each other.
    """
    try:
        text = config.get_text_config()
        heads = text.num_key_value_heads * (getattr(text, "head_dim", None) or
                                            text.hidden_size // text.num_attention_heads)
        layers, kinds = text.num_hidden_layers, set(getattr(text, "layer_types", None) or ())
        if getattr(text, "kv_lora_rank", None) or not kinds <= {"full_attention", "sliding_attention"}:
            return None
    except (AttributeError, TypeError, RuntimeError, ValueError):  # what transformers raises for a value of several
        return None
    blocks = rows * (-(-tokens // BLOCK) + 1) + 1
    return int(blocks * BLOCK * 2 * layers * heads * dtype.itemsize)
