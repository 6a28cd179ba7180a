"""The same seed gives the same bits; on a GPU with engine.deterministic (`python -m benchmarks determinism`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rlx_sdk import Sample, TrainingError

from ..e2e.conftest import metrics_of, train  # noqa: F401 - a fixture

SHORT = {"train": {"steps": 2, "batch_size": 4, "minibatches": 2}, "run": {"save_every": 2}, "data": {"eval": 2}}
SAMPLED = {"reward": "polite_length", "rollout": {"max_completion": 8}}


def flags() -> dict[str, Any]:
    return {"algorithms": torch.are_deterministic_algorithms_enabled(),
            "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
            "cudnn attention": torch.backends.cuda.cudnn_sdp_enabled()}


LONG = [pytest.param(name, marks=pytest.mark.full) for name in ("ppo", "grpo", "dpo")]


@pytest.mark.parametrize("algo", ["sft", *LONG])
def test_the_same_seed_gives_the_same_bits(train, algo):  # noqa: F811
    one, two = (train(algo, **SHORT, **(SAMPLED if algo in ("ppo", "grpo") else {})) for _ in range(2))
    assert one.run != two.run
    assert metrics_of(one.run) == metrics_of(two.run)
    files = sorted(file.relative_to(one.checkpoint) for file in one.checkpoint.rglob("*.safetensors"))
    assert len(files) >= 2
    for file in files:
        assert (one.checkpoint / file).read_bytes() == (two.checkpoint / file).read_bytes(), file


def test_the_setting_sets_what_it_says_and_takes_it_back(train, monkeypatch):  # noqa: F811
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    seen, before = [], flags()

    def reward(samples: Sequence[Sample]) -> list[float]:
        seen.append((flags(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
        return [float(len(s.completion)) for s in samples]

    train("grpo", reward=reward, rollout={"max_completion": 4, "group_size": 2}, engine={"deterministic": True},
          train={"steps": 1, "batch_size": 2}, data={"eval": 0}, run={"sample_every": None})
    on = {"algorithms": True, "warn only": False, "cudnn": (True, False), "cudnn attention": False}
    assert seen == [(on, ":4096:8")] * 2, "in the dry run, and in the step"
    assert flags() == before != on


def test_an_operation_that_cannot_be_repeated_is_named(train, monkeypatch):  # noqa: F811
    def fails(*args: Any) -> None:
        torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]))

    monkeypatch.setattr("rlx_plugins.sft.SFT.loss", fails)
    with pytest.raises(TrainingError, match=r"engine.deterministic: put_.* does not have a deterministic implementation"
                                            r"(?s:.*)Leave the setting out"):
        train("sft", train={"steps": 1, "batch_size": 2}, data={"eval": 0}, engine={"deterministic": True})
