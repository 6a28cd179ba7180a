"""Other files under the same path, on resume: what the run would read from there is refused, or said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import rlx
from rlx import identity
from rlx.check import check_plan
from rlx.plan import resolve
from rlx.registry import Registry
from rlx_sdk import SpecError

QUICK = Path(rlx.__file__).parent / "quickstart"


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(QUICK / "rlx-tiny", tmp_path / "model")


@pytest.fixture
def go(train, model, capsys):
    """One step more than before, with what is said."""
    def run(algo, steps, forced=False, model=model):
        resume = {"resume": "auto", "resume_changed": forced} if steps > 1 else {}
        capsys.readouterr()
        train(algo, model=model if isinstance(model, dict) else str(model), data=str(QUICK / "prompts.parquet"),
              train={"steps": steps, "batch_size": 2}, run={"name": "c", **resume}, quiet=False)
        return capsys.readouterr().out

    return run


def other_weights(folder):
    weights = load_file(folder / "model.safetensors")
    save_file({name: weight + 0.01 for name, weight in weights.items()}, folder / "model.safetensors",
              {"format": "pt"})


def other_template(folder):
    file = folder / "chat_template.jinja"
    file.write_text(file.read_text() + "{# another #}")


def test_another_chat_template_is_refused_and_a_file_that_is_only_written_otherwise_is_said(go, model):
    go("sft", 1)
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config, indent=7))
    other_weights(model)  # the checkpoint's own are used
    said = go("sft", 2)
    assert "'tokenizer_config.json' of model.path has changed since the checkpoint" in said
    assert "safetensors" not in said
    other_template(model)
    with pytest.raises(SpecError, match=r"'chat_template.jinja' of model.path has changed since the checkpoint '.*_2', "
                                        r"so its run cannot be continued: .* --set run.resume_changed=true"):
        go("sft", 3)
    assert "'chat_template.jinja' of model.path has changed" in go("sft", 3, forced=True)


@pytest.mark.parametrize("over", [{}, {"lora": {"rank": 2, "alpha": 4}}, {"reference": {"path": "other"}}])
def test_other_weights_where_frozen_ones_are_read_are_refused(go, model, tmp_path, over):
    """The reference of DPO: the model that the run began with, that without an adapter, or a folder of its own."""
    folder = shutil.copytree(model, tmp_path / "other") if "reference" in over else model
    spec = {"path": str(model), **({"reference": {"path": str(folder)}} if "reference" in over else over)}
    go("dpo", 1, model=spec)
    if "reference" in over:
        other_weights(model)  # they are trained: those of the checkpoint are used
    else:
        (model / "README.md").write_text("no part of a model")
    assert "has changed" not in go("dpo", 2, model=spec)
    other_weights(folder)
    setting = "model.reference.path" if "reference" in over else "model.path"
    with pytest.raises(SpecError, match=rf"'model.safetensors' of {setting} has changed since the checkpoint"):
        go("dpo", 3, model=spec)


def test_what_a_reward_reads_is_said_and_a_checkpoint_from_before_knows_less(model, tmp_path):
    judge = shutil.copytree(model, tmp_path / "judge")
    plan = resolve(Registry.discover(), {"algo": {"name": "grpo"}, "rewards": [{"name": f"hf:{judge}"}]})
    inputs = SimpleNamespace(train=None, held_out=None, tokenizer=SimpleNamespace(fingerprint="t"))
    then, said = identity.identity(plan, inputs), list[str]()
    other_weights(judge)
    now = identity.identity(plan, inputs)
    identity.same_identity(then, now, plan, inputs, Path("step_1"), said.append)
    assert said == ["'model.safetensors' of reward hf:judge, path has changed since the checkpoint 'step_1'"]
    for old in ({"data": then["data"]}, now):
        identity.same_identity(old, now, plan, inputs, Path("step_1"), pytest.fail)


def test_a_large_file_is_told_apart_by_its_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "WHOLE", 1000)
    monkeypatch.setattr(identity, "PART", 50)
    file = tmp_path / "model.safetensors"
    weights = torch.randn(1000)
    found = set()
    for _ in range(3):
        save_file({"w": weights}, file)
        found.add(str(identity._fingerprints(str(tmp_path))))
    assert len(found) == 1
    for change in (weights + 1e-3, torch.cat([weights, weights[:1]]), torch.cat([weights[:-1], weights[:1]])):
        save_file({"w": change}, file)
        found.add(str(identity._fingerprints(str(tmp_path))))
    assert len(found) == 4


def test_check_says_what_has_changed(train):
    runs = train("sft", train={"steps": 1}, run={"name": "one"}).run.parent
    plan = resolve(Registry.discover(), {
        "algo": {"name": "sft"}, "train": {"steps": 2, "batch_size": 8, "optim": {"policy": {"lr": 1e-5}}},
        "run": {"dir": str(runs), "name": "one", "resume": "auto"}})
    assert "train.optim.policy.lr 0.0003 -> 1e-05" in check_plan(plan)["notes"]
