"""``rlx check`` beyond the data: lengths, tokens, batch, memory, disk, credentials."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path

import pytest

import rlx.build as rlx_build
from rlx.data.cache import unseen
from rlx.plan import resolve
from rlx.problems import Problems
from rlx.ranks import Ranks
from rlx.registry import Registry
from rlx.start import _refuse, examine
from rlx_sdk import DataError, InputError, SpecError

CASES = Path(__file__).parents[1] / "cases"


def lines_of(result):
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_the_arithmetic_of_a_batch_and_the_memory_by_part(rlx):
    report = lines_of(rlx("check", "--algo", "grpo", "--reward", "polite_length", "--set", "train.batch_size=16",
                          "--set", "rollout.group_size=4", "--gpus", "2", "--steps", "40", "--json"))
    assert report["batch"].startswith("16 prompts x 4 completions = 64 rows a step on 2 ranks, 32 each on average, by "
                                      "length, none is padding; 4 optimizer steps of 32 rows; 40 steps are 1.8 passes "
                                      "over 352 rows")
    for part in ("weights", "optimizer", "gradients", "activations", "KV cache"):
        assert f"{part} " in report["memory"]
    assert report["tokens"].startswith("of the first 256 prompts 256 are written the same with an answer behind them")
    assert "CPU cores" in report["machine"]


def test_one_is_not_several(rlx):
    report = lines_of(rlx("check", "--algo", "grpo", "--reward", "polite_length", "--set", "train.batch_size=1",
                          "--set", "train.minibatches=8", "--steps", "1", "--json"))
    assert report["batch"].startswith("1 prompt x 8 completions = 8 rows a step; 16 optimizer steps of 1 row; 1 step ")
    alone = lines_of(rlx("check", "--algo", "grpo", "--reward", "polite_length", "--set", "rollout.group_size=64",
                         "--json"))
    assert "1 prompt a step with 64 completions each" in alone["notes"]


def test_a_reward_that_judges_nothing_is_named(rlx):
    """Of the bundled data no row has the column that it compares with."""
    report = lines_of(rlx("check", "--algo", "grpo", "--reward", "exact_match", "--reward", "polite_length", "--json"))
    assert report["rewards on a made-up completion"] == (
        "exact_match [None, None, None, None] (it judged none, and so teaches nothing: has the data the columns that "
        "it reads?), polite_length [0.5, 0.5, 0.5, 0.5]")


@pytest.mark.parametrize(("ranks", "said"), [
    (5, "24 rows a step on 5 ranks, 4.8 each on average, by length, none is padding; 1 optimizer step of 24 rows; 2"),
    (26, "24 rows a step on 26 ranks, 0.923 each on average, by length, 2 ranks have a row of padding alone; 1 optimi"),
])
def test_a_batch_that_no_number_of_ranks_divides_is_written_out(rlx, model, ranks, said):
    spec = CASES / "specs/S07_not_divisible.yaml"
    report = lines_of(rlx("check", spec, "--model", model, "--gpus", ranks, "--json"))
    assert report["batch"].startswith(f"6 prompts x 4 completions = {said}")


def test_more_memory_than_there_is_names_the_first_setting_to_change(rlx):
    report = lines_of(rlx("check", "--algo", "sft", "--set", "train.micro_tokens=1000000000", "--set",
                          "train.batch_size=100000000", "--json"))
    assert "too much. Change first: train.micro_tokens, now 1000000000" in report["memory"]


def test_a_few_rows_that_are_far_longer_than_the_rest_get_a_suggested_limit(rlx, model, tmp_path):
    rows = [{"prompt": "say it", "completion": "hello"}] * 199 + [{"prompt": "say it", "completion": "x" * 150}]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    report = lines_of(rlx("check", "--algo", "sft", "--model", model, "--data", data, "--steps", 2, "--json"))
    assert "data.max_length = 12 with data.overlong = drop would leave out 1 row and make" in report["lengths"]
    assert "the stop token is the last that is learned" in report["tokens"]


@pytest.mark.parametrize(("gpus", "said"), [
    (8, ""), (32, "; 32 ranks need as many GPUs, of one machine or of several")])
def test_a_run_of_more_gpus_than_there_are_can_be_planned(rlx, monkeypatch, gpus, said):
    gpus_of_this_machine(monkeypatch, 8)
    report = lines_of(rlx("check", "--algo", "sft", "--gpus", gpus, "--json"))
    assert report["machine"].startswith("8 GPUs (one), ")
    assert report["machine"].endswith(f" CPU cores{said}")
    assert f"on {gpus} ranks" in report["batch"]


class Anyone(Ranks):
    """A rank that answers for all."""

    def gather(self, value):
        return [value]


@pytest.mark.parametrize("ranks", [Anyone(0, 32, 0, 8), Anyone(0, 8, 0, 8)])
@pytest.mark.parametrize("seen", [8, 1])
def test_gpus_of_other_machines_and_those_that_a_launcher_hides_are_not_missed(tmp_path, monkeypatch, ranks, seen):
    """Under torchrun, srun and deepspeed: `start_distributed` looks at those of each machine."""
    gpus_of_this_machine(monkeypatch, seen)
    monkeypatch.chdir(tmp_path)
    plan = resolve(Registry.discover(), {"algo": {"name": "sft"}, "data": {"cache": str(tmp_path)}})
    assert examine(plan, ranks, ranks.world, print, unseen).inputs.total_steps > 0


class Unlike(Ranks):
    """Two ranks, of which the second alone has a GPU."""

    def gather(self, value):
        if isinstance(value, dict) and "a GPU is there" in value:
            return [value, {**value, "a GPU is there": True}]
        return [value, value]


def test_machines_with_and_without_a_gpu_are_told_so_before_they_wait_for_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = resolve(Registry.discover(), {"algo": {"name": "sft"}, "data": {"cache": str(tmp_path)}})
    with pytest.raises(SpecError, match=r"a GPU is there: False on rank 0, True on ranks \[1\]; give every"):
        examine(plan, Unlike(0, 2, 0, 1), 2, print, unseen)


def gpus_of_this_machine(monkeypatch, number):
    monkeypatch.setattr("torch.cuda.device_count", lambda: number)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # some versions count, to know
    monkeypatch.setattr("torch.cuda.get_device_name", lambda i: "one")


def test_only_a_reward_that_is_named_is_loaded_from_the_folder_at_hand(rlx):
    code = "import pathlib\npathlib.Path('loaded').touch()\ndef short(samples):\n    return [0.0] * len(samples)\n"
    for name in ("polite_length.py", "rewards.py", "hf.py"):
        Path(name).write_text(code)
    for reward in ("polite_length", "regex:a"):
        assert rlx("check", "--algo", "grpo", "--reward", reward).code == 0
    assert not Path("loaded").exists()
    assert rlx("check", "--algo", "grpo", "--reward", "rewards.py:short").code == 0
    assert Path("loaded").exists()


@pytest.mark.parametrize("command", ["check", "train"])
def test_a_tracker_without_credentials_is_found_before_the_model_is_loaded(rlx, tmp_path, monkeypatch, command):
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    spec = tmp_path / "spec.yaml"
    spec.write_text("trackers: [{name: wandb}]\n")
    result = rlx(command, spec, "--algo", "sft")
    assert result.code == 2
    assert "tracker 'wandb': no login for api.wandb.ai: run 'wandb login', set WANDB_API_KEY, or give it the " \
           "option mode: offline" in result.err
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    (tmp_path / ".netrc").chmod(0o600)
    if command == "check":
        assert rlx(command, spec, "--algo", "sft").code == 0


def test_space_for_checkpoints_and_a_folder_that_cannot_be_written(rlx, tmp_path):
    """What cannot hold one ends check and train alike; what holds one, and not all of them, is said by both."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", disk], capture_output=True,
                      check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        flags = ("--algo", "sft", "--set", f"run.dir={disk}", "--set", "run.save_every=10", "--steps", "1")
        few = f"the checkpoints need 0.05 GiB (3 at once), and '{disk}' has 0.02 free: set run.dir to another disk, or"
        assert f"careful: {few} run.keep lower" in rlx("check", *flags).out
        assert f"careful: {few} run.keep lower" in " ".join(rlx("train", *flags, "--name", "one").out.split("\n"))
        none = f"a checkpoint needs 0.02 GiB, and '{disk}' has 0.00 free: set run.dir to another disk, or make room"
        for command in ("check", "train"):
            result = rlx(command, *flags)
            assert (result.code, none in result.err) == (2, True), result
        assert [run.name for run in disk.iterdir()] == ["one"]
        resumed = rlx("check", *flags, "--name", "one", "--resume", "auto")
        assert "nothing to do" in resumed.err
        assert none.replace(str(disk), f"{disk}/one/checkpoints") in resumed.err
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert f"the run folder cannot be made in '{disk}', which is read-only" in rlx("check", *flags).err
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


