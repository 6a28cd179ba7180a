"""The README's first command, for three seeds: it learns, in time, and not one memorised sentence."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_quickstart(tmp_path, seed):
    began = time.monotonic()
    out = subprocess.run(
        [sys.executable, "-m", "rlx", "train", "--algo", "ppo", "--reward", "polite_length", "--json",
         "--set", f"run.seed={seed}", "--set", f"run.dir={tmp_path}"], capture_output=True, text=True, check=True)
    seconds = time.monotonic() - began
    result = json.loads(out.stdout)
    with open(f"{result['run']}/metrics.jsonl", encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]
    rewards = [line["reward/mean"] for line in lines if "reward/mean" in line]
    end = result["metrics"]
    print(f"\nseed {seed}: {seconds:.0f} s, reward {rewards[0]:.3f} -> {sum(rewards[-3:]) / 3:.3f}, held-out "
          f"{end['eval/reward/mean']:.3f}, distinct {end['eval/length/distinct']:.2f}, KL {end['eval/kl/mean']:.2f} "
          f"nats a completion")
    assert rewards[0] < 1.0
    assert sum(rewards[-3:]) / 3 >= 1.35
    assert end["eval/reward/mean"] >= 1.3
    assert end["eval/length/distinct"] >= 0.7
    assert seconds < 180
