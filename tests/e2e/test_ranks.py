"""Runs on two ranks, started by ``--gpus 2``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

import rlx as rlx_api

from ..engine.ranks import run_ranks
from .conftest import metrics_of

PPO = ["--algo", "ppo", "--reward", "polite_length", "--set", "rollout.max_completion=12", "--set", "data.eval=4"]
SMALL = ["--set", "engine.dtype=float32", "--set", "train.batch_size=7", "--set", "train.minibatches=2", "--set",
         "run.save_every=1", "--set", "run.keep=9"]
FAILING = '''
import os, pathlib, signal
from rlx_sdk import reward

@reward("{name}")
def {name}(samples):
    """Fails on the second rank only."""
    if os.environ.get("RANK") == "1":
        pathlib.Path(__file__).with_name("died").touch()
        {what}
    return [len(sample.completion) / 100 for sample in samples]
'''
SAVED = 'list(pathlib.Path(__file__).parent.glob("*/checkpoints/global_step_1"))'


def rlx(*arguments: str, python_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PYTHONPATH": str(python_path)} if python_path else {})}
    return subprocess.run([sys.executable, "-m", "rlx", *arguments], capture_output=True, text=True, check=False,
                          env=environment)


def train(runs: Path, name: str, *arguments: str) -> Path:
    done = rlx("train", *SMALL, "--name", name, "--set", f"run.dir={runs}", *arguments)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert done.stdout.count("done: ") == 1, "only rank 0 prints"
    return runs / name


def same_metrics(one: Path, other: Path) -> None:
    for a, b in zip(metrics_of(one), metrics_of(other), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=2e-4)


def install(folder: Path, name: str, what: str) -> None:
    """A package with a reward that does something on the second rank."""
    (folder / "failing.py").write_text(FAILING.format(name=name, what=what))
    info = folder / "failing-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: failing\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[rlx]\n{name} = failing:{name}\n")


@pytest.mark.fault("a rank dies")
def test_two_ranks_train_together_until_one_is_killed(tmp_path):
    """The step that both made has the numbers of one process, and is saved; the second rank dies in the next."""
    def lengths(samples):
        return [len(sample.completion) / 100 for sample in samples]

    install(tmp_path, "lengths", f"if {SAVED}: os.kill(os.getpid(), signal.SIGKILL)")
    spec = {"algo": {"name": "ppo"}, "rollout": {"max_completion": 8}, "data": {"eval": 0},
            "train": {"batch_size": 7, "minibatches": 2, "steps": 2}, "run": {"dir": str(tmp_path), "save_every": 1}}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    begin = time.monotonic()
    done = rlx("train", str(tmp_path / "spec.yaml"), "--reward", "lengths", "--gpus", "2", "--name", "two",
               python_path=tmp_path)
    assert time.monotonic() - begin < 120, "not gloo's half hour"
    assert done.returncode == 1
    assert done.stderr.startswith("error: rank 1: it was killed by SIGKILL"), done.stderr
    assert done.stderr.count("error: ") == 1, done.stderr
    assert done.stdout.count("step 1/2") == 1, "only rank 0 prints"
    [together] = metrics_of(tmp_path / "two")
    assert (tmp_path / "two/checkpoints/global_step_1/actor/model.safetensors").is_file()

    alone = rlx_api.train(spec=spec, reward=lengths, run={"name": "one"}, quiet=True)
    assert together == pytest.approx(metrics_of(alone.run)[0], rel=1e-3, abs=2e-4)


@pytest.mark.full  # the gate has tests/engine/test_invariance.py and test_resharding.py
@pytest.mark.parametrize(("alone", "together"), [(1, 3), (1, 1), (2, 2), (3, 3)])
def test_two_ranks_train_what_one_does_and_checkpoints_cross(tmp_path, alone, together):
    """Two ranks in a ZeRO stage against one, from the rollouts to the weights, and each continued by the other."""
    on_one, on_two = ["--set", f"engine.zero_stage={alone}"], ["--gpus", "2", "--set", f"engine.zero_stage={together}"]
    one = train(tmp_path, "one", *PPO, "--steps", "2", *on_one)
    two = train(tmp_path, "two", *PPO, "--steps", "2", *on_two)
    same_metrics(one, two)
    samples = [sorted(f.name for f in (run / "samples").iterdir()) for run in (one, two)]
    assert samples[0] == samples[1]

    for run, flags in ((one, on_two), (two, on_one)):
        done = rlx("resume", str(run), "--steps", "3", *flags)
        assert done.returncode == 0, done.stderr
    same_metrics(one, two)
    for role in ("policy", "critic"):
        states = [load_file(run / "checkpoints" / "global_step_3" / "state" / f"{role}.safetensors")
                  for run in (one, two)]
        for name, moment in states[0].items():
            if name.startswith("exp_avg/"):
                assert (states[1][name] - moment).norm() <= 1e-3 * moment.norm(), name


@pytest.mark.full
def test_a_resumed_run_of_two_ranks_continues_bit_for_bit(tmp_path):
    flags = ["--gpus", "2", "--set", "engine.zero_stage=3", *PPO]
    straight = train(tmp_path, "straight", *flags, "--steps", "3")
    shutil.copytree(straight, tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken" / "checkpoints" / "global_step_3")
    done = rlx("resume", str(tmp_path / "broken"), "--gpus", "2")
    assert done.returncode == 0, done.stderr
    assert metrics_of(tmp_path / "broken") == metrics_of(straight)
    for file in (straight / "checkpoints" / "global_step_3").rglob("*.safetensors"):
        other = tmp_path / "broken" / file.relative_to(straight)
        assert file.read_bytes() == other.read_bytes(), file.name


ONE_ROW = """
import rlx, sys
for algo, more in (("ppo", {"reward": "polite_length", "rollout": {"max_completion": 4}}), ("dpo", {}), ("sft", {})):
    rlx.train(algo=algo, steps=1, train={"batch_size": 1, "minibatches": 1},
              data={"eval": 1, "cache": sys.argv[1] + "/cache"},
              run={"dir": sys.argv[1], "name": algo}, engine={"zero_stage": 3}, **more)
