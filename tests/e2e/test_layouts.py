"""A run continued on another number of ranks or in another ZeRO stage learns as it would have."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlx

ROLES = {"sft": "policy", "dpo": "policy", "reward_model": "reward"}
MOVES: list[tuple[tuple[int, dict[str, Any]], tuple[int, dict[str, Any]]]] = [
    ((1, {"zero_stage": 1}), (1, {"zero_stage": 3})), ((1, {"zero_stage": 1}), (2, {"zero_stage": 1})),
    ((1, {"zero_stage": 2}), (2, {"zero_stage": 3})), ((2, {"zero_stage": 3}), (1, {"zero_stage": 2})),
    ((2, {"zero_stage": 1}), (1, {"zero_stage": 3, "offload": "all"}))]
"""Ranks and engine, before and after."""


def losses(run: Path, role: str) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[f"loss/{role}"] for line in lines}


@pytest.mark.full
@pytest.mark.parametrize(("algo", "before", "after"), [
    pytest.param(algo, *move, id=f"{algo}-{number}")
    for algo in ROLES for number, move in enumerate(MOVES)])
def test_the_loss_curve_goes_on_as_it_would_have(tmp_path, algo, before, after):
    """Against a run that stayed where it was, to 1e-4 in every step after the move."""
    role, runs = ROLES[algo], tmp_path / "runs"
    optim = {"lr": 3e-4, "schedule": "cosine", "warmup_steps": 2}
    shape = {"steps": 6, "batch_size": 7, "minibatches": 2, "optim": {role: optim}}

    def go(name: str, ranks: int, engine: dict[str, Any], resume: bool) -> None:
        """In this process, or on several ranks by the command."""
        run = {"dir": str(runs), "name": name, "save_every": 3, **({"resume": "auto"} if resume else {})}
        settings = {"train": shape, "engine": engine, "data": {"eval": 0}, "run": run}
        if ranks == 1:
            rlx.train(algo, quiet=True, **settings)
            return
        flags = ["--algo", algo, "--gpus", str(ranks),
                 *(part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}"))]
        done = subprocess.run([sys.executable, "-m", "rlx", "train", *flags], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, done.stderr

    go("stayed", *before, resume=False)
    shutil.copytree(runs / "stayed", runs / "moved")
    shutil.rmtree(runs / "moved" / "checkpoints" / "global_step_6")
    go("moved", *after, resume=True)
    stayed, moved = (losses(runs / name, role) for name in ("stayed", "moved"))
    assert list(stayed) == list(moved) == [1, 2, 3, 4, 5, 6]
    for step in (4, 5, 6):
        assert moved[step] == pytest.approx(stayed[step], rel=0, abs=1e-4), step
    assert len({round(loss, 3) for loss in stayed.values()}) > 3, "the losses move, or this would be no test"
