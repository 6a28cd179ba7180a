"""When kernels are fused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rlx import build
from rlx.models.logprobs import fused
from rlx_sdk import InputError

LONG = 10**9
"""Weights with which any run is worth it."""


def fuses(device="cuda:0", compile=None, stage=1, weights=LONG, steps=1000):
    train, engine = SimpleNamespace(batch_size=32), SimpleNamespace(compile=compile, zero_stage=stage)
    plan = SimpleNamespace(spec=SimpleNamespace(engine=engine, train=train), rollout=None)
    inputs = SimpleNamespace(total_steps=steps, train=SimpleNamespace(mean_tokens=100.0))
    return build._fuses(plan, inputs, weights, device)


def test_by_itself_for_long_runs_on_a_gpu_only(monkeypatch):
    monkeypatch.setenv("CC", "cc")
    assert fuses()
    for other in ({"device": "cpu"}, {"stage": 3}, {"steps": 1, "weights": 10**6}, {"compile": False}):
        assert not fuses(**other), other
    assert fuses(device="cpu", compile=True, steps=1)


def test_without_a_compiler_only_when_nobody_asked(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert not fuses()
    with pytest.raises(InputError, match=r"engine\.compile needs a C compiler"):
        fuses(compile=True)


def test_errors_of_compiling_are_passed_over_here_and_nowhere_else(monkeypatch):
    seen, chosen = [], {}

    def compiler(function, dynamic, options):
        chosen.update(options)

        def compiled(*args):
            seen.append(torch._dynamo.config.suppress_errors)
            return function(*args)

        return compiled

    monkeypatch.setattr("torch.compile", compiler)
    assert fused(max)(3, 4) == 4
    assert chosen == {"triton.mix_order_reduction": False}, "else it compiles anew by the number of tokens"
    assert (seen, torch._dynamo.config.suppress_errors) == ([True], False)
