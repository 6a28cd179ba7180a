from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlx

SMALL: dict[str, Any] = {
    "train": {"steps": 4, "batch_size": 8, "optim": {"policy": {"lr": 3e-4, "schedule": "cosine", "warmup_steps": 2}}},
    "run": {"save_every": 2, "keep": 9},
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"reward": "polite_length", "rollout": {"max_completion": 12}},
    "dpo": {},
    "sft": {},
}


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {k: merged(v, over[k]) if k in over and isinstance(v, dict) else over.get(k, v) for k, v in base.items()}
    return {**both, **{k: v for k, v in over.items() if k not in base}}


def metrics_of(run: Path) -> list[dict[str, float]]:
    """Metrics without the clock."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "speed/", "memory/"))}
            for line in lines]


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., rlx.Result]:
    """A short run on the bundled model in a folder of its own."""

    def run(algo: str | dict[str, Any], **over: Any) -> rlx.Result:
        settings = merged(merged(SMALL, ALGORITHMS.get(algo, {}) if isinstance(algo, str) else {}), over)
        settings["run"] = {"dir": str(tmp_path / "runs"), **settings["run"]}
        return rlx.train(algo=algo, **{"quiet": True, **settings})

    return run
