"""Names from verl and TRL: each of ours exists, each of theirs too where they are installed."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

from rlx.cli import app
from rlx.layers import assign
from rlx.looks.peers import called_here, peers
from rlx.registry import Registry
from rlx.spec import Spec

PLUGINS = {"algorithm": ("algo.", {"ppo", "grpo", "dpo"}), "rollout": ("rollout.options.", {"vllm", "vllm_server"})}


def names_of(model, prefix=""):
    """The dotted names of a model's settings, sections too."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(kind, "model_fields"):
                yield from names_of(kind, f"{prefix}{name}.")


@pytest.fixture(scope="module")
def ours():
    registry = Registry.discover()
    return {*names_of(Spec), *(full for kind, (prefix, wanted) in PLUGINS.items() for entry in registry.entries(kind)
                               if entry.name in wanted for full in names_of(entry.call("config"), prefix))}


def test_every_name_of_ours_exists(ours):
    [train] = [c.callback for c in app.registered_commands if c.callback.__name__ == "train"]
    flags = {f"--{name}" for name in train.__annotations__}
    assert [(one.name, name) for one in peers() for name in one.ours if name not in ours | flags] == []


def test_there_are_enough_and_each_says_something():
    for peer in ("verl", "trl"):
        assert sum(one.peer == peer for one in peers()) >= 60
    assert [one.name for one in peers() if not one.ours and not (one.en and one.zh)] == []
    assert [one.name for one in peers() if bool(one.en) != bool(one.zh)] == []


def test_every_name_of_trls_exists_where_it_is_installed():
    trl = pytest.importorskip("trl")
    general = {f.name for f in dataclasses.fields(importlib.import_module("transformers").TrainingArguments)}
    general.add("trust_remote_code")  # of all TRL's own
    for one in (one for one in peers() if one.peer == "trl"):
        config, _, name = one.name.rpartition(".")
        if not config:
            assert name in general, one
        elif hasattr(trl, config):  # PPOConfig has left TRL
            assert name in {f.name for f in dataclasses.fields(getattr(trl, config))}, one


def test_a_setting_of_a_peer_brings_ours():
    assert list(called_here("use_vllm", False)) == [
        "TRL's GRPOConfig.use_vllm is rollout.name here (false is --rollout hf, true is --rollout vllm)"]
    tree = {}
    assign(tree, "actor.optim.lr", 1e-6)
    assert list(called_here("actor_rollout_ref", tree)) == [
        "verl's actor_rollout_ref.actor.optim.lr is train.optim.policy.lr here"]
    assert list(called_here("data.shuffle", True)) == ["verl's data.shuffle is not needed here (always, from run.seed)"]
    assert list(called_here("steps", 3)) == []
