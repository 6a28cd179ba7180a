"""Whole runs on the bundled model."""

from __future__ import annotations

import json
import math
import random
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import rlx
from rlx.checkpoint import complete_checkpoints, verify
from rlx.cli import app
from rlx.identity import same_data
from rlx.rewards import DRY_COMPLETION
from rlx.runs import load_saved_spec
from rlx_plugins.hf_rollout import HFRollout
from rlx_sdk import CheckpointError, ModelError, RewardError, Sample, SpecError, TrainingError

from .conftest import ALGORITHMS, metrics_of

ALL = tuple(ALGORITHMS)


@pytest.mark.parametrize("algo", ALL)
def test_one_flag_changes_the_algorithm_and_leaves_an_hf_checkpoint(train, algo):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    result = train(algo)

    actor = result.checkpoint / "actor"
    model = AutoModelForCausalLM.from_pretrained(actor)
    tokenizer = AutoTokenizer.from_pretrained(actor)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True,
                                        return_tensors="pt", return_dict=True)
    assert model.generate(**ids, max_new_tokens=4).shape[1] > ids["input_ids"].shape[1]
    trained = load_file(result.checkpoint / "state" / "policy.safetensors")
    assert torch.equal(trained["weight/model.norm.weight"], model.model.norm.weight)
    assert [line["step"] for line in metrics_of(result.run) if "loss/policy" in line] == [1, 2, 3, 4]
    assert all(math.isfinite(v) for line in metrics_of(result.run) for v in line.values())
    assert {p.name for p in result.run.iterdir()} >= {"spec.yaml", "metrics.jsonl", "samples", "checkpoints"}
    assert (result.checkpoint / "critic").is_dir() == (algo == "ppo")


def drawn(samples: list[Sample]) -> list[float]:
    """A reward of length, and of every library's random numbers."""
    return [len(s.completion) / 50 + random.random() + np.random.rand() + float(torch.rand(())) for s in samples]


@pytest.mark.parametrize("algo", ALL)
def test_resumed_equals_uninterrupted_bit_for_bit(train, algo):
    """Of PPO with all that a run carries from step to step: schedules, a KL coefficient that moves, random rewards."""
    ppo = algo == "ppo"
    more = {"minibatches": 2, "update_epochs": 2, **({"optim": {"critic": {"schedule": "linear"}}} if ppo else {})}
    settings = {"train": more, **({"reward": drawn, "rollout": {"max_completion": 12}} if ppo else {})}
    kl = {"name": "ppo", "kl": {"coef": 0.2, "target": 1e-4, "horizon": 64}}
    run = {"sample_every": None} if ppo else {}
    straight = train(kl if ppo else algo, **settings, run={"name": "straight", **run})
    broken = straight.run.parent / "broken"
    shutil.copytree(straight.run, broken)
    shutil.rmtree(broken / "checkpoints" / "global_step_4")

    resumed = train(kl if ppo else algo, **settings, run={"name": "broken", "resume": "auto", **run})

    assert resumed.run == broken
    steps = [line for line in metrics_of(straight.run) if "loss/policy" in line]
    assert not ppo or len({line["kl/coef"] for line in steps}) == len({line["lr/critic"] for line in steps}) == 4
    assert metrics_of(resumed.run) == metrics_of(straight.run)
    for file in straight.run.glob("samples/*.parquet"):
        pd.testing.assert_frame_equal(pd.read_parquet(file), pd.read_parquet(broken / "samples" / file.name))
    for file in sorted(straight.checkpoint.rglob("*.safetensors")):
        name = file.relative_to(straight.checkpoint)
        assert file.read_bytes() == (resumed.checkpoint / name).read_bytes(), name


@pytest.mark.parametrize("algo", ALL)
def test_results_do_not_depend_on_the_micro_batch(train, algo):
    """One row at a time, or all at once: the same weights and metrics but for the order of float additions."""
    small, large = (train(algo, train={"micro_tokens": tokens, "steps": 2}, run={"name": f"m{tokens}"})
                    for tokens in (1, 100_000))

    for role in ("policy", "critic") if algo == "ppo" else ("policy",):
        one, other = (load_file(r.checkpoint / "state" / f"{role}.safetensors") for r in (small, large))
        # Adam divides by the gradient's size, so a weight whose gradient is all rounding may move by up to lr.
        moved = {k: (one[k] - other[k]).norm() / one[k].norm() for k in one if k.startswith("exp_avg/")}
        assert max(moved.values()) < 1e-3, moved
    for a, b in zip(metrics_of(small.run), metrics_of(large.run), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-4)


