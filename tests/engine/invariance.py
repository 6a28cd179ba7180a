"""One process of the invariance test: a few steps of every algorithm on given data, under each of several settings.

    python invariance.py FOLDER [DTYPE [CASE/SETTING,…]]

A case is ``<algorithm>-<data>``. Rank 0 writes ``CASE/SETTING.safetensors`` (how the weights moved) and ``.json``
(metrics of each step).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils import safe_get_full_fp32_param
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import rlx
from rlx import build as building
from rlx import engine
from rlx.engine import BUCKET, Engine
from rlx.inputs import read_inputs
from rlx.logs import library_log
from rlx.plan import Plan, resolve
from rlx.ranks import Ranks, start_distributed
from rlx.registry import Registry
from rlx.sources import Collected, Source
from rlx.trainer import Recorder
from rlx_sdk import Demonstrations, Labelled, Pairs, Rollouts, Sequences

QUICK = Path(rlx.__file__).parent / "quickstart"
STEPS = 2
# Prompt and completion tokens of each row; rows of a group have one prompt, and a group stays on one rank.
LENGTHS = [(5, 40), (5, 1), (5, 17), (9, 3), (9, 26), (2, 8), (2, 33), (2, 12)]
GROUPS = [0, 0, 0, 1, 1, 2, 2, 2]
REWARDS = [1.0, -0.5, 0.25, 0.0, 1.5, -1.0, 0.75, float("nan")]  # the last one was not judged
# ``bucket``: gradients reduced at once, fewer than those of the embedding, as with a large model.
SETTINGS: dict[str, dict[str, Any]] = {
    "zero1-whole": {"micro_batch": 8},
    "zero1-rows1": {"micro_batch": 1},
    "zero1-rows3": {"micro_batch": 3},
    "zero1-tokens": {"micro_tokens": 64},
    "zero1-packed": {"micro_tokens": 64, "packing": True},
    "zero3-packed": {"micro_tokens": 64, "packing": True, "engine": {"zero_stage": 3}},
    "zero1-offload-rows3": {"micro_batch": 3, "engine": {"offload": "optimizer"}},
    "zero2-rows1": {"micro_batch": 1, "engine": {"zero_stage": 2}},
    "zero2-offload-tokens": {"micro_tokens": 64, "bucket": 5000, "engine": {"zero_stage": 2, "offload": "optimizer"}},
    "zero3-rows1": {"micro_batch": 1, "engine": {"zero_stage": 3}},
    "zero3-rows8": {"micro_batch": 8, "engine": {"zero_stage": 3}},
    "zero3-recompute-tokens": {"micro_tokens": 64, "engine": {"zero_stage": 3, "activation_checkpointing": True}},
    "zero3-offload-rows3": {"micro_batch": 3, "bucket": 5000, "engine": {"zero_stage": 3, "offload": "all"}},
    "lora-zero1-whole": {"micro_batch": 8, "lora": {"rank": 4}},
    "lora-zero1-rows1": {"micro_batch": 1, "lora": {"rank": 4}},
    "lora-zero2-offload-rows3": {"micro_batch": 3, "lora": {"rank": 4},
                                 "engine": {"zero_stage": 2, "offload": "optimizer"}},
    "lora-zero3-tokens": {"micro_tokens": 64, "lora": {"rank": 4}, "engine": {"zero_stage": 3}},
}


GATE = ("zero1-whole", "zero1-packed", "zero2-offload-tokens", "zero3-offload-rows3", "lora-zero1-whole")
"""Settings of the gate; the rest takes long."""
EVERY_SETTING = ("ppo", "dpo", "sft")
SOME_SETTINGS = {1: ("zero1-whole",), 2: ("zero3-offload-rows3",)}
"""For the other algorithms in the gate, by rank count, so that it stays short."""


def in_gate(world: int, case: str, setting: str) -> bool:
    """Whether the gate runs it."""
    every = case.rpartition("-")[0] in EVERY_SETTING
    return setting in GATE and (every or setting in SOME_SETTINGS[world])


def cases(registry: Registry) -> dict[str, tuple[str, bool]]:
    """Name, algorithm, and whether rewards are given, of every algorithm with every kind of data that it takes."""
    found = {}
    for entry in registry.entries("algorithm"):
        for given in (True, False):
            needs = entry.call("needs", entry.call("config")(), given)
            if needs.rewards == given:
                found[f"{entry.name}-{needs.data}"] = entry.name, given
    return found


def fits(registry: Registry, case: str, setting: str) -> bool:
    """Whether there is such a combination: an adapter is one of the policy."""
    entry, given = registry.get("algorithm", cases(registry)[case][0]), cases(registry)[case][1]
    return "lora" not in SETTINGS[setting] or "policy" in entry.call("needs", entry.call("config")(), given).trains


def random_sequences(lengths: list[tuple[int, int]], seed: int) -> Sequences:
    """Random tokens, with random garbage in the padding too."""
    generator = torch.Generator().manual_seed(seed)
    length = torch.tensor([p + c for p, c in lengths])
    tokens = torch.randint(8, 3000, (len(lengths), int(length.max()) + 3), generator=generator)
    place = torch.arange(tokens.shape[1])
    mask = (place >= torch.tensor([p for p, _ in lengths])[:, None]) & (place < length[:, None])
    logprobs = -6 - 4 * torch.rand(tokens.shape, generator=generator)
    return Sequences(tokens, length, mask, {"rollout_logprobs": torch.where(mask, logprobs, 1e3)})


def data_of(kind: str, groups: set[int]) -> Any:
    """The rows of some groups."""
    rows = torch.tensor([i for i, group in enumerate(GROUPS) if group in groups], dtype=torch.long)
    seqs = random_sequences(LENGTHS, 1)
    if kind == "rollouts":
        rewards = torch.tensor(REWARDS)
        seqs.per_token["token_rewards"] = torch.zeros(seqs.tokens.shape)  # type: ignore[index]
        return Rollouts(seqs[rows], rewards[rows], ~rewards[rows].isnan(), torch.tensor(GROUPS)[rows],
                        torch.zeros(len(rows), dtype=torch.bool))
    kept = Sequences(seqs.tokens, seqs.length, seqs.mask)[rows]
    if kind == "demonstrations":
        return Demonstrations(kept, rows)
    if kind == "labelled":
        return Labelled(kept, rows % 3 > 0, rows)
    other = random_sequences([(p, 1 + c // 2) for p, c in LENGTHS], 2)
    for i, (prompt, _) in enumerate(LENGTHS):
        other.tokens[i, :prompt] = seqs.tokens[i, :prompt]
    return Pairs(kept, Sequences(other.tokens, other.length, other.mask)[rows], rows)


class GivenSource(Source):
    """The same rows in every step; rank 0 of two has one group, rank 1 the others."""

    def __init__(self, kind: str, ranks: Ranks) -> None:
        self.data = data_of(kind, set(ranks.share(sorted(set(GROUPS)))))

    def collect(self, phase: Any) -> Collected:
        return Collected(self.data)

    evaluate = collect

    def sync(self, weights: Iterator[Any], version: int) -> None:
        for _ in weights:
            pass


class Notes(Recorder):
    """A recorder that keeps the metrics, and passes over all else."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def step(self, step: int, metrics: Any, samples: Any) -> None:
        self.metrics.append({k: v for k, v in metrics.items() if not k.startswith(("time/", "speed/", "memory/"))})

    def evaluated(self, step: int, metrics: Any, samples: Any) -> None:
        self.step(step, metrics, samples)


