"""The memory estimate against tensors that are really alive, and against peaks that were measured on one H200."""

from __future__ import annotations

import json
import re
import shutil
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

import rlx
from rlx.faults import ways_to_save
from rlx.inputs import read_inputs
from rlx.layers import assign
from rlx.memory import GIB, Estimate, Load, Role, Shape, checkpoint_bytes, estimate, lora_weights, shape_of
from rlx.plan import resolve
from rlx.preflight import _load, estimate_memory, memory_text, with_passes
from rlx.registry import Registry
from rlx.spec import EngineSpec

from ..engine.ranks import run_ranks

SMALL = Shape(134_515_008, 30, 576, 1536, 49_152, 9, 3, 64)
"""SmolLM2-135M."""
LARGE = Shape(7_615_616_512, 28, 3584, 18_944, 152_064, 28, 4, 128, tied=False)
"""Qwen2.5-7B."""
HALF = Shape(494_032_768, 24, 896, 4864, 151_936, 14, 2, 64)
"""Qwen2.5-0.5B."""
CHECKPOINTED = EngineSpec(activation_checkpointing=True)
TINY = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 6, "num_attention_heads": 8,
        "num_key_value_heads": 2, "vocab_size": 3072, "max_position_embeddings": 1024, "tie_word_embeddings": True,
        "bos_token_id": None, "eos_token_id": None}
LONG = {"micro_tokens": 2048}
"""Nearly all is activations."""
SHORT = {"micro_tokens": 64, "micro_batch": 1}
"""Nearly all is weights."""


def tiny_model(folder: Path) -> str:
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**TINY)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(Path(rlx.__file__).parent / "quickstart/rlx-tiny").save_pretrained(folder)
    return str(folder)


def case(name: str, train: dict[str, Any], **engine: Any) -> Any:
    fast = name == "sft" and train is SHORT and engine == {"zero_stage": 1, "dtype": "float32"}
    label = "-".join([name, "short" if train is SHORT else "long", *(str(value) for value in engine.values())])
    return pytest.param(name, train, engine, id=label, marks=() if fast else pytest.mark.full)


@pytest.mark.parametrize(("name", "train", "engine"), [
    *(case("sft", train, zero_stage=stage, dtype=dtype) for train in (LONG, SHORT) for stage in (1, 2, 3)
      for dtype in ("bfloat16", "float32") if train is SHORT or stage == 1),
    case("sft", LONG),
    case("sft recomputed", LONG), case("sft float32 recomputed", LONG),
    case("dpo", LONG), case("dpo", LONG, dtype="float32"), case("reward_model", LONG), case("ppo", LONG),
    case("sft lora", LONG), case("sft packed", {"micro_tokens": 1024}),
])
def test_the_estimate_is_what_is_alive_in_a_small_run(tmp_path, monkeypatch, name, train, engine):
    """Float32 without a mask takes torch's own attention, as on a GPU; of the logits little is there at once."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from benchmarks.memory import compare, spec_of

    monkeypatch.setattr("rlx.models.logprobs.CHUNK_ELEMENTS", {"cpu": 1 << 16})
    monkeypatch.setattr("rlx.memory.LOGITS", 1 << 16)
    spec = spec_of(name, tiny_model(tmp_path / "model"), tmp_path, 16, 6 if train is SHORT else 60, 0, 2)
    spec["train"] |= train
    spec["engine"] |= engine
    plain = spec["engine"]["dtype"] == "float32" and name != "dpo"
    with sdpa_kernel(SDPBackend.MATH if plain else SDPBackend.FLASH_ATTENTION):
        found = compare(spec, 2)
    assert 0.93 < found["ratio"] < 1.15, found


@pytest.mark.full
@pytest.mark.parametrize("stage", [1, 2])
def test_gradients_stay_on_the_gpu_when_the_optimizer_is_on_the_cpu(tmp_path, monkeypatch, stage):
    """In bfloat16. What DeepSpeed then has in the CPU's memory is not counted: masters, moments, gradients in float32,
    working weights, and the gradient of the largest weight in float32.
    """
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from benchmarks.memory import compare, spec_of

    monkeypatch.setattr("rlx.models.logprobs.CHUNK_ELEMENTS", {"cpu": 1 << 16})
    monkeypatch.setattr("rlx.memory.LOGITS", 1 << 16)
    spec = spec_of("sft", tiny_model(tmp_path / "model"), tmp_path, 16, 6, 0, 2)
    spec |= {"train": {**spec["train"], **SHORT},
             "engine": {"zero_stage": stage, "dtype": "bfloat16", "offload": "optimizer"}}
    shape = shape_of(tmp_path / "model")
    assert shape is not None
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found = compare(spec, 2)
    on_cpu = (18 * shape.weights + 4 * shape.head) / GIB
    assert 0.95 < found["estimate_gib"] / (found["peak_gib"] - on_cpu) < 1.35, found


OF_A_RANK = """
import json, sys
from torch.nn.attention import SDPBackend, sdpa_kernel
import rlx.memory, rlx.models.logprobs
from benchmarks.memory import compare

