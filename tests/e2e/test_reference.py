"""The frozen reference: of given data its logprobs are computed once, and it may be another model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import rlx
from rlx import build
from rlx_sdk import ModelError, SpecError

from .conftest import metrics_of

QUICK = Path(rlx.__file__).parent / "quickstart"


@pytest.fixture
def other_model(tmp_path):
    """The bundled model with other weights."""
    folder = tmp_path / "other"
    folder.mkdir()
    for file in (QUICK / "rlx-tiny").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    save_file({k: w + 0.02 * torch.randn(w.shape, generator=generator) for k, w in weights.items()},
              folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def loaded(monkeypatch):
    """Roles whose model was loaded."""
    roles, load = [], build._load
    monkeypatch.setattr(build, "_load", lambda plan, role, *rest: (roles.append(role), load(plan, role, *rest))[1])
    return roles


def settings(tmp_path, **reference):
    return {"model": {"path": str(QUICK / "rlx-tiny"), "reference": reference},
            "data": {"path": str(QUICK / "prompts.parquet"), "cache": str(tmp_path / "cache"), "eval": 4}}


def test_a_second_run_does_not_load_it_and_numbers_stay(train, tmp_path, loaded):
    runs = [train("dpo", **settings(tmp_path, **reference), run={"name": name})
            for name, reference in (("first", {}), ("second", {}), ("direct", {"cache": False}))]

    assert loaded == ["policy", "reference", "policy", "policy", "reference"]
    first, second, direct = (metrics_of(run.run) for run in runs)
    assert first == second
    for one, other in zip(first, direct, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(file.read_bytes()[:500]),
                                    lambda file: file.write_bytes(b"")], ids=["cut off", "empty"])
def test_a_damaged_file_is_made_anew(train, tmp_path, loaded, damage):
    train("dpo", **settings(tmp_path), run={"name": "first"}, train={"steps": 1})
    file, = (tmp_path / "cache").glob("reference-*.arrow")
    whole = file.read_bytes()
    damage(file)
    for name in ("second", "third"):
        train("dpo", **settings(tmp_path), run={"name": name}, train={"steps": 1})
    assert file.read_bytes() == whole
    assert loaded.count("reference") == 2


def test_other_rows_or_weights_are_computed_anew(train, tmp_path, loaded, other_model):
    model = {"path": str(other_model)}
    given = settings(tmp_path) | {"model": model}
    train("dpo", **given, run={"name": "a"})
    train("dpo", **given, run={"name": "b", "seed": 5}, train={"steps": 1})
    weights = load_file(other_model / "model.safetensors")
    save_file({k: w * 0.9 for k, w in weights.items()}, other_model / "model.safetensors", {"format": "pt"})
    result = train("dpo", **given, run={"name": "c"})

    assert loaded.count("reference") == 3
    assert metrics_of(result.run)[1]["loss/policy"] == pytest.approx(math.log(2), abs=1e-4), "of the new weights"


def test_it_may_be_another_model(train, tmp_path, other_model):
    result = train("dpo", **settings(tmp_path, path=str(other_model)), train={"steps": 1})
    assert metrics_of(result.run)[0]["eval/loss/policy"] != pytest.approx(math.log(2), abs=1e-3)
    lora = settings(tmp_path, path=str(other_model))
    lora["model"]["lora"] = {"rank": 4}
    again = train("dpo", **lora, train={"steps": 1}, run={"name": "lora"})
    assert metrics_of(again.run)[0]["eval/loss/policy"] == pytest.approx(
        metrics_of(result.run)[0]["eval/loss/policy"], rel=1e-4), "an adapter starts as no change"
    ppo = train("ppo", reward="polite_length", **settings(tmp_path, path=str(other_model)), train={"steps": 1},
                run={"name": "ppo"})
    assert abs(metrics_of(ppo.run)[0]["eval/kl/mean"]) > 0.02


def test_another_vocabulary_is_refused_before_a_model_is_loaded(train, tmp_path, other_model, loaded):
    file = other_model / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    one, other = list(vocab)[500:502]
    vocab[one], vocab[other] = vocab[other], vocab[one]
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match=r"has another vocabulary than the policy \(.*; 2 differ, such as"):
        train("dpo", **settings(tmp_path, path=str(other_model)))
    assert loaded == []


@pytest.mark.parametrize(("algo", "more", "said"), [
    ("sft", {}, "model.reference.path can have no effect: sft compares with no reference here"),
    ("ppo", {"reward": "polite_length", "algo": {"name": "ppo", "kl": {"coef": 0}}},
     "model.reference.path can have no effect: ppo compares with no reference here"),
])
def test_a_reference_that_cannot_act_is_an_error(tmp_path, algo, more, said):
    with pytest.raises(SpecError, match=said):
        rlx.train(**{"algo": algo, **more}, **settings(tmp_path, path=str(QUICK / "rlx-tiny")), steps=1)


def test_the_cache_cannot_act_on_samples(tmp_path):
    with pytest.raises(SpecError, match=r"model.reference.cache can have no effect: sampled completions are new each"):
        rlx.train(algo="ppo", reward="polite_length", **settings(tmp_path, cache=True), steps=1)
    with pytest.raises(SpecError, match=r"engine.offload = all moves weights that are split"):
        rlx.train(algo="dpo", engine={"offload": "all"}, steps=1)
