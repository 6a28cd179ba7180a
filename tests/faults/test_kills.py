"""Killed at random moments and resumed, runs equal an unbroken one bit for bit: metrics, weights, moments.

Twenty kills of each algorithm, in cases that can run side by side: ``pytest -m full -n 14 --dist load`` of this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kills.py")
KILLS = 5
"""Of one case; four cases of each algorithm."""


@pytest.mark.full
@pytest.mark.fault("kill -9 at a random moment", tried=KILLS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("algo", ["ppo", "grpo", "dpo", "sft"])
def test_runs_killed_at_random_moments_equal_an_unbroken_one(tmp_path, record_property, algo, seed):
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path), algo, str(KILLS), str(seed)],
                          capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    print(algo, counted)
    assert counted["runs"] >= 1
    assert sum(counted["hit"].values()) == KILLS
    record_property("lost", counted["steps made again"])
    record_property("hit", json.dumps({f"{algo} in {phase}": hits for phase, hits in counted["hit"].items()}))
