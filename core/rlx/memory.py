"""How much memory a run needs, part by part, estimated from the model's files and the spec. No torch.

First principles, compared with what is really alive in small runs (tests/spec/test_memory.py): what DeepSpeed holds a
trained weight, what autograd keeps a token of an HF Llama or Qwen2 layer, and what the head takes for a moment.

| bytes held | stage 1, bfloat16 | stage 1, float32 | stage 2 | stage 3 |
|---|---|---|---|---|
| working weights | 2 | 4 | 2 or 4 | 2 or 4, split |
| masters, moments | 12, split | 12, split | 12, split | 12, split |
| accumulated gradients | 4 | in passes: 4 | in passes: 4, split | 4, split |
| working gradients, in passes | 2 | | | |
| a bucket of gradients (of at most 200 million) | | in passes: 4 | in passes: 2 or 4 | 2 or 4 |

With `EngineSpec.offload` masters and moments are on the CPU. In bfloat16 stages 1 and 2 accumulate gradients on the GPU
all the same, stage 1 in passes alone and with a bucket in float32; in float32 and at stage 3 that happens on the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from rlx.spec import EngineSpec

GIB = 2**30
LOGITS = 1 << 27
"""Logits in a chunk on a GPU (`rlx.models.logprobs`). With what is made of each it takes 10 bytes at temperature 1, 12
at others, and with an entropy bonus 18 in bfloat16 and 20 in float32."""
BUCKET = 200_000_000
"""Gradients that are reduced at once, at most; `rlx.engine` makes the bucket smaller for smaller models."""
LIVE = 1_000_000_000
"""Weights that stage 3 keeps gathered, at most: DeepSpeed's default."""


@dataclass(frozen=True)
class Shape:
    """What decides a model's memory; ``weights`` counts its parameters."""

    weights: int
    layers: int
    hidden: int
    inner: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = True

    @property
    def attention(self) -> int:
        """Width of queries, and of what attention gives."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """Width of keys, and of values."""
        return self.kv_heads * self.head_dim

    @property
    def head(self) -> int:
        """Weights of the output layer."""
        return self.vocabulary * self.hidden

    def layer_elements(self, half: bool, row: int, masked: bool, fused: bool = False) -> int:
        """Numbers of the working width that a decoder layer keeps a token for its backward pass.

        Of the MLP gate, up, activation and product; of each norm its input and what it gives, in bfloat16 also both in
        between, one of them in float32; of attention queries, keys, values and the result. A mask keeps flash attention
        away, as does float32 with fewer keys than queries, for which torch computes and keeps all scores. Compiled,
        norms keep their input only.
        """
        scores = row if masked else self.heads * row if not half and self.kv < self.attention else 0
        attention = 4 * self.attention if scores else 2 * (self.attention + self.kv)
        norms = 2 if fused else 8 if half else 6
        return 4 * self.inner + norms * self.hidden + attention + scores


def shape_of(folder: Path) -> Shape | None:
    """Of an HF folder with safetensors; None where that cannot be known without loading it."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tied = config.get("tie_word_embeddings", True)
        config = config.get("text_config", config)
        weights = sum(prod(tensor["shape"]) for file in sorted(folder.glob("*.safetensors"))
                      for name, tensor in _header(file).items() if name != "__metadata__")
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return Shape(weights, config["num_hidden_layers"], hidden, config["intermediate_size"], config["vocab_size"],
                     heads, config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads, tied)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _header(file: Path) -> Mapping[str, Any]:
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > file.stat().st_size:
            raise ValueError(f"{file} is no safetensors file")
        header: dict[str, Any] = json.loads(stream.read(size))
    return header


def lora_weights(shape: Shape, rank: int) -> int:
    """Roughly those of an adapter of all linear layers."""
    attention, mlp = 4 * shape.hidden + 2 * (shape.hidden + shape.kv), 3 * (shape.hidden + shape.inner)
    return rank * shape.layers * (attention + mlp)


@dataclass(frozen=True)
class Role:
    """A model of a run; ``trained`` counts the weights that are; with a head it gives logprobs, without one scores."""

    name: str
    shape: Shape
    trained: int
    head: bool = True

    @property
    def weights(self) -> int:
        """Those that are loaded."""
        return self.shape.weights - (0 if self.head or self.shape.tied else self.shape.head)


@dataclass(frozen=True)
class Load:
    """What is computed at once.

    Attributes:
        tokens: of one forward and backward pass.
        row: tokens of its longest row.
        learned: tokens of it whose logprobs are computed.
        masked: attention is told which tokens see which (pairs behind one prompt, packed rows).
        sampled: tokens in the KV cache at once, over this rank's completions.
        sampled_rows: completions sampled at once.
    """

    tokens: int
    row: int
    learned: int
    masked: bool = False
    sampled: int = 0
    sampled_rows: int = 0


