"""Checkpoints under signals, on a full disk, and the best of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlx.checkpoint import SaveError, best_checkpoint, complete_checkpoints, save_checkpoint, verify
from rlx.engine import Engine
from rlx.logs import library_log
from rlx.ranks import Ranks
from rlx.runs import RunFolder
from rlx.view import View
from rlx.watch import SIGNALS
from rlx_plugins.jsonl_tracker import JsonlTracker
from rlx_sdk import Config, RunStopped, Sample, SpecError, TrackerContext

from ..e2e.conftest import metrics_of

SHORT = {"batch_size": 4, "optim": {"policy": {"lr": 3e-4}}}
SFT = {"train": {**SHORT, "steps": 4}, "run": {"save_every": 1}}


TWICE = """
import os, signal, sys
from rlx.watch import StopSignals

number = int(sys.argv[1])
signal.signal(signal.SIGINT, signal.SIG_DFL)
with StopSignals(True) as signals:
    os.kill(os.getpid(), number)
    print(signals.asked.name, "is noted", flush=True)
    os.kill(os.getpid(), number)
    print("and again")
"""


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
        if len(calls) == 3:  # of step 2; the first is the dry run
            fill(disk / "ballast")
        elif len(calls) == 5:
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
    """An evaluation that is due then would hold it up: it is made when the run goes on."""
    settings = {"rollout": {"max_completion": 4, "group_size": 2}, "train": SFT["train"], "data": {"eval": 2}}
    calls, run = [], {"save_every": 50, "sample_every": None, "eval_every": 2}

    def reward(samples: Sequence[Sample]) -> list[float]:
        calls.append(len(samples))
        if len(calls) == 4:  # of step 2; the first two are the dry run and an evaluation
            os.kill(os.getpid(), number)
        return [float(len(sample.completion)) for sample in samples]

    before = signal.getsignal(number)
    with pytest.raises(RunStopped, match=f"by {number.name} after step 2 of 4, saved as .*global_step_2") as ended:
        train("grpo", reward=reward, **settings, run={"name": "ended", **run})
    assert ended.value.code == 128 + number
    assert len(calls) == 4
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


@pytest.mark.parametrize("number", SIGNALS)
def test_only_the_first_signal_waits_for_the_step(number):
    """The second one ends a Python program as ever; it is told so."""
    done = subprocess.run([sys.executable, "-c", TWICE, str(int(number))], capture_output=True, text=True, check=False)
    assert done.returncode == -number
    assert done.stdout == f"{number.name} is noted\n"
    assert done.stderr.count(f"{number.name}: this step is finished and saved, then the run ends; once more ends") == 1


def test_files_are_on_the_disk_before_their_names_and_an_old_checkpoint_goes_last(tmp_path, monkeypatch):
    """Every file and folder is synced, all renamed at once, the name synced, the whole verified, the old removed."""
    done: list[tuple[str, str]] = []

    def noted(what: str, act: Callable[..., Any], place: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **options: Any) -> Any:
            done.append((what, str(Path(place(args[0])).relative_to(tmp_path))))
            return act(*args, **options)

        return noting

    monkeypatch.setattr(os, "fsync", noted("sync", os.fsync, lambda handle: os.readlink(f"/proc/self/fd/{handle}")))
    monkeypatch.setattr(os, "replace", noted("rename", os.replace, str))
    monkeypatch.setattr("rlx.checkpoint.verify", noted("verify", verify, str))
    monkeypatch.setattr("rlx.checkpoint.shutil.rmtree", noted("remove", shutil.rmtree, str))
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {}, None, {"step": step}, 1, Ranks())
    second = done[next(i for i, what in enumerate(done) if what[1].startswith(".writing_2")):]
    files = ["manifest.json", "state/trainer.json", "", "state"]
    assert [d for d in second if d[0] != "remove" or "removing" in d[1]] == [
        *(("sync", f".writing_2/{file}".removesuffix("/")) for file in files), ("rename", ".writing_2"), ("sync", "."),
        ("verify", "global_step_2"), ("remove", ".removing_global_step_1")]


@pytest.mark.fault("what was written is not what the disk gives back")
def test_a_new_checkpoint_that_is_not_whole_never_costs_an_old_one(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {}, None, {"step": 1}, 1, Ranks())
    rename = os.replace

    def flips(source: Path, target: Path) -> None:
        (source / "state" / "trainer.json").write_text('{"step": 3}')
        rename(source, target)

    monkeypatch.setattr(os, "replace", flips)
    with pytest.raises(SaveError, match=r"step 2 could not be written: .*is damaged: state/trainer.json .*step_1'"):
        save_checkpoint(tmp_path, 2, {}, None, {"step": 2}, 1, Ranks())
    assert [c.name for c in tmp_path.iterdir()] == ["global_step_1"]
    verify(tmp_path / "global_step_1")


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


@pytest.mark.fault("full disk at a checkpoint, stop")
def test_a_disk_that_is_full_when_the_tokenizer_is_written_is_said_too(train, small_disk, monkeypatch):
    """Its library raises no OSError; what else the run writes there, its log, ends nothing."""
    disk, save = small_disk(40), Engine.save

    def then_full(self: Engine, folder: Path, write: bool) -> None:
        save(self, folder, write)
        fill(disk / "ballast")
        os.truncate(disk / "ballast", (disk / "ballast").stat().st_size - 65536)  # the small files fit

    monkeypatch.setattr(Engine, "save", then_full)
    with pytest.raises(SaveError, match=r"checkpoint of step 1 could not be written: No space left on device \(os err"):
        train("sft", train={**SHORT, "steps": 2}, data={"eval": 0}, run={"save_every": 1, "dir": str(disk)})


@pytest.mark.fault("an old checkpoint cannot be removed; folders of somebody's own beside the checkpoints", tried=2)
def test_what_else_lies_beside_the_checkpoints_ends_no_run(train, tmp_path, monkeypatch):
    there, kept, rmtree = tmp_path / "runs" / "x" / "checkpoints", tmp_path / "kept", shutil.rmtree
    for folder in (there / "global_step_1.old", kept):
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    (there / "global_step_0").symlink_to(kept)

    def cannot(path: Path, **options: object) -> None:
        if Path(path).name.startswith(".removing_"):
            raise OSError(39, "Directory not empty")
        rmtree(path, **options)

    monkeypatch.setattr("rlx.checkpoint.shutil.rmtree", cannot)
    settings = {"train": {**SHORT, "steps": 2}, "data": {"eval": 0}}
    result = train("sft", **settings, run={"save_every": 1, "keep": 1, "name": "x"})
    left = {"global_step_0", "global_step_1.old", "global_step_2"}
    assert {c.name for c in there.iterdir()} == left | {".removing_global_step_1"}
    assert "could not be removed" in (result.run / "libraries.log").read_text()
    monkeypatch.undo()
    train("sft", **settings | {"train": {**SHORT, "steps": 3}}, run={"name": "x", "resume": "auto", "keep": 3})
    assert {c.name for c in there.iterdir()} == left | {"global_step_3"}
    assert kept.is_dir()


@pytest.mark.fault("full disk on resume")
def test_on_a_full_disk_nothing_of_the_past_is_lost(small_disk):
    run = RunFolder(small_disk(1) / "run").make()
    tracker = JsonlTracker(Config(), TrackerContext("run", run.path, {}))
    resumed = TrackerContext("run", run.path, {}, resumed=1990)
    for step in range(2000):
        tracker.log(step, {"time/step": float(step)})
    run.log_skipped(3, "policy", [{"text": "two\u2028lines"}])
    before = (run.path / "metrics.jsonl").read_bytes()
    fill(run.path / "ballast")
    with pytest.raises(SpecError, match=r"cannot be written: No space left on device. Make room there"):
        run.rewind(1990)
    with pytest.raises(OSError, match="No space left on device"):
        JsonlTracker(Config(), resumed)
    assert (run.path / "metrics.jsonl").read_bytes() == before
    (run.path / "ballast").unlink()
    run.log_skipped(1991, "policy", [])
    (run.samples / "my_notes.parquet").touch()
    run.rewind(1990)
    JsonlTracker(Config(), resumed)
    assert [line["step"] for line in run.metrics()] == list(range(1991))
    [skipped] = (run.path / "skipped.jsonl").read_text().removesuffix("\n").split("\n")
    assert json.loads(skipped)["rows"] == [{"text": "two\u2028lines"}]


LOCK = """
import fcntl, sys
with open(sys.argv[1], "a") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("locked", flush=True)
        sys.stdin.read()
    except OSError:
        print("taken", flush=True)
