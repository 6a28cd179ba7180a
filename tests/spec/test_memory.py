"""The memory estimate against peaks that were measured on one H200 (docs/engine.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

import rlx
from rlx.memory import GIB, Role, Shape, checkpoint_bytes, estimate, lora_weights, shape_of
from rlx.spec import EngineSpec

SMALL = Shape(134_515_008, 30, 576, 1536, 49_152, 192)
"""SmolLM2-135M."""
LARGE = Shape(7_615_616_512, 28, 3584, 18_944, 152_064, 512)
"""Qwen2.5-7B."""
CHECKPOINTED = EngineSpec(activation_checkpointing=True)


@pytest.mark.parametrize(("shape", "trained", "engine", "tokens", "measured"), [
    pytest.param(SMALL, SMALL.weights, EngineSpec(), 16_384, 18.9, id="dpo"),
    pytest.param(SMALL, SMALL.weights, EngineSpec(), 16_384, 20.9, id="sft"),
    pytest.param(LARGE, lora_weights(LARGE, 16), CHECKPOINTED, 16_384, 23.6, id="7B, LoRA"),
    pytest.param(LARGE, LARGE.weights, EngineSpec(activation_checkpointing=True, zero_stage=3), 4_800, 134.9,
                 id="7B, all weights, ZeRO 3"),
])
def test_estimates_are_within_15_percent_of_measured_peaks(shape, trained, engine, tokens, measured):
    found = estimate([Role("policy", shape, trained)], engine, True, 1, tokens)
    assert found.peak / GIB == pytest.approx(measured, rel=0.15), {k: v / GIB for k, v in found.parts.items()}


def test_what_did_not_fit_is_estimated_not_to_fit():
    """All weights of 7B at ZeRO-1 on one GPU of 140 GiB."""
    assert estimate([Role("policy", LARGE, LARGE.weights)], CHECKPOINTED, True, 1, 4_800).peak > 141 * GIB


@pytest.mark.parametrize(("stage", "divided"), [(1, {"optimizer"}), (2, {"optimizer", "gradients"}),
                                                (3, {"optimizer", "gradients", "weights"})])
def test_ranks_divide_what_a_stage_splits(stage, divided):
    one, eight = (estimate([Role("policy", LARGE, LARGE.weights)], EngineSpec(zero_stage=stage), True, ranks, 1000)
                  for ranks in (1, 8))
    assert {part for part, size in one.parts.items() if size and eight.parts[part] == size / 8} == divided


def test_the_kv_cache_can_be_the_most():
    found = estimate([Role("policy", SMALL, SMALL.weights)], EngineSpec(), True, 1, 1000, sampled_tokens=1_000_000)
    assert found.phase == "rollouts"
    assert found.parts["KV cache"] == 2 * 30 * 192 * 2 * 1_000_000


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
