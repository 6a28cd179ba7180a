"""What a run will need on GPUs that are not here: memory as `rlx check` estimates it, and seconds by formulas.

The formulas, for one rank of ``R``, a model of ``N`` weights in bfloat16, and ``P`` passes of an update:

- computing: ``tokens · F / (R · USED · FLOPS)``. F is 6N a trained token, 8N with recomputed activations, and 2N for
  each model that only answers (old and reference logprobs, values).
- moving: bytes over ``link``, times ``(R − 1) / R``. Stage 1, once an update: gradients in float32, then weights
  (4N + 2N). Stage 2: gradients in each pass, weights once (2N·P + 2N). Stage 3: in each pass weights for forward and
  backward, and gradients (6N·P); a pass without gradients 2N.
- the optimizer: 30N / R bytes of masters, moments, gradients and weights through memory.
- sampling with vLLM: tokens of the longest completion times ``HOST + layers · LAYER + (2N + KV / R) / MEMORY``: only
  the keys and values that are read are divided by the ranks.

What is added up is taken to happen one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlx.memory import GIB, Load, Role, Shape, estimate
from rlx.spec import EngineSpec

FLOPS = 989e12
"""Of an H200 in bfloat16, as its maker says."""
USED = 0.25
"""Part of it that is used: 0.14 to 0.33 were measured (docs/scaling.md)."""
MEMORY = 3.4e12
"""Bytes a second of its memory: 0.7 of what its maker says."""
HOST, LAYER = 6e-3, 1e-4
"""Seconds of vLLM's scheduler a token, and of the kernels of a layer: measured (docs/performance.md)."""
LINKS = {"node": 300e9, "nodes": 40e9}
"""Bytes a second that a GPU sends, assumed: through NVLink without multicast, through a network of 400 Gb/s a GPU."""
SHAPES = {"0.5B": Shape(494_032_768, 24, 896, 4864, 151_936, 14, 2, 64),
          "7B": Shape(7_615_616_512, 28, 3584, 18_944, 152_064, 28, 4, 128, tied=False)}
"""Of Qwen2.5."""
TRAINED, FROZEN = {"ppo": ("policy", "critic")}, {"ppo": 3, "grpo": 1}
"""By algorithm: roles that learn, and models that answer for each sampled token (dpo's reference is kept on disk)."""


@dataclass(frozen=True)
class Work:
    """A step: rows of prompt and completion, tokens a pass; ``rows`` are those of all ranks (a pair counts as two)."""

    algo: str
    rows: int = 256
    prompt: int = 256
    completion: int = 1024
    micro_tokens: int = 16_384

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return self.rows * (self.prompt + self.completion)

    @property
    def sampled(self) -> bool:
        """Whether the policy writes the completions."""
        return self.algo in FROZEN


def seconds(shape: Shape, work: Work, engine: EngineSpec, ranks: int, link: float) -> dict[str, float]:
    """Of a step, by phase."""
    n, stage, learn = shape.weights, engine.zero_stage, len(TRAINED.get(work.algo, ("policy",)))
    passes, each = -(-work.tokens // (ranks * work.micro_tokens)), work.tokens / (ranks * USED * FLOPS)
    sent = (ranks - 1) / ranks / link  # seconds a byte
    moved = {1: 6 * n, 2: 2 * n * (passes + 1), 3: 6 * n * passes}[stage]
    computed = each * n * (8 if engine.activation_checkpointing else 6)
    asked = FROZEN.get(work.algo, 0)
    gathered = 2 * n * passes * learn if stage == 3 and asked else 0  # models that only answer are on each GPU whole
    keys = 4 * shape.layers * shape.kv * work.rows * (work.prompt + work.completion / 2)
    token = HOST + shape.layers * LAYER + (2 * n + keys / ranks) / MEMORY
    found = {"rollout": work.completion * token if work.sampled else 0.0,
             "prepare": asked * each * 2 * n + gathered * sent,
             "update": learn * (computed + moved * sent + 30 * n / ranks / MEMORY)}
    return {**found, "step": sum(found.values())}


def memory(shape: Shape, work: Work, engine: EngineSpec, ranks: int) -> float:
    """Bytes of one rank at the most, but for vLLM's own while it samples."""
    trained = TRAINED.get(work.algo, ("policy",))
    roles = [Role(name, shape, shape.weights - (0 if name == "policy" else shape.head), name == "policy")
             for name in trained]
    roles += [Role("reference", shape, 0)] if work.sampled else []
    row = work.prompt + work.completion
    tokens = max(row, min(work.micro_tokens, work.rows * row // ranks))
    return estimate(roles, engine, True, ranks, Load(tokens, row, tokens, work.algo == "dpo")).peak


def table(shape: Shape) -> Iterator[dict[str, Any]]:
    """Every algorithm and ZeRO stage on a GPU, two, a node of eight, and four nodes."""
    for algo in ("sft", "dpo", "grpo", "ppo"):
        for stage in (1, 2, 3):
            for ranks, link in ((1, "node"), (2, "node"), (8, "node"), (32, "nodes")):
                engine = EngineSpec(zero_stage=stage, activation_checkpointing=True)
                times = seconds(shape, Work(algo), engine, ranks, LINKS[link])
                yield {"algo": algo, "zero_stage": stage, "ranks": ranks,
                       "gib": round(memory(shape, Work(algo), engine, ranks) / GIB, 1),
                       **{name: round(value, 1) for name, value in times.items()}}
