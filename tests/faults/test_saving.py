"""Checkpoints under signals, on a full disk, and the best of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlx.checkpoint import SaveError, best_checkpoint, complete_checkpoints, verify
from rlx_sdk import RunStopped, Sample, SpecError

from ..e2e.conftest import metrics_of

SHORT = {"batch_size": 4, "optim": {"policy": {"lr": 3e-4}}}
SFT = {"train": {**SHORT, "steps": 4}, "run": {"save_every": 1}}


def same(one: Path, other: Path) -> None:
    """The numbers of every step, and every weight and moment."""
    assert metrics_of(one.parents[1]) == metrics_of(other.parents[1])
    files = sorted(file.relative_to(one) for file in one.rglob("*.safetensors"))
    assert files
    for file in files:
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


def fill(file: Path) -> None:
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass


def numbers(run: Path) -> list[int]:
    return [int(c.name.removeprefix("global_step_")) for c in complete_checkpoints(run / "checkpoints")]


@pytest.mark.fault("full disk at a checkpoint, stop")
def test_a_full_disk_leaves_what_was_whole_and_the_run_goes_on_from_there(train, small_disk):
    disk = small_disk(44)  # a checkpoint has 17 MiB
    settings = {**SFT, "run": {"save_every": 1, "dir": str(disk), "name": "full"}}
    with pytest.raises(SaveError, match=r"checkpoint of step 3 could not be written: .*(?s:.*)'rlx resume .*step_2'"):
        train("sft", **settings)
    checkpoints = disk / "full" / "checkpoints"
    assert sorted(c.name for c in checkpoints.iterdir()) == ["global_step_1", "global_step_2"]
    for checkpoint in checkpoints.iterdir():
        verify(checkpoint)

    small_disk(200)
    resumed = train("sft", **settings | {"run": {**settings["run"], "resume": "auto"}})

    same(resumed.checkpoint, train("sft", **SFT).checkpoint)


@pytest.mark.fault("full disk, continue", tried=2)
def test_with_failed_save_continue_a_run_outlives_a_full_disk(train, small_disk):
    """The disk is full when steps 2 and 3 are done: their metrics come later, their checkpoints never."""
    disk, calls = small_disk(60), []

    def reward(samples: Sequence[Sample]) -> list[float]:
        calls.append(len(samples))
        if len(calls) == 2:
            fill(disk / "ballast")
        elif len(calls) == 4:
            (disk / "ballast").unlink()
        return [float(len(sample.completion)) for sample in samples]

    result = train("grpo", reward=reward, rollout={"max_completion": 4, "group_size": 2}, train=SFT["train"],
                   data={"eval": 0}, run={"save_every": 1, "sample_every": None, "failed_save": "continue",
                                          "dir": str(disk), "name": "on"})

    assert numbers(result.run) == [1, 4]
    assert [line["step"] for line in metrics_of(result.run)] == [1, 2, 3, 4]


@pytest.mark.fault("SIGTERM, Ctrl-C")
@pytest.mark.parametrize("number", [
    signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(train, number):
    settings = {"rollout": {"max_completion": 4, "group_size": 2}, "train": SFT["train"], "data": {"eval": 0}}
    calls, run = [], {"save_every": 50, "sample_every": None}

    def reward(samples: Sequence[Sample]) -> list[float]:
        calls.append(len(samples))
        if len(calls) == 2:
            os.kill(os.getpid(), number)
        return [float(len(sample.completion)) for sample in samples]

    before = signal.getsignal(number)
    with pytest.raises(RunStopped, match=f"by {number.name} after step 2 of 4, saved as .*global_step_2") as ended:
        train("grpo", reward=reward, **settings, run={"name": "ended", **run})
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) == before
    resumed = train("grpo", reward=reward, **settings, run={"name": "ended", "resume": "auto", **run})
    same(resumed.checkpoint, train("grpo", reward=reward, **settings, run=run).checkpoint)


def test_the_best_checkpoint_stays_beside_the_newest(train):
    run = {"save_every": 1, "eval_every": 1, "keep": 1, "best": "-eval/loss/policy"}
    optim = {"policy": {"lr": 3e-3, "schedule": "constant", "warmup_steps": 0}}
    result = train("sft", train={**SHORT, "steps": 5, "optim": optim}, data={"eval": 4}, run=run)
    losses = {line["step"]: line["eval/loss/policy"] for line in metrics_of(result.run)
              if "eval/loss/policy" in line and line["step"]}
    best = min(losses, key=lambda step: losses[step])
    assert numbers(result.run) == sorted({best, 5})
    found = best_checkpoint(result.run / "checkpoints", run["best"])
    assert found is not None
    assert (found[0].name, found[1]) == (f"global_step_{best}", losses[best])


def test_a_best_that_is_not_measured_when_checkpoints_are_written_is_refused(train):
    with pytest.raises(SpecError, match=r"run.best = eval/reward/mean is measured every 3 steps .* written every 2"):
        train("sft", data={"eval": 4}, run={"best": "eval/reward/mean", "eval_every": 3, "save_every": 2})


@pytest.mark.fault("SIGTERM to two ranks")
@pytest.mark.full
def test_a_signal_to_two_ranks_is_one_checkpoint_and_one_message(tmp_path):
    """The command that started them waits for the checkpoint; it is the same as that of an unbroken run."""
    command = [sys.executable, "-m", "rlx", "train", "--algo", "sft", "--steps", "200", "--gpus", "2", "--name", "two",
               "--set", "train.batch_size=4", "--set", f"run.dir={tmp_path}", "--set", "data.eval=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith("step 2/"):
                process.send_signal(signal.SIGTERM)
        said = process.stderr.read() if process.stderr else ""
    assert process.returncode == 143, said
    [step] = numbers(tmp_path / "two")
    assert f"ended by SIGTERM after step {step} of 200, saved as" in said
    assert "error" not in said
    assert json.loads((tmp_path / "two" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == step
