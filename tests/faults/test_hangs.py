"""What no longer moves ends with the stack of each rank."""

from __future__ import annotations

import subprocess
import sys

import pytest

STUCK = """
import sys, time
from pathlib import Path
from rlx.watch import Watchdog

def in_a_collective():
    time.sleep(60)

with Watchdog(0.5, Path(sys.argv[1]), 3) as dog:
    for _ in range(8):
        dog.beat("rollout")
        time.sleep(0.1)
    dog.beat("update")
    in_a_collective()
"""


@pytest.mark.fault("a rank hangs")
def test_a_process_that_is_stuck_writes_its_stack_and_ends(tmp_path):
    done = subprocess.run([sys.executable, "-c", STUCK, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: rank 3: nothing moved for 0.5 seconds in update; each rank's stack is in "
                                  f"'{tmp_path}/stacks.*.txt'")
    assert "in in_a_collective" in (tmp_path / "stacks.3.txt").read_text()


HANGS = """
import os, time
from rlx_sdk import reward

@reward("hangs")
def hangs(samples):
    \"\"\"On the second rank.\"\"\"
    if os.environ.get("RANK") == "1":
        time.sleep(600)
    return [1.0] * len(samples)
"""


@pytest.mark.fault("a rank hangs")
@pytest.mark.full
def test_a_hung_rank_ends_all_with_every_stack(tmp_path):
    """Rank 1 never comes to the collective in which rank 0 waits."""
    (tmp_path / "hanging.py").write_text(HANGS)
    info = tmp_path / "hanging-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[rlx]\nhangs = hanging:hangs\n")
    import os

    done = subprocess.run(
        [sys.executable, "-m", "rlx", "train", "--algo", "grpo", "--reward", "hangs", "--gpus", "2", "--steps", "2",
         "--name", "hung", "--set", f"run.dir={tmp_path}", "--set", "rollout.max_completion=4", "--set",
         "run.stuck_after=20", "--set", "train.batch_size=4", "--set", "data.eval=0"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "nothing moved for 20 seconds in" in done.stderr
    assert done.stderr.count("error: ") == 1
    stacks = [(tmp_path / "hung" / f"stacks.{rank}.txt").read_text() for rank in (0, 1)]
    assert "all_gather_object" in stacks[0]
    assert "hanging.py" in stacks[1]