@pytest.mark.full  # the full circle learns in the gate
def test_training_raises_the_reward_it_is_given(train):
    """A reward for short completions: the policy learns to stop early."""
    def short(samples: list[Sample]) -> list[float]:
        return [-len(s.completion) / 50 for s in samples]

    result = train("ppo", reward=short, rollout={"max_completion": 32},
                   train={"steps": 12, "batch_size": 32, "optim": {"policy": {"lr": 1e-3, "schedule": "constant"}}},
                   run={"save_every": 12})

    rewards = [line["reward/mean"] for line in metrics_of(result.run) if "reward/mean" in line]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2


def test_dpo_widens_the_margin_and_sft_lowers_the_loss(train):
    longer = {"steps": 8, "batch_size": 16, "optim": {"policy": {"lr": 3e-4, "schedule": "constant"}}}
    dpo, sft = (metrics_of(train(algo, train=longer).run) for algo in ("dpo", "sft"))
    margins = [line["eval/rewards/margin"] for line in dpo if "eval/rewards/margin" in line]
    losses = [line["eval/loss/policy"] for line in sft if "eval/loss/policy" in line]

    assert margins[0] == pytest.approx(0, abs=1e-4), "before the first update the policy is the reference"
    assert margins[-1] > 0.2
    assert losses[-1] < losses[0], "on held-out rows"


def test_dpo_with_a_reward_ranks_its_own_samples(train):
    result = train("dpo", reward="polite_length", rollout={"max_completion": 32, "group_size": 4})

    lines = [line for line in metrics_of(result.run) if "loss/policy" in line]
    assert len(lines) == 4
    assert all(0 < line["pairs"] <= 8 and "reward/mean" in line for line in lines)


def test_evaluation_measures_held_out_rows_at_both_ends(train):
    result = train("ppo", data={"path": str(QUICK / "prompts.parquet"), "eval": 6}, train={"steps": 2})

    evals = [line for line in metrics_of(result.run) if "eval/reward/mean" in line]
    assert [line["step"] for line in evals] == [0, 2]
    assert evals[0]["eval/kl/mean"] == pytest.approx(0, abs=1e-4)
    assert evals[1]["eval/kl/mean"] != 0
    assert "eval/loss/critic" in evals[0]
    table = pd.read_parquet(result.run / "samples" / "eval_000002.parquet")
    assert len(table) == 6
    assert set(table) >= {"prompt", "completion", "reward", "reward/polite_length", "finish_reason"}


def test_epochs_use_every_row_exactly_that_often(train, tmp_path):
    rows = [{"prompt": f"p{i}", "completion": "ok"} for i in range(7)]
    data = tmp_path / "seven.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    seen: list[str] = []

    def spy(samples):
        seen.extend(s.prompt for s in samples if s.completion != DRY_COMPLETION)
        return [0.5 + 0.1 * len(s.completion) for s in samples]

    result = train("ppo", reward=spy, data=str(data), train={"steps": None, "epochs": 2, "batch_size": 3},
                   run={"sample_every": None})

    assert result.steps == 5, "ceil(14 / 3)"
    assert sorted(seen) == sorted(2 * [f"p{i}" for i in range(7)])


def test_a_resumed_epoch_goes_on_with_the_rows_that_are_left(train, tmp_path):
    """Broken off in the middle of an epoch, and at its end."""
    data = tmp_path / "eight.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(8)))
    seen: list[str] = []

    def spy(samples):
        seen.extend(s.prompt for s in samples if s.completion != DRY_COMPLETION)
        return [0.5 + 0.1 * len(s.completion) for s in samples]

    def go(**run):
        seen.clear()
        steps = {"steps": None, "epochs": 2, "batch_size": 2}
        result = train("ppo", reward=spy, data=str(data), train=steps, rollout={"max_completion": 4},
                       run={"sample_every": None, "save_every": 1, **run})
        return result, list(seen)

    straight, rows = go(name="straight")
    assert straight.steps == 8
    assert sorted(rows[:8]) == sorted(rows[8:]) == [f"p{i}" for i in range(8)]
    for stopped in (3, 4):
        broken = straight.run.parent / f"broken{stopped}"
        shutil.copytree(straight.run, broken)
        for step in range(stopped + 1, 9):
            shutil.rmtree(broken / "checkpoints" / f"global_step_{step}")
        resumed, again = go(name=broken.name, resume="auto")
        assert resumed.steps == 8
        assert again == rows[2 * stopped :]
        assert metrics_of(resumed.run) == metrics_of(straight.run)