"""


def test_a_rank_may_have_nothing_to_do(tmp_path):
    first, second = run_ranks(2, "-c", ONE_ROW, str(tmp_path))
    assert first.count("done: ") == 3
    assert "done: " not in second
    for algo in ("ppo", "dpo", "sft"):
        assert [line["step"] for line in metrics_of(tmp_path / algo) if "loss/policy" in line] == [1]


@pytest.mark.fault("a rank dies")
@pytest.mark.parametrize(("name", "what", "code", "said"), [
    pytest.param("raises", "raise ValueError('no such thing')", 1, "error: rank 1: reward 'raises'",
                 marks=pytest.mark.full),
    pytest.param("killed", "os.kill(os.getpid(), signal.SIGKILL)", 1, "error: rank 1: it was killed by SIGKILL",
                 marks=pytest.mark.full),
    pytest.param("crashes", "os.write(2, b'device-side assert'); os._exit(3)", 3,
                 "error: rank 1: ended with exit code 3\ndevice-side assert", marks=pytest.mark.full),
    pytest.param("leaves", "import sys; sys.exit('no licence')", 1, "error: rank 1: no licence",
                 marks=pytest.mark.full),
])
def test_a_rank_that_dies_ends_all_with_its_own_error(tmp_path, name, what, code, said):
    install(tmp_path, name, what)
    done = rlx("train", "--algo", "ppo", "--reward", name, *SMALL, "--steps", "2", "--gpus", "2", "--set",
               f"run.dir={tmp_path}", "--set", "rollout.max_completion=4", python_path=tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith(said), done.stderr
    assert done.stderr.count("error: ") == 1, done.stderr
    seconds = time.time() - (tmp_path / "died").stat().st_mtime
    assert seconds < 20, seconds


def test_bad_input_is_told_once_before_any_process_starts(tmp_path):
    begin = time.monotonic()
    done = rlx("train", "--algo", "pppo", "--gpus", "2")
    assert (done.returncode, done.stderr.count("no algorithm 'pppo'")) == (2, 1)
    assert time.monotonic() - begin < 10
    data = tmp_path / "empty.jsonl"
    data.write_text("")
    done = rlx("train", "--algo", "sft", "--data", str(data), "--gpus", "2", "--set", f"run.dir={tmp_path}")
    assert (done.returncode, done.stderr.count("has 0 rows")) == (2, 1)


@pytest.mark.full
def test_json_is_one_document_also_of_several_ranks(tmp_path):
    done = rlx("train", "--algo", "sft", *SMALL, "--steps", "1", "--gpus", "2", "--json",
               "--set", f"run.dir={tmp_path}")
    assert json.loads(done.stdout)["steps"] == 1
