"""Several machines, as torchrun starts them: each is an agent of one rank, in a folder of its own where it matters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..engine.ranks import free_port, run_ranks
from .conftest import metrics_of

SFT = ["--algo", "sft", "--steps", "2", "--set", "train.batch_size=4", "--set", "data.eval=0", "--name", "run"]


def machines(*each: list[str], folders: tuple[Path, ...] = ()) -> list[subprocess.CompletedProcess[str]]:
    """One torchrun of one rank for the arguments of each machine, started in its own folder if there are any."""
    port, agents = free_port(), []
    for node, arguments in enumerate(each):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(each)), "--nproc-per-node", "1",
                   "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port), "-m", "rlx",
                   *arguments]
        agents.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={
            **os.environ, "OMP_NUM_THREADS": "1"}, cwd=folders[node] if folders else None))
    done = [agent.communicate(timeout=300) for agent in agents]
    return [subprocess.CompletedProcess(agent.args, agent.returncode, *said)
            for agent, said in zip(agents, done, strict=True)]


@pytest.mark.full
def test_ranks_are_told_apart_from_machines(tmp_path):
    """Each fills its own cache of prepared data; what they train is what one process trains."""
    both = ["train", *SFT, "--set", f"run.dir={tmp_path / 'two'}"]
    done = machines(*([*both, "--set", f"data.cache={tmp_path / f'cache{node}'}"] for node in (0, 1)))
    assert [one.returncode for one in done] == [0, 0], done[0].stderr + done[1].stderr
    assert done[0].stdout.count("done: ") == 1
    assert "done: " not in done[1].stdout
    caches = [sorted(f.name for f in (tmp_path / f"cache{node}").iterdir()) for node in (0, 1)]
    assert caches[0] == caches[1] != []
    alone = subprocess.run([sys.executable, "-m", "rlx", "train", *SFT, "--set", f"run.dir={tmp_path / 'one'}"],
                           capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stderr
    for a, b in zip(metrics_of(tmp_path / "one" / "run"), metrics_of(tmp_path / "two" / "run"), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=2e-4)


SAME = "give every machine the same settings, files and versions"


@pytest.mark.fault("machines differ")
@pytest.mark.parametrize(("what", "said"), [
    ("folder", r"'runs/run' is the run's folder: True on rank 0, False on ranks \[1\]; set run.dir to a folder "
               "that all machines share"),
    pytest.param("data", rf"the data: \['3 rows, \w+\[None\]'\] on rank 0, \['4 rows, \w+\[None\]'\] on ranks "
                         rf"\[1\]; {SAME}", marks=pytest.mark.full),
    pytest.param("setting", rf"'train.batch_size': 3 on rank 0, 4 on ranks \[1\]; {SAME}", marks=pytest.mark.full),
])
def test_machines_that_differ_are_told_what_is_not_the_same(tmp_path, what, said):
    folders = (tmp_path / "a", tmp_path / "b")
    for node, folder in enumerate(folders):
        folder.mkdir()
        rows = [{"prompt": f"Number {i}?", "completion": "Yes."} for i in range(3 + node if what == "data" else 4)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b" / "runs" / "run").mkdir(parents=True)  # left there by an earlier run
    where = "runs" if what == "folder" else str(tmp_path / "runs")
    done = machines(*(["train", *SFT, "--data", "rows.jsonl", "--set", f"run.dir={where}", "--set",
                       f"train.batch_size={3 + node if what == 'setting' else 4}"] for node in (0, 1)), folders=folders)
    assert [one.returncode for one in done] == [1, 1]
    assert re.search(f"error: 1 problem in the spec:\n  - {said}", done[0].stderr + done[1].stderr), done[0].stderr
    assert not [*tmp_path.rglob(".seen-*")], "nothing is left of the comparison"


@pytest.mark.full
def test_a_run_is_not_resumed_where_a_machine_lacks_its_checkpoint(tmp_path):
    folders = (tmp_path / "a", tmp_path / "b")
    for folder in folders:
        folder.mkdir()
    start = subprocess.run([sys.executable, "-m", "rlx", "train", *SFT, "--steps", "1"], cwd=folders[0],
                           capture_output=True, text=True, check=False)
    assert start.returncode == 0, start.stderr
    done = machines(*[["train", *SFT, "--resume", "auto"]] * 2, folders=folders)
    assert "the checkpoint 'runs/run/checkpoints/global_step_1' is there: True on rank 0, False on ranks [1]" in (
        done[0].stderr + done[1].stderr)


SLOW = """
import time
from rlx.ranks import GRACE, start_distributed

ranks = start_distributed(3 - GRACE)
try:
    with ranks.one_a_machine_first():
        time.sleep(0 if ranks.local_rank else 8)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.full
def test_who_waits_too_long_for_prepared_data_says_what_to_do():
    _, second = run_ranks(2, "-c", SLOW)
    assert "RunError a rank waited longer than run.stuck_after for another: raise it, or prepare long data" in second