def test_a_run_without_judged_samples_ends_with_a_reason(train):
    with pytest.raises(TrainingError, match=r"no update was possible in 2 steps in a row"):
        train("ppo", reward=lambda samples: [None] * len(samples), train={"max_skipped": 2})


def test_unjudged_samples_are_left_out_and_counted(train):
    result = train("ppo", reward=lambda samples: [None if i % 2 else 1.0 for i in range(len(samples))],
                   train={"steps": 1})

    line = next(line for line in metrics_of(result.run) if line["step"] == 1)
    assert line["reward/judged"] == 0.5
    assert line["reward/mean"] == 1.0
    assert line["completions"] == 4


def test_a_raising_reward_stops_the_run_and_names_the_row(train):
    def fails(samples):
        raise KeyError("ground_truth")

    named = r"(?s)reward 'fails' \(this program .*data row \d+.*KeyError: 'ground_truth'"
    with pytest.raises(RewardError, match=named):
        train("ppo", reward=fails)


def test_a_run_folder_is_never_mixed_with_another_run(train):
    train("sft", run={"name": "one"}, train={"steps": 1})
    with pytest.raises(SpecError, match=r"already holds a run.*--resume auto"):
        train("sft", run={"name": "one"})


def test_resume_auto_from_nothing_starts_and_a_named_checkpoint_must_exist(train, tmp_path, capsys):
    assert train("sft", run={"name": "fresh", "resume": "auto"}, train={"steps": 1}, quiet=False).steps == 1
    assert f"nothing to resume in '{tmp_path}/runs/fresh': starting from the beginning" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match=r"no complete checkpoint .*global_step_999.*global_step_1"):
        train("sft", run={"resume": str(tmp_path / "runs/fresh/checkpoints/global_step_999")})


def test_nothing_left_to_do_is_not_success(train):
    train("sft", run={"name": "done"}, train={"steps": 2})
    with pytest.raises(SpecError, match=r"nothing to do.*step 2 of 2.*--steps"):
        train("sft", run={"name": "done", "resume": "auto"}, train={"steps": 2})


@pytest.mark.fault("a checkpoint is damaged or half written", tried=2)
def test_damaged_and_unfinished_checkpoints_are_passed_over(train, capsys):
    result = train("sft", run={"name": "hurt"})
    state = result.checkpoint / "state" / "policy.safetensors"
    state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])
    (result.checkpoint.parent / ".writing_6").mkdir()
    with pytest.raises(CheckpointError, match=r"damaged: state/policy.safetensors"):
        verify(result.checkpoint)

    again = train("sft", run={"name": "hurt", "resume": "auto"}, quiet=False)

    assert again.steps == 4
    said, there = capsys.readouterr().out, result.checkpoint.parent
    assert f"'{there}/.writing_6' was not finished and is ignored" in said
    assert f"'{result.checkpoint}' is damaged: state/policy.safetensors is not what was written; looking for an" in said
    assert f"continuing from '{there}/global_step_2', step 2" in said
    assert [line["step"] for line in metrics_of(again.run) if "loss/policy" in line] == [1, 2, 3, 4]
    verify(again.checkpoint)


def test_only_the_newest_checkpoints_stay(train):
    result = train("sft", run={"save_every": 1, "keep": 2})
    assert [c.name for c in complete_checkpoints(result.run / "checkpoints")] == ["global_step_3", "global_step_4"]


@pytest.mark.fault("another run under the name, on resume")
@pytest.mark.parametrize(("change", "named"), [
    ({"train": {"batch_size": 4}}, r"'train.batch_size' is 4 and was 8"),
    ({"run": {"seed": 5}}, r"'run.seed' is 5 and was 0"),
])
def test_a_changed_run_is_not_continued(train, change, named):
    train("sft", run={"name": "c"}, train={"steps": 2})
    with pytest.raises(SpecError, match=named):
        train("sft", **{**change, "run": {"name": "c", "resume": "auto", **change.get("run", {})}})


