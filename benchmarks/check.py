"""Has rlx become slower? Steps on the bundled model against plain forward and backward passes of the same tokens."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import Silent
from rlx.build import build
from rlx.inputs import read_inputs
from rlx.logs import library_log
from rlx.plan import resolve
from rlx.ranks import start_distributed
from rlx.registry import Registry

KEPT = Path(__file__).parent / "kept.json"
WORSE = 1.5
"""A ratio may grow by this before it is called slower: on a shared machine one in ten runs is off by a third."""
JOBS: dict[str, dict[str, Any]] = {
    "ppo": {"rewards": [{"name": "polite_length"}], "rollout": {"name": "hf", "max_completion": 32}},
    "dpo": {}}
ROUNDS = 5


def ratios() -> dict[str, float]:
    """Seconds of a step over those of a plain pass, in turns; medians."""
    with library_log(None):
        ranks = start_distributed()
        found = {}
        for algo, more in JOBS.items():
            with tempfile.TemporaryDirectory() as folder:
                spec = {"algo": {"name": algo}, "data": {"cache": folder, "eval": 0}, **more,
                        "run": {"dir": folder, **({"sample_every": None} if more else {})},
                        "train": {"steps": ROUNDS + 1, "batch_size": 16, "minibatches": 1, "update_epochs": 1}}
                plan = resolve(Registry.discover(), spec)
                trainer = build(plan, read_inputs(plan), ranks, Silent())
                trainer._sync()
                trainer.train_step()
                model = trainer.engines["policy"].module.model
                turns = [(_seconds(trainer.train_step), _seconds(_plain, model)) for _ in range(ROUNDS)]
                trainer.source.close()
            found[algo] = round(statistics.median(a / b for a, b in turns), 3)
    return found


def _seconds(work: Any, *arguments: Any) -> float:
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


def _plain(model: Any) -> None:
    """Four passes over 16 rows of 64 tokens with all logits, as one writes them by hand."""
    tokens = torch.arange(16 * 64).reshape(16, 64) % model.config.vocab_size
    weights = list(model.parameters())
    for _ in range(4):
        torch.autograd.grad(model(input_ids=tokens, labels=tokens).loss, weights, allow_unused=True)


def slower(found: dict[str, float]) -> dict[str, tuple[float, float]]:
    """What was kept and what is now, of each job that has become slower."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    return {name: (kept[name], ratio) for name, ratio in found.items() if ratio > WORSE * kept[name]}