WRONG = "def broken(samples):\n    raise KeyError('answer')\ndef none(samples):\n    return [None] * len(samples)\n"


@pytest.mark.parametrize("command", ["check", "train"])
def test_all_that_is_wrong_with_data_machine_and_rewards_is_said_at_once(rlx, tmp_path, monkeypatch, command):
    """Before anything is loaded; a service that is not there is not waited for where the run will not start anyway."""
    monkeypatch.setattr("rlx.models.loading.load_causal_lm", None)
    Path("rules.py").write_text(WRONG)
    Path("bad.jsonl").write_text("no json\n")
    flags = [command, "--algo", "grpo", "--steps", "1", "--set", "run.dir=rules.py/runs", "--reward"]
    begin, before = time.monotonic(), sorted(Path().iterdir())
    result = rlx(*flags, "rules.py:broken", "--data", "bad.jsonl", "--eval-data", "none.jsonl")
    assert result.code == 2
    assert result.err.startswith("error: 3 problems:\n  - data file 'bad.jsonl', line 1 is not valid JSON: ")
    for said in ("\n  - there is no data file 'none.jsonl'", "\n  - the run folder cannot be made in '"):
        assert said in result.err
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
    result = rlx(*flags, url)
    assert result.code == 2
    for said in ("2 problems:\n  - the run folder cannot be made in '", f"{url} could not be reached: ConnectError"):
        assert said in result.err
    assert time.monotonic() - begin < 60
    assert sorted(Path().iterdir()) == before