def test_changed_data_and_algorithm_are_refused_and_a_changed_learning_rate_is_said(train, tmp_path, capsys):
    data = tmp_path / "d.jsonl"
    rows = [json.dumps({"prompt": f"p{i}", "completion": "ok", "chosen": "a", "rejected": "b"}) for i in range(8)]
    data.write_text("\n".join(rows))
    here = {"data": str(data), "train": {"steps": 2}}
    train("sft", **here, run={"name": "c"})
    with pytest.raises(SpecError, match=r"'algo.name' is 'dpo' and was 'sft'"):
        train("dpo", **here, run={"name": "c", "resume": "auto"})
    faster = {"data": str(data), "train": {"steps": 3, "optim": {"policy": {"lr": 1e-5}}}}
    capsys.readouterr()
    assert train("sft", **faster, run={"name": "c", "resume": "auto"}, quiet=False).steps == 3
    assert "changed since the checkpoint: train.optim.policy.lr 0.0003 -> 1e-05" in capsys.readouterr().out
    data.write_text("\n".join([*rows, rows[0]]))
    with pytest.raises(SpecError, match=r"data file '.*d.jsonl' has changed since the checkpoint .*9 rows, were 8"):
        train("sft", **here | {"train": {"steps": 5}}, run={"name": "c", "resume": "auto"})
    forced = {"name": "c", "resume": "auto", "resume_changed": True}
    assert train("sft", **here | {"train": {"steps": 5, "batch_size": 4}}, run=forced).steps == 5
    assert load_saved_spec(tmp_path / "runs" / "c")["run"]["resume_changed"] is False


def test_held_out_data_that_has_changed_is_refused_too(train, tmp_path, capsys):
    """What was measured on others, and a best checkpoint by it, is not to be compared."""
    data, held_out = tmp_path / "d.jsonl", tmp_path / "e.jsonl"
    for file, rows in ((data, 8), (held_out, 2)):
        file.write_text("".join(f"{json.dumps({'prompt': f'p{i}', 'completion': 'ok'})}\n" for i in range(rows)))
    settings = {"data": {"path": str(data), "eval": str(held_out)}, "train": {"steps": 1}}
    train("sft", **settings, run={"name": "c"})
    held_out.write_text(held_out.read_text() * 2)
    more = settings | {"train": {"steps": 2}}
    with pytest.raises(SpecError, match=r"data file '.*e.jsonl' has changed since the checkpoint .*4 rows, were 2"):
        train("sft", **more, run={"name": "c", "resume": "auto"})
    capsys.readouterr()
    train("sft", **more, run={"name": "c", "resume": "auto", "resume_changed": True}, quiet=False)
    assert "(4 rows, were 2); continued by force: it goes on with other rows" in capsys.readouterr().out


@pytest.mark.parametrize("saved", [{"rows": 2, "fingerprint": "a"}, [{"rows": 2, "fingerprint": "a"}]])
def test_a_checkpoint_may_know_of_the_training_data_alone(saved):
    """As those from before held-out data was noted."""
    rows, other = ([{}, {}] for _ in range(2))
    parts = [SimpleNamespace(rows=Rowed(rows, "a")), SimpleNamespace(rows=Rowed(other, "b"))]
    same_data(saved, SimpleNamespace(train=parts[0], held_out=parts[1]), Path("x"), False, pytest.fail)
    with pytest.raises(SpecError, match=r"2 rows, were 2\)"):
        same_data(saved, SimpleNamespace(train=parts[1], held_out=None), Path("x"), False, pytest.fail)


class Rowed(list):
    """Rows of a file, as far as a resumed run looks at them."""

    def __init__(self, rows, fingerprint):
        super().__init__(rows)
        self.file, self.identity = "rows.jsonl", {"rows": len(rows), "fingerprint": fingerprint}


def test_a_resumed_run_says_what_has_changed_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # of the cache
    result = rlx.train(algo="sft", steps=1, data={"eval": 0}, train={"batch_size": 4}, run={"dir": str(tmp_path)},
                       quiet=True)
    done = CliRunner().invoke(app, ["resume", str(result.run), "--steps", "2"])
    assert "changed since the checkpoint: train.steps 1 -> 2\n" in done.output


QUICK = Path(rlx.__file__).parent / "quickstart"


