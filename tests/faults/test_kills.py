"""Killed at random moments and resumed, runs equal an unbroken one bit for bit: metrics, weights, moments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kills.py")


@pytest.mark.parametrize(("algo", "kills"), [
    pytest.param(algo, kills, marks=pytest.mark.full)
    for algo, kills in (("grpo", 2), ("ppo", 20), ("grpo", 20), ("dpo", 20), ("sft", 20))])
def test_runs_killed_at_random_moments_equal_an_unbroken_one(tmp_path, algo, kills):
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path), algo, str(kills), "1"], capture_output=True,
                          text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    print(algo, counted)
    assert counted.pop("runs") >= 1
    assert sum(counted.values()) == kills