rlx.models.logprobs.CHUNK_ELEMENTS, rlx.memory.LOGITS = {"cpu": 1 << 16}, 1 << 16
spec = json.loads(sys.argv[1])
with sdpa_kernel(SDPBackend.MATH if spec["engine"]["dtype"] == "float32" else SDPBackend.FLASH_ATTENTION):
    print(json.dumps(compare(spec, 2)))
"""


@pytest.mark.full
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_estimate_is_what_is_alive_on_the_fuller_of_two_ranks(tmp_path, monkeypatch, stage, dtype):
    """Weights split and gathered, gradients reduced in buckets: nearly all is weights, and the head the largest.

    At stage 2 the rank to which the head's gradient belongs has more than the other; the estimate is of that one.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from benchmarks.memory import spec_of

    spec = spec_of("sft", tiny_model(tmp_path / "model"), tmp_path, 16, 6, 0, 2)
    spec |= {"train": {**spec["train"], **SHORT}, "engine": {"zero_stage": stage, "dtype": dtype}}
    said = "\n".join(run_ranks(2, "-c", OF_A_RANK, json.dumps(spec)))
    one, other = (json.loads(line) for line in said.splitlines() if line.startswith("{"))
    assert 0.9 < min(one["ratio"], other["ratio"]) < 1.2, (one, other)