@pytest.mark.parametrize("stage", [1, 3])
def test_lora_trains_an_adapter_and_leaves_a_merged_model(train, stage):
    """The reference is the policy without its adapter; actor/ is the sum, adapter/ the adapter alone."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    settings = {"model": {"path": str(QUICK / "rlx-tiny"), "lora": {"rank": 4, "alpha": 8}},
                "data": {"path": str(QUICK / "prompts.parquet")}, "engine": {"zero_stage": stage}}
    result = train("dpo", **settings, run={"name": "lora"})

    lines = [line for line in metrics_of(result.run) if "loss/policy" in line]
    assert lines[0]["loss/policy"] == pytest.approx(math.log(2), abs=1e-4), "an adapter starts as no change"
    assert lines[-1]["rewards/margin"] != 0
    saved = load_file(result.checkpoint / "state" / "policy.safetensors")
    assert all(".lora_" in name for name in saved)
    tokens = torch.arange(5, 25)[None]
    base = AutoModelForCausalLM.from_pretrained(QUICK / "rlx-tiny")
    before = base(tokens).logits
    adapted = PeftModel.from_pretrained(base, result.checkpoint / "adapter")(tokens).logits
    merged = AutoModelForCausalLM.from_pretrained(result.checkpoint / "actor")(tokens).logits
    assert torch.allclose(adapted, merged, atol=1e-4)
    assert not torch.allclose(before, merged, atol=1e-4)

    broken = result.run.parent / "broken"
    shutil.copytree(result.run, broken)
    shutil.rmtree(broken / "checkpoints" / "global_step_4")
    resumed = train("dpo", **settings, run={"name": "broken", "resume": "auto"})
    again = load_file(resumed.checkpoint / "state" / "policy.safetensors")
    assert all(torch.equal(saved[name], again[name]) for name in saved)


def test_a_named_checkpoint_never_overwrites_another_run_or_its_own_future(train):
    result = train("sft", run={"name": "whole"})
    train("sft", run={"name": "other"}, train={"steps": 1})
    older = str(result.run / "checkpoints" / "global_step_2")
    with pytest.raises(SpecError, match=r"'.*other' holds another run"):
        train("sft", run={"name": "other", "resume": older})
    with pytest.raises(SpecError, match=r"'.*whole' holds newer checkpoints"):
        train("sft", run={"name": "whole", "resume": older})

    linked = result.run.parent.parent / "linked"
    linked.symlink_to(result.run.parent)
    own = str(linked / "whole" / "checkpoints" / "global_step_4")
    assert train("sft", run={"name": "whole", "resume": own}, train={"steps": 5}).steps == 5

    branch = train("sft", run={"name": "branch", "resume": older})

    assert [line["step"] for line in metrics_of(branch.run) if "loss/policy" in line] == [3, 4]
    state = branch.checkpoint / "state" / "policy.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"\x00")
    with pytest.raises(CheckpointError, match=r"damaged: state/policy.safetensors"):
        train("sft", run={"resume": str(branch.checkpoint)}, train={"steps": 9})


def test_two_runs_of_one_second_have_names_of_their_own(train, monkeypatch):
    class Still(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr("rlx.runs.datetime", Still)
    names = [train("sft", train={"steps": 1}).run.name for _ in range(3)]
    assert names == ["sft-20260102-030405", "sft-20260102-030405-2", "sft-20260102-030405-3"]


def test_a_refused_start_leaves_the_name_free(train, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(QUICK / "rlx-tiny", model)
    (model / "model.safetensors").write_bytes(b"not weights")
    data = str(QUICK / "prompts.parquet")
    with pytest.raises(ModelError, match=r"no model could be loaded from the folder"):
        train("sft", model=str(model), data=data, run={"name": "again"})
    shutil.copy(QUICK / "rlx-tiny" / "model.safetensors", model)
    assert train("sft", model=str(model), data=data, run={"name": "again"}, train={"steps": 1}).steps == 1


def test_a_policy_that_never_moves_is_no_success(train):
    with pytest.raises(TrainingError, match=r"the critic and the policy never moved in 2 steps") as error:
        train("ppo", reward=lambda samples: [None] * len(samples), train={"steps": 2})
    assert "Saved last: '" in str(error.value)
    assert "rlx resume" not in str(error.value), "there is nothing left to do"


def test_numbers_that_are_not_finite_end_the_run_with_a_reason(train):
    with pytest.raises(TrainingError, match=r"no update was possible in 2 steps in a row"):
        train("sft", train={"steps": 8, "max_skipped": 2, "optim": {"policy": {"lr": 1e30, "warmup_steps": 0}}})


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_sampler_of_something_else_is_found_in_the_first_evaluation(train, tmp_path, monkeypatch, minibatches):
    """Before the first update; where a batch makes one, the logprobs come from the loss, else from `prepare`."""
    generate = HFRollout.generate

    def other(self, requests):
        for i, found in generate(self, requests):
            yield i, [replace(one, logprobs=[x - 1 for x in one.logprobs]) for one in found]

    monkeypatch.setattr(HFRollout, "exact", False)
    monkeypatch.setattr(HFRollout, "generate", other)
    with pytest.raises(TrainingError, match=r"differ by 1\.00 a token from the policy's"):
        train("ppo", data={"path": str(QUICK / "prompts.parquet"), "eval": 2}, run={"name": "odd"},
              train={"minibatches": minibatches, "update_epochs": 1})
    assert not (tmp_path / "runs" / "odd" / "metrics.jsonl").exists()
