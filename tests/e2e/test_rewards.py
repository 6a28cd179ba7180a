"""Rewards in a run: what is logged, what does not disturb it, and a service that is a process of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pandas as pd
import pytest

import rlx
from rlx_sdk import RewardError

from .conftest import metrics_of

RULES = '''
import random

import numpy as np
import torch


def tidy(samples):
    return [float(len(s.completion) % 7) for s in samples]


def untidy(samples):
    print("a reward prints")
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    torch.rand(3)
    return tidy(samples)


async def later(samples):
    print("later prints")
    torch.manual_seed(1)
    return tidy(samples)


def some(samples):
    if any("a" in s.completion for s in samples):
        raise KeyError("letter a")
    return [None if len(s.completion) % 2 else 1.0 for s in samples]
'''


@pytest.fixture
def rules(tmp_path):
    """A file of rewards."""
    (tmp_path / "run_rules.py").write_text(RULES)
    return f"{tmp_path}/run_rules.py"


def run(tmp_path, reward, **more):
    job = {"run": {"dir": str(tmp_path / "runs")}, "rollout": {"max_completion": 10, "group_size": 4}, "quiet": True,
           "train": {"steps": 2, "batch_size": 3}}
    return rlx.train(algo="grpo", reward=reward, **{**job, **more})


def test_prints_random_numbers_and_overlap_change_nothing(rules, tmp_path, capsys):
    def seen(function):
        result = run(tmp_path, f"{rules}:{function}")
        return [{k.replace(function, "it"): v for k, v in line.items()} for line in metrics_of(result.run)]

    plain = seen("tidy")
    assert seen("untidy") == plain
    assert seen("later") == plain
    assert capsys.readouterr().out == ""


def test_every_provider_has_its_figures_and_failures_are_traced(rules, tmp_path):
    some = {"name": f"{rules}:some", "on_error": "skip", "max_failed": 1.0, "weight": 2.0}
    result = run(tmp_path, [f"{rules}:tidy", some], combine="normalized", train={"steps": 2, "batch_size": 8})
    table = pd.read_parquet(next((result.run / "samples").glob("step_*1.parquet")))
    line = next(m for m in metrics_of(result.run) if m["step"] == 1 and "reward/mean" in m)
    assert line["reward/tidy/mean"] == pytest.approx(table["reward/tidy"].mean())
    assert line["reward/tidy/std"] == pytest.approx(table["reward/tidy"].std(ddof=0))
    assert line["reward/tidy/min"] == table["reward/tidy"].min()
    assert line["reward/tidy/max"] == table["reward/tidy"].max()
    has_a = table["completion"].str.contains("a")
    assert 0 < line["reward/some/failed"] == pytest.approx(has_a.mean())
    assert line["reward/some/abstained"] == pytest.approx((table["reward/some"].isna() & ~has_a).mean())
    assert 0 <= line["reward/some/zero_variance"] <= 1
    total = table["reward/tidy"] + 2 * table["reward/some"].fillna(0)
    assert table["reward"].tolist() == pytest.approx(total.tolist())
    log = (result.run / "libraries.log").read_text()
    assert "failed on data row" in log
    assert 'run_rules.py", line 29, in some' in log
    with pytest.raises(RewardError, match=r"(?s)reward 'some' \(.*run_rules\.py sha256 .*data row \d+, completion "
                                          r".*KeyError"):
        run(tmp_path, f"{rules}:some")


def test_an_isolated_reward_and_a_served_one_score_alike(rules, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "rlx", "serve-reward", "length", "--port", str(port), "--set",
                               "longest=12"])
    try:
        for _ in range(300):
            try:
                assert httpx.get(f"http://127.0.0.1:{port}", timeout=5).json()["name"] == "length"
                break
            except httpx.TransportError:
                time.sleep(0.1)
        options = {"longest": 12}
        result = run(tmp_path, [
            {"name": "length", "options": options}, f"http://127.0.0.1:{port}",
            {"name": "length", "options": options, "isolate": "process", "label": "apart"}],
            train={"steps": 2, "batch_size": 8})
    finally:
        server.terminate()
        server.wait()
    metrics = json.loads(json.dumps(result.metrics))
    assert 0 < metrics["reward/length/mean"] < 1
    assert metrics["reward/apart/mean"] == metrics["reward/length/mean"]
    assert metrics[f"reward/http:127.0.0.1:{port}/mean"] == metrics["reward/length/mean"]


def test_tasks_of_reasoning_gym_become_data_and_are_scored(tmp_path):
    pytest.importorskip("reasoning_gym")
    script = Path(__file__).parents[2] / "examples/reasoning_gym_tasks.py"
    subprocess.run([sys.executable, script, tmp_path / "tasks.jsonl", "--tasks", "leg_counting", "--size", "3"],
                   check=True)
    result = run(tmp_path, "reasoning_gym", data={"path": str(tmp_path / "tasks.jsonl"), "max_prompt": 400},
                 train={"steps": 1, "batch_size": 3})
    assert result.metrics["reward/reasoning_gym/abstained"] == 0
