"""A run killed with SIGKILL in the middle, and continued by ``rlx resume``, equals one that was never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import metrics_of
from .test_trackers import tensorboard_events, wandb_rows

FLAGS = {
    "ppo": ["--reward", "polite_length", "--reward", "regex:a=0.1", "--set", "rollout.max_completion=12",
            "--set", "train.minibatches=2",
            "--set", "trackers=[{name: wandb, options: {mode: offline}}, {name: tensorboard}]"],
    "dpo": [],
    "sft": [],
}
LENGTH = ["--steps", "5", "--set", "train.batch_size=8", "--set", "run.save_every=2", "--set", "data.eval=0",
          "--set", "run.keep=9"]


def command(runs: Path, name: str, algo: str) -> list[str]:
    return [sys.executable, "-m", "rlx", "train", "--algo", algo, *FLAGS[algo], *LENGTH, "--name", name,
            "--set", f"run.dir={runs}"]


@pytest.mark.fault("kill -9 after a step, continued by rlx resume")
@pytest.mark.parametrize("algo", [
    "ppo", *(pytest.param(algo, marks=pytest.mark.full) for algo in sorted(FLAGS) if algo != "ppo")])
def test_killed_and_resumed_equals_uninterrupted(tmp_path, algo):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.pop("WANDB_SERVICE", None)  # of a run in this process: the dead and the resumed one would share it
    with subprocess.Popen(command(tmp_path, "killed", algo), stdout=subprocess.PIPE, text=True,
                          env=environment) as process:
        for line in process.stdout or ():
            if line.startswith("step 3/"):
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "checkpoints" / "global_step_5").exists()
    resumed = subprocess.run([sys.executable, "-m", "rlx", "resume", str(tmp_path / "killed")], capture_output=True,
                             text=True, env=environment, check=False)
    assert resumed.returncode == 0, resumed.stderr
    subprocess.run(command(tmp_path, "straight", algo), check=True, capture_output=True, env=environment)

    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "straight")
    one, other = (tmp_path / name / "checkpoints" / "global_step_5" for name in ("killed", "straight"))
    files = sorted(p.relative_to(one) for p in one.rglob("*.safetensors"))
    assert files
    for file in files:
        assert (one / file).read_bytes() == (other / file).read_bytes(), file
    if algo == "ppo":
        curves_are_whole(tmp_path / "killed")


def curves_are_whole(run: Path) -> None:
    """On the trainer's own steps, each with the value that counts: step 3 was done twice, before and after the kill."""
    wanted = [(line["step"], line["reward/mean"]) for line in metrics_of(run)]
    assert [step for step, _ in wanted] == [1, 2, 3, 4, 5]
    points = tensorboard_events(run).Scalars("reward/mean")
    assert [point.step for point in points] == [1, 2, 3, 4, 5]
    assert [point.value for point in points] == pytest.approx([value for _, value in wanted])
    parts, rows = wandb_rows(run)
    assert len(parts) == 2
    [mark] = [i for i, row in enumerate(rows) if "resumed" in row]
    assert rows[mark]["step"] == rows[mark]["resumed"] == 2
    before, after = ([(row["step"], row["reward/mean"]) for row in part if "reward/mean" in row]
                     for part in (rows[:mark], rows[mark:]))
    assert [*(row for row in before if row[0] <= 2), *after] == wanted
