"""The examples run as they are, from any folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_three_rows(tmp_path):
    done = subprocess.run([sys.executable, EXAMPLES / "three_rows.py"], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    actor = Path(done.stdout.rsplit("trained: ", 1)[1].strip())
    assert (tmp_path / actor / "model.safetensors").is_file()


@pytest.mark.full
def test_full_circle(tmp_path):
    """SFT, a reward model, PPO and GRPO against it, samples: a long test, since nothing of it is faked."""
    done = subprocess.run([sys.executable, EXAMPLES / "full_circle.py"], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("> Rewrite this sentence") == 3
    assert float(re.search(r"accuracy of the reward model: ([\d.]+)", done.stdout)[1]) > 0.9
    found = re.findall(r"held-out reward with (\w+): (\S+) before, (\S+) after", done.stdout)
    assert [name for name, *_ in found] == ["ppo", "grpo"]
    for _, before, after in found:
        assert float(after) > float(before) + 0.3
    [metrics] = tmp_path.glob("runs/ppo-*/metrics.jsonl")
    first = json.loads(metrics.read_text().splitlines()[0])
    assert first["eval/critic/value"] != 0, "a critic that starts from a language model says 0 to everything"


def test_the_three_rows_are_what_the_script_writes(tmp_path):
    """The file in the repository is not edited by hand."""
    rows = pd.read_parquet(EXAMPLES / "data" / "train.parquet")
    assert list(rows) == ["instruction", "input", "output"]
    assert len(rows) == 3
    script = (EXAMPLES / "data" / "make.py").read_text(encoding="utf-8")
    assert all(text in script for text in rows["instruction"])