@dataclass(frozen=True)
class Estimate:
    """Bytes of each part on one GPU, and the most at any time."""

    parts: Mapping[str, float]
    peak: float
    phase: str


def estimate(roles: list[Role], engine: EngineSpec, half: bool, ranks: int, load: Load) -> Estimate:
    """The memory of one rank.

    Under `EngineSpec.offload_while_sampling` optimizer and gradients are those of the role that learns, while it does;
    stage 3 keeps the gradients of all roles where they are.

    Args:
        roles: models that are loaded; a LoRA policy's reference is none of its own.
        engine: ZeRO stage, offload, activation checkpointing.
        half: bfloat16 weights, else float32.
        ranks: GPUs.
        load: what is computed at once.
    """
    width, gathered = 2 if half else 4, engine.zero_stage == 3 and ranks > 1
    weights = sum(role.weights / (ranks if gathered and role.trained else 1) for role in roles) * width
    weights = 0 if engine.offload == "all" else weights
    weights += width * min(LIVE, max(role.weights for role in roles)) if gathered or engine.offload == "all" else 0
    trained = [role for role in roles if role.trained]
    updates = {role.name: _update(role, engine, half, ranks, load) for role in trained}
    away = {role.name: (12 * role.trained / ranks, _gradients(role, engine, width, ranks)[0] * (engine.zero_stage < 3))
            if engine.offload_while_sampling else (0, 0) for role in trained}
    largest = max(updates, key=lambda name: sum(updates[name]) + sum(away[name]))
    gradients, activations = updates[largest]
    there = [role for role in trained if role.name == largest or not engine.offload_while_sampling]
    optimizer = 0 if engine.offload else sum(12 * role.trained / ranks for role in there)
    held = sum(_gradients(role, engine, width, ranks)[0] for role in (trained if engine.zero_stage == 3 else there))
    policy = roles[0].shape
    cache = 2 * policy.layers * policy.kv * width * load.sampled + 24 * policy.vocabulary * load.sampled_rows
    peaks = {f"the update of the {largest}": gradients + activations, "rollouts": cache - sum(away[largest])}
    phase = max(peaks, key=lambda name: peaks[name])
    parts = {"weights": weights, "optimizer": optimizer, "gradients": held + gradients, "activations": activations,
             "KV cache": cache}
    return Estimate(parts, weights + optimizer + held + peaks[phase], phase)


def _gradients(role: Role, engine: EngineSpec, width: int, ranks: int) -> tuple[float, float, float]:
    """Bytes that are held always, in passes beside that, and when gradients are reduced or applied beside both."""
    n, bucket = role.trained, width * min(BUCKET, role.trained)
    share = 0 if engine.offload and (width == 4 or engine.zero_stage == 3) else 4 * n / ranks
    if engine.zero_stage == 1 and width == 2 and not engine.offload:
        return 4 * n, 2 * n, 2 * n / ranks
    if engine.zero_stage == 1:
        return 0, (8 - width) * n + bucket / width * 4, 4 * n / ranks
    if engine.zero_stage == 2:
        return 0, share + bucket, bucket + 4 * role.shape.head
    return share + bucket, 0, bucket + bucket / width * 4


def _update(role: Role, engine: EngineSpec, half: bool, ranks: int, load: Load) -> tuple[float, float]:
    """Gradients and activations that are there only while a role learns.

    The gradient of the head is summed in float32, and is not needed where the head is not trained.
    """
    shape, width, tokens = role.shape, 2 if half else 4, load.tokens
    kept = shape.layer_elements(half, load.row, load.masked, bool(engine.compile))
    chunk = 20 * min(LOGITS, load.learned * shape.vocabulary) if role.head else 0
    head = chunk + (6 * shape.head if role.head and role.trained == shape.weights else 0)
    layers, moment = kept * shape.layers, 2 * shape.inner
    if engine.activation_checkpointing:
        layers, moment = shape.layers * shape.hidden, kept + moment
    activations = tokens * width * (layers + 6 * shape.hidden) + max(head, tokens * width * moment)
    _, passing, ending = _gradients(role, engine, width, ranks)
    if role.trained > BUCKET and engine.zero_stage > 1:  # reduced during the backward pass, not only after it
        return passing + ending, float(activations)
    return passing + max(0, ending - activations), float(activations)


def checkpoint_bytes(roles: list[Role], half: bool) -> int:
    """On disk: the HF folder in the working dtype, and float32 weights and moments."""
    return sum(role.weights * (2 if half else 4) + 12 * role.trained for role in roles if role.trained)
