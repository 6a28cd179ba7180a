"""The examples run as they are, from any folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_three_rows(tmp_path):
    done = subprocess.run([sys.executable, EXAMPLES / "three_rows.py"], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    actor = Path(done.stdout.rsplit("trained: ", 1)[1].strip())
    assert (tmp_path / actor / "model.safetensors").is_file()


def test_the_three_rows_are_what_the_script_writes(tmp_path):
    """The file in the repository is not edited by hand."""
    rows = pd.read_parquet(EXAMPLES / "data" / "train.parquet")
    assert list(rows) == ["instruction", "input", "output"]
    assert len(rows) == 3
    script = (EXAMPLES / "data" / "make.py").read_text(encoding="utf-8")
    assert all(text in script for text in rows["instruction"])
