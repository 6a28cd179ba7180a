"""How much memory a run needs, part by part, estimated from the model's files and the spec. No torch.

Bytes a weight, as DeepSpeed holds them (measured in docs/engine.md): working weights 2 in bfloat16, masters 4, Adam's
moments 8, accumulated gradients 4; at stage 1 also the working gradients, and one flat copy of the accumulated ones
while the optimizer steps. The stages divide what they split by the number of ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from rlx.spec import EngineSpec

GIB = 2**30
LOGITS = 1 << 24
"""Logits in a chunk (`rlx.models.logprobs`); it and what is made of it are there five times, in float32."""


@dataclass(frozen=True)
class Shape:
    """What decides a model's memory; ``weights`` counts its parameters."""

    weights: int
    layers: int
    hidden: int
    inner: int
    vocabulary: int
    kv: int

    @property
    def layer_elements(self) -> int:
        """Numbers that a decoder layer keeps a token for its backward pass, with flash attention."""
        return 20 * self.hidden + 4 * self.inner


def shape_of(folder: Path) -> Shape | None:
    """Of an HF folder with safetensors; None where that cannot be known without loading it."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        weights = sum(prod(tensor["shape"]) for file in sorted(folder.glob("*.safetensors"))
                      for name, tensor in _header(file).items() if name != "__metadata__")
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv = (config.get("num_key_value_heads") or heads) * (config.get("head_dim") or hidden // heads)
        layers, inner = config["num_hidden_layers"], config["intermediate_size"]
        return Shape(weights, layers, hidden, inner, config["vocab_size"], kv)
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
    """A model of a run; ``trained`` counts the weights that are."""

    name: str
    shape: Shape
    trained: int


@dataclass(frozen=True)
class Estimate:
    """Bytes of each part on one GPU, and the most at any time."""

    parts: Mapping[str, float]
    peak: float
    phase: str


def estimate(roles: list[Role], engine: EngineSpec, half: bool, ranks: int, pass_tokens: int,
             sampled_tokens: int = 0) -> Estimate:
    """The memory of one rank.

    Args:
        roles: models that are loaded; a LoRA policy's reference is none of its own.
        engine: ZeRO stage, offload, activation checkpointing.
        half: bfloat16 weights, else float32.
        ranks: GPUs.
        pass_tokens: of one forward and backward pass.
        sampled_tokens: in the KV cache at once, over this rank's completions.
    """
    width, stage, split = 2 if half else 4, engine.zero_stage, ranks if engine.zero_stage >= 2 else 1
    weights = sum(role.shape.weights * width / (ranks if stage == 3 and role.trained else 1) for role in roles)
    weights = 0 if engine.offload == "all" else weights
    optimizer = 0 if engine.offload else sum(12 * role.trained / ranks for role in roles)
    trained = [role for role in roles if role.trained]
    updates = {role.name: dict(_update(role, engine, width, ranks, split, pass_tokens)) for role in trained}
    largest = max(updates, key=lambda name: sum(updates[name].values()))
    policy = roles[0].shape
    cache = 2 * policy.layers * policy.kv * width * sampled_tokens
    peaks = {f"the update of the {largest}": sum(updates[largest].values()), "rollouts": cache}
    phase = max(peaks, key=lambda name: peaks[name])
    parts = {"weights": weights, "optimizer": optimizer, **updates[largest], "KV cache": cache}
    return Estimate(parts, weights + optimizer + peaks[phase], phase)


def _update(role: Role, engine: EngineSpec, width: int, ranks: int, split: int,
            tokens: int) -> Iterator[tuple[str, float]]:
    """What is there only while a role learns."""
    shape, kept = role.shape, role.shape.layer_elements
    per_token = shape.layers * shape.hidden + kept if engine.activation_checkpointing else shape.layers * kept
    yield "gradients", role.trained * ((0 if engine.offload else 4 / split)
                                       + (width + 4 / ranks if engine.zero_stage == 1 else 0))
    yield "activations", float(tokens * per_token * width + 20 * min(LOGITS, tokens * shape.vocabulary)
                               + 4 * shape.vocabulary * shape.hidden)


def checkpoint_bytes(roles: list[Role], half: bool) -> int:
    """On disk: the HF folder in the working dtype, and float32 weights and moments."""
    return sum(role.shape.weights * (2 if half else 4) + 12 * role.trained for role in roles if role.trained)