def sgd(parameters: Any, optim: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


ROW = {"instruction": "Say hello.", "output": "Hello there.", "chosen": "Hello.", "rejected": "Go.", "label": True}


def small_model(folder: Path, seed: int) -> None:
    """The bundled model's tokenizer with fewer and larger random weights."""
    config = LlamaConfig.from_pretrained(QUICK / "rlx-tiny", num_hidden_layers=2, hidden_size=64, head_dim=16,
                                         intermediate_size=96, num_key_value_heads=2, initializer_range=0.1)
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(QUICK / "rlx-tiny").save_pretrained(folder)


def plan_of(registry: Registry, algo: str, rewards: bool, options: dict[str, Any], folder: Path) -> Plan:
    entry, optim = registry.get("algorithm", algo), {"lr": 1.0, "grad_clip": 0.05}
    needs = entry.call("needs", entry.call("config")(), rewards)
    train = {"steps": STEPS, "batch_size": 8, "minibatches": 2,
             "optim": dict.fromkeys(needs.trains, optim),
             **{k: options[k] for k in ("micro_batch", "micro_tokens", "packing") if k in options}}
    model = {"path": str(folder / "model")} | ({"lora": options["lora"]} if "lora" in options else {})
    if needs.teacher:
        model["reference"] = {"path": str(folder / "teacher")}
    random = {"importance": {"max_logprob_diff": 100.0}} if "importance" in entry.call("config").model_fields else {}
    return resolve(registry, {
        "algo": {"name": algo, **random}, "model": model,
        "engine": {"dtype": options["dtype"], **options.get("engine", {})}, "train": train,
        "data": {"path": str(folder / "rows.jsonl"), "cache": str(folder / "cache")},
        **({"rewards": [{"name": "polite_length"}]} if rewards else {})})


def moved(plan: Plan, ranks: Ranks) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """How every trained weight moved, and the metrics."""
    notes = Notes()
    trainer = building.build(plan, read_inputs(plan), ranks, notes)
    trainer.source.close()
    trainer.source = GivenSource(plan.needs.data, ranks)
    trainer.context.exact_rollouts = False
    before = masters(trainer)
    for _ in range(STEPS):
        trainer.train_step()
    trainer.evaluate()
    after = masters(trainer)
    return {name: after[name] - before[name] for name in before}, notes.metrics


def masters(trainer: Any) -> dict[str, torch.Tensor]:
    """The float32 weights of all roles."""
    return {f"{role}/{name}": safe_get_full_fp32_param(parameter).cpu().flatten().clone()
            for role, engine in trainer.engines.items() for name, parameter in engine._trained()}


def main(folder: Path, dtype: str = "float32", wanted: str = "") -> None:
    with library_log(None):
        ranks = start_distributed()
        ranks.first_does(lambda: [small_model(folder / name, seed) for seed, name in enumerate(("model", "teacher"))])
        ranks.first_does(lambda: (folder / "rows.jsonl").write_text(f"{json.dumps(ROW)}\n" * 8))
    building.Engine = functools.partial(Engine, make_optimizer=sgd)
    registry = Registry.discover()
    known = cases(registry)
    every = (f"{case}/{setting}" for case in known for setting in SETTINGS if fits(registry, case, setting))
    for name in wanted.split(",") if wanted else every:
        case, _, setting = name.partition("/")
        begin = time.monotonic()
        with library_log(None), contextlib.redirect_stdout(None):
            engine.BUCKET = SETTINGS[setting].get("bucket", BUCKET)
            plan = plan_of(registry, *known[case], {**SETTINGS[setting], "dtype": dtype}, folder)
            change, metrics = moved(plan, ranks)
        if ranks.first:
            (folder / case).mkdir(exist_ok=True)
            save_file(change, folder / f"{name}.safetensors")
            (folder / f"{name}.json").write_text(json.dumps(metrics))
            print(f"{time.monotonic() - begin:.1f} s {name}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    os._exit(0)  # as rlx.launch ends: threads of torch may abort a process that is taken down in order
