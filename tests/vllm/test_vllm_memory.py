"""What vLLM takes of a GPU beside training; all of it arithmetic, which needs neither."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config

from rlx_plugins.options import VLLMOptions
from rlx_plugins.vllm_memory import BESIDE, Memory, cache_bytes

GIB = 2**30
HALF_B = Qwen2Config(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2)


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (100 * GIB, 140 * GIB))


def memory(cache: float | None, spare: float | None, **options: float) -> Memory:
    return Memory(VLLMOptions(**options), 1 * GIB, 10 * GIB, None if cache is None else int(cache * GIB),
                  None if spare is None else int(spare * GIB))


@pytest.mark.parametrize(("given", "cache", "sleeps"), [
    (memory(2, 60), 2, False),
    (memory(2, 2 * (2 + 1 + BESIDE / GIB)), 2, False),  # half of what is left is just enough
    (memory(2, 2 * (2 + 1 + BESIDE / GIB) - 1), 2, True),
    (memory(2, None), 2, True),
    (memory(2, 0), 2, True),
    (memory(68, 200), 68, False),  # of 0.8 x (100 - 10) free
    (memory(69, 200), None, True),
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
        "vllm: a KV cache of 2.0 GiB, which holds all that a step samples and stays while the trainer updates",
        "vllm: a KV cache of 2.0 GiB, which holds all that a step samples",
        "vllm: takes 72.0 GiB while it samples; 100.0 of 140.0 GiB are free"]


@pytest.mark.parametrize(("rows", "tokens", "blocks"), [(1, 64, 3), (1, 65, 4), (256, 512, 256 * 9 + 1)])
def test_each_row_has_blocks_of_its_own(rows, tokens, blocks):
    assert cache_bytes(HALF_B, rows, tokens, torch.bfloat16) == blocks * 64 * 24 * 2 * 128 * 2
    assert cache_bytes(HALF_B, rows, tokens, torch.float32) == blocks * 64 * 24 * 2 * 128 * 4


def test_a_head_may_have_a_width_of_its_own():
    config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    assert cache_bytes(config, 1, 1, torch.float32) == 3 * 64 * 2 * 2 * 64 * 4
    del config.num_key_value_heads
    assert cache_bytes(config, 1, 1, torch.float32) is None