"""


@pytest.mark.fault("two processes in one run folder", tried=2)
def test_two_processes_never_write_into_one_run(train, tmp_path):
    lock, said = tmp_path / "runs" / "one" / ".lock", []

    def other() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", LOCK, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                text=True)

    def reward(samples: Sequence[Sample]) -> list[float]:
        said.append(other().communicate()[0])
        return [float(len(sample.completion)) for sample in samples]

    settings = {"reward": reward, "rollout": {"max_completion": 4, "group_size": 2}, "data": {"eval": 0},
                "train": {**SHORT, "steps": 1}}
    train("grpo", **settings, run={"name": "one", "sample_every": None})
    assert said == ["taken\n"] * 2, "in the dry run, and in the step"
    with other() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(SpecError, match=r"another process is at work in the run folder '.*one'"):
            train("grpo", **settings | {"train": {**SHORT, "steps": 2}},
                  run={"name": "one", "resume": "auto", "sample_every": None})
        process.kill()
    train("grpo", **settings | {"train": {**SHORT, "steps": 2}},
          run={"name": "one", "resume": "auto", "sample_every": None})


@pytest.mark.fault("a full disk under the log, a terminal that is gone", tried=2)
def test_text_that_nobody_can_read_any_more_ends_no_run():
    with library_log(Path("/dev/full")):
        print("lost")
        print("lost, too", file=sys.stderr)
        sys.stdout.writelines(["as\n", "are these\n"])
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    view = View(stream)
    view.note("a line")
    view.warn("and another")
    with pytest.raises(BrokenPipeError):  # the lines could indeed not be written
        stream.close()