@pytest.mark.parametrize(("train", "load"), [
    ({}, Load(600, 200, 600)),  # three rows of the longest
    ({"packing": True}, Load(440, 440, 440, masked=True)),  # the three longest behind each other
    ({"packing": True, "micro_tokens": 300}, Load(300, 300, 300, masked=True)),
    ({"packing": True, "micro_tokens": 100}, Load(200, 200, 200, masked=True)),  # no row is split
])
def test_a_pass_is_of_the_longest_rows_and_packed_of_what_they_are(tmp_path, train, load):
    """A token has one character; each row ends in a stop token."""
    folder = Path(__file__).parents[1] / "cases"
    shutil.copytree(folder / "models/tiny", tmp_path / "model")
    shutil.copytree(folder / "tok/T00_base", tmp_path / "model", dirs_exist_ok=True)
    rows = [{"prompt": "p" * 50, "completion": "c" * (length - 51)} for length in (200, 140, 100, 60, 60)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    plan = resolve(Registry.discover(), {
        "algo": {"name": "sft"}, "model": {"path": str(tmp_path / "model")},
        "data": {"path": str(tmp_path / "rows.jsonl"), "cache": str(tmp_path)},
        "train": {"steps": 1, "batch_size": 3, "micro_tokens": 1000, **train}})
    assert _load(plan, read_inputs(plan).train, 1) == load


def ppo(shape: Shape) -> list[Role]:
    return [Role("policy", shape, shape.weights), Role("critic", shape, shape.weights, head=False),
            Role("reference", shape, 0)]


@pytest.mark.parametrize(("roles", "engine", "load", "measured"), [
    pytest.param(ppo(SMALL), EngineSpec(), Load(32 * 103, 103, 32 * 64, False, 32 * 103, 32), 8.9, id="PPO"),
    pytest.param(ppo(HALF), EngineSpec(compile=True), Load(104 * 315, 315, 104 * 256, False, 128 * 315, 128), 54.6,
                 id="0.5B, PPO, compiled"),
    pytest.param([Role("policy", LARGE, lora_weights(LARGE, 16))], CHECKPOINTED, Load(16_384, 1_300, 16_384), 23.6,
                 id="7B, LoRA"),
    pytest.param([Role("policy", LARGE, LARGE.weights)], EngineSpec(activation_checkpointing=True, zero_stage=3),
                 Load(4_800, 700, 4_800), 134.9, id="7B, all weights, ZeRO 3"),
])
def test_estimates_are_within_15_percent_of_measured_peaks(monkeypatch, roles, engine, load, measured):
    monkeypatch.setattr("rlx.memory.LOGITS", 1 << 24)  # as it was when these were measured
    found = estimate(roles, engine, True, 1, load)
    assert found.peak / GIB == pytest.approx(measured, rel=0.15), {k: v / GIB for k, v in found.parts.items()}


def test_what_did_not_fit_is_estimated_not_to_fit():
    """All weights of 7B at ZeRO-1 on one GPU of 140 GiB."""
    found = estimate([Role("policy", LARGE, LARGE.weights)], CHECKPOINTED, True, 1, Load(4_800, 700, 4_800))
    assert found.peak > 141 * GIB


@pytest.mark.parametrize(("stage", "divided"), [(1, 12), (2, 16), (3, 18)])
def test_ranks_divide_what_a_stage_splits(stage, divided):
    """Bytes of each trained weight, but for weights that stage 3 gathers for a while."""
    one, eight = (estimate([Role("policy", SMALL, SMALL.weights)], EngineSpec(zero_stage=stage), True, ranks,
                           Load(1000, 1000, 1000)) for ranks in (1, 8))
    gathered = 2 * SMALL.weights if stage == 3 else 0
    assert one.peak - eight.peak + gathered == pytest.approx(divided * SMALL.weights * 7 / 8, rel=0.03)


def test_a_critic_has_no_logits():
    policy, critic = (estimate([Role(name, LARGE, LARGE.weights, head)], EngineSpec(), True, 1, Load(1000, 1000, 1000))
                      for name, head in (("policy", True), ("critic", False)))
    assert policy.parts["weights"] - critic.parts["weights"] == 2 * LARGE.head
    assert policy.parts["activations"] > critic.parts["activations"]


def test_attention_that_keeps_its_scores_grows_with_the_length_of_rows():
    def kept(half: bool, masked: bool = False) -> float:
        short, long = (estimate([Role("policy", SMALL, SMALL.weights)], EngineSpec(), half, 1,
                                Load(16_384, row, 16_384, masked)).parts["activations"] for row in (500, 1000))
        return (long - short) / (16_384 * SMALL.layers)

    assert kept(half=True) == 0
    assert kept(half=True, masked=True) == 500 * 2
    assert kept(half=False) == 500 * 4 * SMALL.heads


def test_the_kv_cache_can_be_the_most():
    found = estimate([Role("policy", SMALL, SMALL.weights)], EngineSpec(), True, 1,
                     Load(1000, 1000, 1000, sampled=1_000_000, sampled_rows=1000))
    assert found.phase == "rollouts"
    assert found.parts["KV cache"] == 2 * 30 * 192 * 2 * 1_000_000 + 24 * 49_152 * 1000


def test_what_waits_on_the_cpu_leaves_its_memory_to_the_sampler():
    """Masters and moments, 12 bytes a weight, and at stage 1 in bfloat16 a float32 gradient."""
    roles, load = [Role("policy", HALF, HALF.weights)], Load(100, 100, 50, sampled=2**23, sampled_rows=64)
    plain, away = (estimate(roles, EngineSpec(offload_while_sampling=w), True, 1, load) for w in (False, True))
    assert plain.phase == away.phase == "rollouts"
    assert plain.peak - away.peak == pytest.approx(16 * HALF.weights)
    assert away.peak == pytest.approx(2 * HALF.weights + away.parts["KV cache"])


def test_while_a_role_learns_the_others_wait_on_the_cpu():
    """The largest with what is its own decides: one of many weights, or one that needs much for activations."""
    waits, load = EngineSpec(offload_while_sampling=True), Load(1000, 100, 1000)
    plain, away = (estimate(ppo(HALF), engine, True, 1, load) for engine in (EngineSpec(), waits))
    assert plain.phase == away.phase == "the update of the policy"
    assert plain.peak - away.peak == pytest.approx(16 * HALF.weights), "those of the critic"
    assert away.parts["optimizer"] == 12 * HALF.weights == plain.parts["optimizer"] / 2
    assert away.peak == pytest.approx(sum(away.parts.values()) - away.parts["KV cache"])

    roles = [Role("policy", HALF, HALF.weights), Role("critic", LARGE, 2 * HALF.weights, head=False)]
    few = estimate(roles, waits, True, 1, Load(100, 100, 100))
    assert few.phase == "the update of the critic"
    assert few.parts["optimizer"] == 12 * 2 * HALF.weights
    roles = [Role("policy", LARGE, HALF.weights), Role("critic", HALF, 2 * HALF.weights, head=False)]
    assert estimate(roles, waits, True, 1, Load(100_000, 100, 100_000)).phase == "the update of the policy"


def test_stage_3_keeps_its_gradients_where_they_are():
    sampled = Load(100, 100, 50, sampled=2**24, sampled_rows=64)
    plain, away = (estimate(ppo(HALF), EngineSpec(zero_stage=3, offload_while_sampling=w), True, 1, sampled)
                   for w in (False, True))
    assert away.phase == "rollouts"
    assert plain.peak - away.peak == pytest.approx(12 * 2 * HALF.weights)


def test_shape_and_checkpoint_of_the_bundled_model(tmp_path):
    folder = Path(rlx.__file__).parent / "quickstart" / "rlx-tiny"
    shape = shape_of(folder)
    assert shape is not None
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert shape.weights == sum(file.get_tensor(name).numel() for name in file.keys())
    assert checkpoint_bytes([Role("policy", shape, shape.weights)], False) == 16 * shape.weights
    assert shape_of(tmp_path) is None


def test_files_that_are_not_weights_are_not_read(tmp_path):
    config = Path(rlx.__file__).parent / "quickstart" / "rlx-tiny" / "config.json"
    (tmp_path / "config.json").write_text(config.read_text())
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    assert shape_of(tmp_path) is None


def test_passes_are_the_largest_that_leave_half_of_a_gpu_free(tmp_path, monkeypatch):
    model, data = tiny_model(tmp_path / "model"), tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"prompt": "say it", "completion": "hello " * 40}) + "\n")

    def plan(**train):
        return resolve(Registry.discover(), {
            "algo": {"name": "sft"}, "model": {"path": model}, "run": {"dir": str(tmp_path)},
            "data": {"path": str(data), "cache": str(tmp_path), "eval": 0},
            "train": {"steps": 1, "batch_size": 4096, **train}})

    inputs = read_inputs(plan())
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    needed = {tokens: estimate_memory(plan(micro_tokens=tokens), inputs, 1).peak for tokens in (16_384, 32_768)}
    assert needed[16_384] < needed[32_768]
    for there, chosen in ((2.01 * needed[32_768], 32_768), (1.99 * needed[32_768], 16_384),
                          (2.01 * needed[16_384], 16_384), (1.99 * needed[16_384], None)):
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda i, n=there: SimpleNamespace(total_memory=n))
        assert with_passes(plan(), inputs, 1).spec.train.micro_tokens == chosen
        assert with_passes(plan(micro_tokens=7), inputs, 1).spec.train.micro_tokens == 7
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert with_passes(plan(), inputs, 1).spec.train.micro_tokens is None


