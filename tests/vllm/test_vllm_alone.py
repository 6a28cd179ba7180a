"""What needs an engine of its own: starting, refusing, whole runs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import rlx
from rlx.ranks import start_distributed
from rlx_sdk import ModelError, RolloutContext

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed (.ci/install-vllm installs it for the CPU)", allow_module_level=True)

from rlx_plugins.options import VLLMOptions
from rlx_plugins.ppo import PPO
from rlx_plugins.vllm_rollout import VLLMRollout

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's imports and kernels warn of much
VLLM = importlib.metadata.version(importlib.metadata.packages_distributions()["vllm"][0])


@pytest.fixture
def make():
    """Makes a small policy of some architecture, and a backend for it, beside a trainer's process group."""
    start_distributed()

    def make(kind, **options):
        policy = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](
            hidden_size=128, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=99, max_position_embeddings=64, pad_token_id=0, bos_token_id=None, eos_token_id=None,
            **options))
        return policy, VLLMRollout(VLLMOptions(), RolloutContext(policy, "", (5,), 0, "cpu", "float32", 64))

    return make


@pytest.mark.parametrize(("kind", "options", "message"), [
    pytest.param("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 32},
                 "the old experts of Qwen3Moe", marks=pytest.mark.skipif(
                     VLLM.startswith("0.20."), reason="it starts no mixture of experts on a CPU")),
    pytest.param("olmo2", {}, "vllm has no Olmo2ForCausalLM of its own", marks=[pytest.mark.full, pytest.mark.skipif(
        VLLM.startswith("0.20."), reason="it has one")]),
])
def test_models_whose_samples_could_not_be_trusted_are_refused(make, kind, options, message):
    policy, backend = make(kind, **options)
    with pytest.raises(ModelError, match=message):
        backend.sync(policy.named_parameters(), 0)
    assert torch.distributed.is_initialized()


def test_starting_and_closing_are_silent_and_change_nothing_of_the_trainer_s(make, capfd):
    policy, backend = make("llama")
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(3)
    before, threads = torch.get_rng_state(), torch.set_num_threads
    others = np.random.get_state()[1].tolist(), random.getstate()
    backend.sync(policy.named_parameters(), 0)
    backend.close()
    assert torch.equal(before, torch.get_rng_state())
    assert others == (np.random.get_state()[1].tolist(), random.getstate())
    assert torch.set_num_threads is threads
    assert torch.distributed.is_initialized()
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("backend", ["vllm", "vllm, lora", pytest.param("hf", marks=pytest.mark.full)])
def test_a_run_trains_on_samples_of_its_current_policy(tmp_path, monkeypatch, backend):
    """Twice in one process: closing the engine leaves what the trainer shares with it."""
    differences, prepare = [], PPO.prepare

    def spy(algorithm, data, ctx):
        differences.append(ctx.policy.logprobs(data.seqs) - data.seqs.per_token["rollout_logprobs"])
        return prepare(algorithm, data, ctx)

    monkeypatch.setattr(PPO, "prepare", spy)
    name, model = ("vllm", {"lora": {"rank": 4}}) if backend == "vllm, lora" else (backend, {})
    result = rlx.train(
        algo="ppo", reward="polite_length", quiet=True, run={"dir": str(tmp_path), "save_every": None}, model=model,
        rollout={"name": name, "max_completion": 24},
        train={"steps": 2, "batch_size": 8, "minibatches": 2, "optim": {"policy": {"lr": 1e-3}}})
    lines = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss/policy" in line] == [1, 2]
    assert all(line["rollout/logprob_diff"] < 1e-4 and line["rollout/is_weight"] == pytest.approx(1, abs=1e-4)
               for line in lines if "loss/policy" in line and name == "vllm")
    assert len(differences) == 4  # two steps, and an evaluation before and after
    assert max(d.abs().max() for d in differences) < 1e-4


@pytest.mark.full
def test_each_rank_has_an_engine_of_its_own(tmp_path):
    """Two ranks sample and train what one does."""
    lines = []
    for ranks in (1, 2):
        subprocess.run([sys.executable, "-m", "rlx", "train", "--algo", "grpo", "--reward", "polite_length",
                        "--rollout", "vllm", "--gpus", str(ranks), "--steps", "2", "--name", str(ranks), "--json",
                        *(part for setting in (f"run.dir={tmp_path}", "rollout.max_completion=16", "train.batch_size=4",
                                               "train.minibatches=1", "rollout.group_size=2", "data.eval=2")
                          for part in ("--set", setting))], check=True, capture_output=True, timeout=300)
        file = tmp_path / str(ranks) / "metrics.jsonl"
        lines.append([json.loads(line) for line in file.read_text().splitlines()])
    one, two = ([{k: v for k, v in line.items() if k.split("/")[0] in ("reward", "length", "loss", "rollout")}
                 for line in found] for found in lines)
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, abs=1e-4)
