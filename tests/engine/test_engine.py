"""The engine against plain torch: same gradients, clipping, optimizer and schedule, whatever the micro-batches."""

from __future__ import annotations

import copy
import math
import os
import sys

import pytest
import torch

from rlx.engine import Engine, learning_rate
from rlx.logs import library_log
from rlx.ranks import _import_muon, start_distributed
from rlx.spec import EngineSpec, OptimSpec
from rlx_sdk import CheckpointError


class Net(torch.nn.Module):
    """An engine expects the trained weights under ``model``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))

    def example(self, device: torch.device) -> tuple[torch.Tensor]:
        return (torch.ones(1, 5, device=device),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(x).squeeze(-1)
        return out


def make_engine(optim: OptimSpec, total: int = 10, dtype: torch.dtype = torch.float32,
                spec: EngineSpec | None = None) -> Engine:
    with library_log(None):
        start_distributed()
        return Engine(Net(), optim, total, dtype, spec)


def data(step: int, rows: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows, 5, generator=generator), torch.randn(rows, generator=generator)


def run(engine: Engine, steps: range, sizes: list[int], dtype: torch.dtype = torch.float32) -> None:
    for step in steps:
        x, y = (part.to(dtype) for part in data(step))
        for part in torch.arange(7).split(sizes):
            engine.backward(((engine(x[part]) - y[part]) ** 2).sum() / 7)
        engine.step(step)


OPTIM = OptimSpec(lr=0.05, grad_clip=0.1, weight_decay=0.01, schedule="cosine", warmup_steps=2)


def test_equals_plain_adamw_with_clipping_and_schedule():
    plain = Net()
    adamw = torch.optim.AdamW(plain.parameters(), lr=OPTIM.lr, betas=OPTIM.betas, eps=OPTIM.eps, weight_decay=0.01)
    for step in range(5):
        x, y = data(step)
        adamw.zero_grad()
        ((plain(x) - y) ** 2).mean().backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), OPTIM.grad_clip)
        for group in adamw.param_groups:
            group["lr"] = learning_rate(OPTIM, step, 10)
        adamw.step()

    engine = make_engine(OPTIM)
    run(engine, range(5), [7])

    for name, parameter in engine.module.model.named_parameters():
        assert torch.allclose(parameter, dict(plain.model.named_parameters())[name], atol=1e-5), name


@pytest.mark.parametrize("sizes", [[1] * 7, [3, 3, 1], [2, 5]])
def test_the_split_into_micro_batches_changes_nothing(sizes):
    whole, split = make_engine(OPTIM), make_engine(OPTIM)
    run(whole, range(4), [7])
    run(split, range(4), sizes)
    for a, b in zip(whole.module.parameters(), split.module.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("stage", "offload"), [(1, None), (1, "optimizer"), (2, None), (2, "optimizer")])
def test_a_bucket_smaller_than_a_weight_changes_nothing(monkeypatch, stage, offload, dtype):
    """As is the embedding of a large model."""
    weights = []
    for bucket in (1000, 10):
        monkeypatch.setattr("rlx.engine.BUCKET", bucket)
        engine = make_engine(OPTIM, 10, dtype, EngineSpec(zero_stage=stage, offload=offload))
        run(engine, range(3), [3, 4], dtype)
        weights.append({name: weight.detach().clone() for name, weight in engine.module.named_parameters()})
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name


def test_gradient_norm_is_that_before_clipping():
    engine, plain = make_engine(OPTIM), Net()
    x, y = data(0)
    loss = ((plain(x) - y) ** 2).mean()
    norm = torch.stack([g.norm() for g in torch.autograd.grad(loss, list(plain.parameters()))]).norm()
    engine.backward(((engine(x) - y) ** 2).mean())
    assert engine.step(0).grad_norm == pytest.approx(float(norm), rel=1e-5)
    assert norm > OPTIM.grad_clip, "clipping must act for this test to mean anything"


def test_a_gradient_that_is_not_finite_skips_the_update_and_the_next_one_works():
    engine = make_engine(OptimSpec(lr=0.05))
    before = copy.deepcopy(engine.module.state_dict())
    x, _ = data(0)
    engine.backward(engine(x).sum() * math.nan)
    assert engine.step(0).skipped
    assert all(torch.equal(before[k], v) for k, v in engine.module.state_dict().items())
    run(engine, range(1), [7])
    assert engine.updates == 1
    assert all(torch.isfinite(v).all() for v in engine.module.state_dict().values())


@pytest.mark.parametrize("done", [0, 3])
def test_state_goes_into_a_fresh_engine_and_continues_bit_for_bit(done):
    straight = make_engine(OPTIM)
    run(straight, range(done), [7])
    saved, updates = {k: v.clone() for k, v in straight.state()}, straight.updates
    run(straight, range(done, 6), [7])

    fresh = make_engine(OPTIM)
    run(fresh, range(40, 42), [7])  # another state to be overwritten
    fresh.load_state(saved, updates)
    assert all(torch.equal(saved[k], v) for k, v in fresh.state())
    run(fresh, range(done, 6), [7])

    for a, b in zip(straight.module.parameters(), fresh.module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_of_another_model_is_refused_by_weight():
    engine = make_engine(OPTIM)
    state = dict(engine.state())
    state["weight/0.weight"] = torch.zeros(3, 3)
    with pytest.raises(CheckpointError, match=r"shape \(3, 3\) for the weight '0.weight' of shape \(7, 5\)"):
        engine.load_state(state, 0)


@pytest.mark.parametrize("before", [None, "0"])
def test_deepspeeds_muon_does_not_bring_the_compiler(monkeypatch, before):
    """It would, imported as it is; what others have said of compiling stays."""
    compiler, muon = "torch._inductor.compile_fx", "deepspeed.runtime.zero.muon.original_muon"
    for name in (compiler, muon, "deepspeed.runtime.zero.muon.muon_optimizer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    if before is not None:
        monkeypatch.setenv("TORCHDYNAMO_DISABLE", before)
    _import_muon()
    assert compiler not in sys.modules
    assert sys.modules[muon].MuonWithAuxAdam
    assert os.environ.get("TORCHDYNAMO_DISABLE") == before


@pytest.mark.parametrize(("schedule", "expected"), [
    ("constant", [0.5, 1, 1, 1, 1, 1]),
    ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
    ("cosine", [0.5, 1, 1, 0.5 + 0.5 * math.cos(math.pi / 4), 0.5, 0.5 - 0.5 * math.cos(math.pi / 4)]),
])
def test_learning_rate(schedule, expected):
    optim = OptimSpec(lr=1.0, schedule=schedule, warmup_steps=2)
    assert [learning_rate(optim, update, 6) for update in range(6)] == pytest.approx(expected)