PARK = "engine.offload_while_sampling = true"


@pytest.mark.parametrize(("algo", "given", "rollouts", "held"), [
    ("ppo", {}, True, True), ("grpo", {}, True, False), ("sft", {}, False, False),
    ("ppo", {"engine__offload_while_sampling": True}, False, False),
    ("ppo", {"engine__offload": "optimizer"}, False, False),
    ("ppo", {"rollout__name": "vllm_server", "rollout__ahead": True}, False, False)])
def test_too_little_memory_names_settings_that_help_there_and_are_not_refused(settings, plan, algo, given, rollouts,
                                                                             held):
    """What several roles hold for their updates is on the device one at a time; while sampling, nothing of it is."""
    tree = settings(algo, **given, **({} if algo == "sft" else {"rewards": [{"name": "polite_length"}]}))
    found = plan(tree)
    named = {phase: ways_to_save(found, phase) for phase in ("rollout", "sync", "prepare", "update/policy", "held")}
    assert [PARK in ways for ways in named.values()] == [rollouts, rollouts, False, held, held]
    for way in {way for ways in named.values() for way in ways if " = " in way and not way.startswith("train.")}:
        name, value, instead = re.fullmatch(r"(\S+) = (\S+)(?: or 3, on more GPUs| in place of (\S+))?", way).groups()
        changed = deepcopy(tree)
        assign(changed, name, yaml.safe_load(value))
        if instead:
            del changed["engine"][instead.removeprefix("engine.")]
        plan(changed)


@pytest.mark.parametrize(("held", "passes", "phase", "first"), [
    (2, 1, "the update of the policy", PARK), (0.5, 1, "the update of the policy", "train.micro_tokens, now 2048"),
    (0.5, 1, "rollouts", "rollout.options"), (0.5, 0.1, "rollouts", None)])
def test_what_is_held_between_passes_is_not_made_smaller_by_smaller_passes(settings, plan, monkeypatch, held,
                                                                           passes, phase, first):
    there = 8 * GIB
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=there))
    found = Estimate({"weights": held * there, "activations": passes * there}, (held + passes) * there, phase)
    text, too_much = memory_text(found, plan(settings("ppo")), 1)
    assert too_much == (first is not None)
    assert (first is None) or f"too much. Change first: {first}" in text
