"""Algorithms by ZeRO stage, offload and model size: tokens a second and peak memory, one job after another."""

from __future__ import annotations

import gc
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from rlx.build import build
from rlx.inputs import read_inputs
from rlx.logs import library_log
from rlx.plan import resolve
from rlx.ranks import Ranks, start_distributed
from rlx.registry import Registry
from rlx.trainer import Recorder

WORDS = "river market teacher small bright train winter letter window garden answer question morning paper".split()
ZERO: list[dict[str, Any]] = [{"zero_stage": stage} for stage in (1, 2, 3)]
SMALL: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((algo, engine, {}) for algo in ("ppo", "dpo", "sft") for engine in ZERO),
    ("sft", {"zero_stage": 2, "offload": "optimizer"}, {}),
    ("sft", {"zero_stage": 3, "offload": "all"}, {}),
    ("sft", {"activation_checkpointing": True}, {}),
    ("sft", {"dtype": "float32"}, {}),
    ("dpo", {}, {"lora": {"rank": 16}}),
]
LARGE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("sft", {"activation_checkpointing": True}, {"lora": {"rank": 16}}),
    *(("sft", {**engine, "activation_checkpointing": True}, {}) for engine in ZERO),
]
QWEN_7B = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
           "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
           "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None}


class Silent(Recorder):
    """A recorder that keeps the metrics, and passes over all else."""

    def __init__(self) -> None:
        """Start empty."""
        self.metrics: list[Mapping[str, float]] = []

    def step(self, step: int, metrics: Mapping[str, float], samples: Any) -> None:
        """A step is done."""
        self.metrics.append(metrics)


def write_pairs(file: Path, rows: int, words: int) -> None:
    """Preference pairs whose sides have about ``words`` words."""
    draw = random.Random(0)

    def text(n: int) -> str:
        return " ".join(draw.choices(WORDS, k=n))

    with file.open("w", encoding="utf-8") as out:
        for _ in range(rows):
            sides = {name: text(draw.randint(words // 2, words)) for name in ("chosen", "rejected")}
            out.write(json.dumps({"prompt": text(12), "completion": sides["chosen"], **sides}) + "\n")


def write_large(folder: Path, tokenizer_of: str) -> Path:
    """A model of Qwen2.5-7B's shape with random weights."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM(Qwen2Config(**QWEN_7B))
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_of).save_pretrained(folder)
    return folder


def measure(model: str, large: bool, steps: int, batch: int, words: int) -> Iterator[dict[str, Any]]:
    """Run every job; figures are medians after one step of warm-up."""
    with library_log(None):
        ranks = start_distributed()
    registry = Registry.discover()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "pairs.jsonl"
        write_pairs(data, batch * (steps + 1), words)
        if large:
            model = str(write_large(Path(folder) / "model", model))
        for algo, engine, more in LARGE if large else SMALL:
            rollout = {"max_completion": 128} if algo == "ppo" else {}
            spec = {"algo": {"name": algo}, "engine": engine,
                    "model": {"path": model, **more, **({"reference": {"cache": False}} if algo == "dpo" else {})},
                    "data": {"path": str(data), "cache": folder}, "run": {"dir": folder},
                    "train": {"steps": steps + 1, "batch_size": batch, "micro_tokens": 16384},
                    **({"rewards": [{"name": "polite_length"}], "rollout": rollout} if algo == "ppo" else {})}
            begin = time.monotonic()
            try:
                with library_log(None), redirect_stdout(None):
                    found = _job(registry, spec, ranks, steps)
            except torch.cuda.OutOfMemoryError:
                found = {"failed": "out of memory"}
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            yield {"algo": algo, **engine, **more, **found, "seconds_in_all": round(time.monotonic() - begin, 1)}


def _job(registry: Registry, spec: dict[str, Any], ranks: Ranks, steps: int) -> dict[str, Any]:
    plan, notes = resolve(registry, spec), Silent()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    trainer = build(plan, read_inputs(plan), ranks, notes)
    trainer._sync()
    for _ in range(steps + 1):
        trainer.train_step()
    trainer.source.close()
    for engine in trainer.engines.values():
        engine._deepspeed.destroy()
    kept = ("time/step", "time/update", "time/rollout", "speed/trained_tokens_per_s", "speed/generated_tokens_per_s")
    middle = {key: round(statistics.median(line[key] for line in notes.metrics[1:]), 3)
              for key in kept if key in notes.metrics[-1]}
    peak = notes.metrics[-1].get("memory/peak_gb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    return {**middle, "peak_gb": round(peak, 2), "loss": round(notes.metrics[-1]["loss/policy"], 4),
            "grad_norm": round(notes.metrics[-1]["grad_norm/policy"], 4)}