def test_train_tries_a_reward_before_a_model_is_loaded(rlx, monkeypatch):
    """It is the one that is used, built once."""
    loaded: list[str] = []
    load = rlx_build._load
    monkeypatch.setattr(rlx_build, "_load", lambda *args: loaded.append(args[1]) or load(*args))
    Path("rules.py").write_text(WRONG)
    flags = ["train", "--algo", "grpo", "--steps", "1", "--set", "rollout.max_completion=2", "--reward"]
    result = rlx(*flags, "rules.py:broken")
    assert result.code == 1
    assert "sample 1 of 4 (data " in result.err
    assert "completion 'Thank you, here is an answer.'): KeyError: 'answer'" in result.err
    assert loaded == []
    result = rlx(*flags, "polite_length", "--reward", "rules.py:none", "--set", "train.batch_size=1")
    assert (result.code, loaded) == (0, ["policy"])
    assert "done: 1 step in " in result.out
    assert "careful: reward 'none' was tried on a made-up completion: it judged none" in result.out


PICKY = "def picky(samples):\n    return [len(s.completion) / ('Thank' not in s.completion) for s in samples]\n"


@pytest.mark.parametrize("instead", ["skip", -1])
def test_a_reward_that_may_fail_and_fails_on_the_made_up_completion_is_said(rlx, instead):
    """The run's own completions may be such that it never does."""
    Path("rules.py").write_text(PICKY)
    Path("spec.json").write_text(json.dumps({"algo": {"name": "grpo"}, "rewards": [
        {"name": "rules.py:picky", "on_error": instead}]}))
    doubt = "it failed on 4 of 4, which its on_error permits: ZeroDivisionError: division by zero"
    assert doubt in lines_of(rlx("check", "spec.json", "--json"))["rewards on a made-up completion"]
    result = rlx("train", "spec.json", "--steps", "1", "--set", "rollout.max_completion=1",
                 "--set", "train.batch_size=1", "--set", "data.eval=0")
    assert result.code == 0, result.err
    assert f"careful: reward 'picky' was tried on a made-up completion: {doubt}" in result.out


def test_too_few_gpus_and_all_else_are_said_by_train_too(rlx, monkeypatch):
    gpus_of_this_machine(monkeypatch, 1)
    Path("bad.jsonl").write_text("no json\n")
    result = rlx("train", "--algo", "sft", "--gpus", "2", "--data", "bad.jsonl")
    assert result.code == 2
    assert "2 problems:" in result.err
    assert "--gpus 2: this machine has 1" in result.err
    assert "bad.jsonl" in result.err


@pytest.mark.parametrize("reward", ["judge", "http"])
def test_a_service_that_is_not_there_is_said_at_once(rlx, reward):
    """A run waits for it, five minutes long."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    more = ("--set", f"rewards=[{{name: 'judge:m', options: {{url: '{url}'}}}}]") if reward == "judge" else (
        "--reward", url)
    begin = time.monotonic()
    result = rlx("check", "--algo", "grpo", *more)
    assert result.code == 1
    assert f"{url}{'/chat/completions' * (reward == 'judge')} could not be reached: ConnectError" in result.err
    assert time.monotonic() - begin < 60


def test_what_another_rank_alone_has_found_is_named_with_the_rank():
    found = Problems()
    found.of(lambda: fail("no data here"))
    with pytest.raises(InputError) as refused:
        _refuse(found, [["no data here"], ["no data here", "no model"], ["no model"]], None, None)
    assert str(refused.value) == "2 problems:\n  - no data here\n  - rank 1: no model"


def fail(text):
    raise DataError(text)
