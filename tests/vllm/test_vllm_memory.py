"""What vLLM takes of a GPU beside training; all of it arithmetic, which needs neither."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma4TextConfig, GPT2Config, LlamaConfig, LlamaForCausalLM, Qwen2Config

from rlx_plugins.options import VLLMOptions
from rlx_plugins.vllm_memory import BESIDE, Memory, cache_bytes
from rlx_plugins.vllm_rollout import VLLMRollout
from rlx_sdk import RolloutContext

GIB = 2**30
HALF_B = Qwen2Config(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2)


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (100 * GIB, 140 * GIB))


def memory(cache: float | None, spare: float | None, **options: float) -> Memory:
    return Memory(VLLMOptions(**options), 1 * GIB, 10 * GIB, 256, None if cache is None else int(cache * GIB),
                  None if spare is None else int(spare * GIB))


@pytest.mark.parametrize(("given", "cache", "sleeps"), [
    (memory(2, 60), 2, False),
    (memory(2, 2 * (2 + 1 + BESIDE / GIB)), 2, False),  # half of what is left is just enough
    (memory(2, 2 * (2 + 1 + BESIDE / GIB) - 1), 2, True),
    (memory(2, None), 2, True),
    (memory(2, 0), 2, True),
    (memory(68, 0), 68, True),  # of 0.8 x (100 - 10) free
    (memory(69, 0), None, True),
    (memory(69, 73), 69, True),  # training leaves more
    (memory(69, 72), None, True),
    (memory(None, 200), None, True),
    (memory(2, 60, gpu_memory_utilization=0.3), None, True),
    (memory(2, 0, kv_cache_gib=5), 5, False)])
def test_a_cache_for_one_step_stays_where_training_leaves_room_for_it(given, cache, sleeps):
    settings, found = given.settings()
    assert (settings.get("kv_cache_memory_bytes"), found) == (cache and cache * GIB, sleeps)
    assert settings.get("enable_sleep_mode", False) == sleeps
    if cache is None:
        assert settings["gpu_memory_utilization"] == pytest.approx(given.options.gpu_memory_utilization or 72 / 140)


def test_what_it_takes_is_said(capsys):
    memory(2, 60).settings()
    memory(2, 0).settings()
    memory(None, None).settings()
    assert capsys.readouterr().err.splitlines() == [
        "vllm: a KV cache of 2.0 GiB, for all that is sampled at once; it stays while the trainer updates",
        "vllm: a KV cache of 2.0 GiB, for all that is sampled at once",
        "vllm: takes 72.0 GiB while it samples; 100.0 of 140.0 GiB are free"]


@pytest.mark.parametrize(("rows", "tokens", "blocks"), [(1, 64, 3), (1, 65, 4), (256, 512, 256 * 9 + 1)])
def test_each_row_has_blocks_of_its_own(rows, tokens, blocks):
    assert cache_bytes(HALF_B, rows, tokens, torch.bfloat16) == blocks * 64 * 24 * 2 * 128 * 2
    assert cache_bytes(HALF_B, rows, tokens, torch.float32) == blocks * 64 * 24 * 2 * 128 * 4


def test_a_head_may_have_a_width_of_its_own():
    config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    assert cache_bytes(config, 1, 1, torch.float32) == 3 * 64 * 2 * 2 * 64 * 4


@pytest.mark.parametrize("config", [
    LlamaConfig(kv_lora_rank=512), LlamaConfig(num_hidden_layers=2, layer_types=["linear_attention"] * 2),
    GPT2Config(), Gemma4TextConfig(num_hidden_layers=2, head_dim=16, global_head_dim=32)])
def test_of_other_kinds_of_layers_nothing_is_said(config):
    assert cache_bytes(config, 1, 1, torch.float32) is None


@pytest.mark.parametrize(("at_once", "rows", "length", "blocks"), [
    ((256, 512), 256, 512, 256 * 9 + 1), ((5000, 512), 1024, 512, 1024 * 9 + 1),  # more wait
    ((8, 4000), 8, 1024, 8 * 17 + 1), (None, None, 1024, None)])
def test_an_engine_is_made_for_what_a_run_samples_at_once(at_once, rows, length, blocks):
    policy = LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, vocab_size=64,
                                          num_attention_heads=4, num_key_value_heads=2))
    made = VLLMRollout(VLLMOptions(), RolloutContext(policy, "", (), 0, "cpu", "float32", 1024, at_once=at_once,
                                                     spare=7))
    assert (made._memory.rows, made._length, made._memory.spare) == (rows, length, 7)
    assert made._memory.cache == (blocks and blocks * 64 * 2 * 2 * 32 * 4)
