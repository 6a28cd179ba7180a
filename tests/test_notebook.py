"""The notebook runs top to bottom on the bundled model, and what is kept of its last run is fit to be read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

BOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"
RUN = """
import sys, nbclient, nbformat
book = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": sys.argv[2]}}, record_timing=False).execute()
nbformat.write(book, sys.argv[3])
"""


def executed(folder: Path, **changed: str) -> None:
    """Run it in a kernel of its own, with other values of its settings."""
    text = BOOK.read_text(encoding="utf-8")
    for name, value in changed.items():
        assert len(re.findall(rf'"{name} = [^"\\]*', text)) == 1, name
        text = re.sub(rf'"{name} = [^"\\]*', f'"{name} = {value}', text)
    source = folder / "source.ipynb"
    source.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", RUN, source, folder, folder / "done.ipynb"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.full
def test_every_cell_runs(tmp_path):
    executed(tmp_path, STEPS="2", BATCH="4")
    cells = json.loads((tmp_path / "done.ipynb").read_text(encoding="utf-8"))["cells"]
    assert sum("image/png" in out.get("data", {}) for cell in cells for out in cell.get("outputs", [])) == 3


def test_what_is_kept_is_one_run_from_top_to_bottom_of_no_particular_machine():
    text = BOOK.read_text(encoding="utf-8")
    assert len(text) < 150_000
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kept = json.dumps([cell["outputs"] for cell in cells], ensure_ascii=False)
    assert not re.search(r"/(root|home|tmp|work|Users)/|Traceback|Warning", kept)
    assert {out.get("name", out["output_type"]) for cell in cells for out in cell["outputs"]} <= {
        "execute_result", "display_data", "stdout"}


@pytest.mark.full
def test_it_learns_in_under_three_minutes(tmp_path):
    began = time.monotonic()
    executed(tmp_path)
    assert time.monotonic() - began < 180
    metrics = pd.read_json(tmp_path / "runs/notebook-ppo/metrics.jsonl", lines=True)
    before, after = metrics["eval/reward/mean"].dropna()
    assert after > before + 0.3
