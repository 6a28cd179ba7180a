"""Within a step: losses and gradients that are not finite, and memory that is not enough."""

from __future__ import annotations

import json
import math
from collections.abc import Container
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from rlx.engine import Engine
from rlx.trainer import Trainer
from rlx_plugins.sft import SFT
from rlx_sdk import Batch, Loss, TrainingError

from ..e2e.conftest import metrics_of
from ..engine.test_engine import OPTIM, data, make_engine

SHORT = {"batch_size": 8, "optim": {"policy": {"lr": 3e-4}}}


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("made by a test")


def train_steps(engine: Engine, faults: Container[int]) -> None:
    """Two micro-batches a step; in some steps the second backward pass raises midway, and all is made again."""
    engine.module.fails = False
    engine.module.model[1].register_full_backward_hook(lambda *_: out_of_memory() if engine.module.fails else None)
    for step in range(4):
        x, y = data(step)
        for attempt in range(2 if step in faults else 1):
            fails = step in faults and attempt == 0
            first = ((engine(x[:3]) - y[:3]) ** 2).sum() / 7
            engine.module.fails = False
            engine.backward(first)
            engine.module.fails = fails
            loss = ((engine(x[3:]) - y[3:]) ** 2).sum() / 7
            if fails:
                with pytest.raises(torch.OutOfMemoryError):
                    engine.backward(loss)
                engine.module.fails = False
                engine.forget()
            else:
                engine.backward(loss)
        engine.step(step)


@pytest.mark.fault("out of memory, repeated", tried=2)
def test_gradients_are_forgotten_after_a_backward_pass_that_raised_midway():
    straight, hurt = make_engine(OPTIM), make_engine(OPTIM)
    train_steps(straight, ())
    train_steps(hurt, (0, 2))
    assert hurt.updates == straight.updates == 4
    for (name, one), (_, other) in zip(straight.state(), hurt.state(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.fault("out of memory, repeated")
def test_out_of_memory_repeats_the_step_in_halves(train, monkeypatch, capsys):
    """A pass of more than 300 tokens does not fit: the run is that of a run with smaller passes from the start."""
    sizes: list[int] = []
    backward = Engine.backward

    def limited(self: Engine, loss: torch.Tensor) -> None:
        if sizes and sizes[-1] > 300:
            sizes.append(0)
            out_of_memory()
        backward(self, loss)

    losses = Trainer._losses

    def noted(self: Trainer, role: Any, batch: Any, made: Any, found: Any, seen: Any, prefix: str = "") -> Any:
        for weighted in losses(self, role, batch, made, found, seen, prefix):
            sizes.append(seen.current_tokens)
            yield weighted
            sizes.append(0)

    monkeypatch.setattr(Engine, "backward", limited)
    monkeypatch.setattr(Trainer, "_losses", noted)
    result = train("sft", train={**SHORT, "steps": 2}, data={"eval": 0})
    assert max(sizes) > 300
    sizes.clear()
    whole = metrics_of(result.run)
    more = {"run": {"dir": str(result.run.parent), "name": result.run.name, "resume": "auto"}, "data": {"eval": 0}}
    capsys.readouterr()
    train("sft", train={**SHORT, "steps": 3}, **more, quiet=False)
    said = capsys.readouterr().out
    assert ": larger passes did not fit before the checkpoint; --set train.micro_tokens=N tries another size" in said
    assert 0 < max(sizes) <= 300, "what did not fit is not tried again"
    monkeypatch.undo()
    train("sft", train={**SHORT, "steps": 4, "micro_tokens": 400}, **more, quiet=False)
    assert "did not fit" not in capsys.readouterr().out
    small = train("sft", train={**SHORT, "steps": 2, "micro_tokens": 300}, data={"eval": 0})
    for a, b in zip(whole, metrics_of(small.run), strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-5)


@pytest.mark.fault("out of memory elsewhere")
@pytest.mark.parametrize(("stage", "named"), [(2, "engine.activation_checkpointing"), (1, "train.micro_tokens")])
def test_out_of_memory_that_cannot_be_helped_names_what_to_change(train, monkeypatch, stage, named):
    monkeypatch.setattr(Engine, "backward", lambda self, loss: out_of_memory())
    with pytest.raises(TrainingError, match=rf"out of memory in update/policy \(made by a test\).*{named}"):
        train("sft", train={**SHORT, "steps": 2, "batch_size": 1, "minibatches": 1}, engine={"zero_stage": stage})


@pytest.mark.fault("a loss that is not finite")
def test_a_loss_that_is_not_finite_names_step_and_sample_and_the_run_goes_on(train, monkeypatch):
    """One row of step 2, whose loss is made so; its gradient is finite but for that."""
    spoilt: list[list[int]] = []
    loss = SFT.loss

    def poisoned(self: SFT, role: Any, rows: Batch, ctx: Any) -> Loss:
        found = loss(self, role, rows, ctx)
        if ctx.step == 1 and not spoilt and torch.is_grad_enabled():
            [seqs] = rows.sequences.values()
            spoilt.append(seqs.tokens[-1, : seqs.length[-1]].tolist())
            add = torch.zeros_like(found.rows)
            add[-1] = math.inf
            return replace(found, rows=found.rows + add)
        return found

    monkeypatch.setattr(SFT, "loss", poisoned)
    settings = {**SHORT, "steps": 3, "batch_size": 4, "minibatches": 1, "update_epochs": 1, "micro_batch": 2}
    result = train("sft", data={"eval": 0}, train=settings)
    lines = metrics_of(result.run)
    assert [line["skipped/policy"] for line in lines] == [0, 1, 0]
    [skipped] = [json.loads(line) for line in (result.run / "skipped.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(result.checkpoint / "actor")
    assert (skipped["step"], skipped["role"]) == (2, "policy")
    assert skipped["rows"] == [{"tokens": len(spoilt[0]), "text": tokenizer.decode(spoilt[0])}]
    assert all(math.isfinite(line["loss/policy"]) for line in (lines[0], lines[2]))


@pytest.mark.fault("gradients that are not finite, in every step")
def test_without_a_usable_update_the_run_ends_and_names_the_last_checkpoint(train):
    with pytest.raises(TrainingError, match=r"no update was possible in 2 steps in a row(?s:.*)'rlx resume .*step_2'"):
        train("sft", data={"eval": 0}, run={"save_every": 1}, train={
            **SHORT, "steps": 8, "max_skipped": 2, "batch_size": 2, "minibatches": 1,
            "optim": {"policy": {"lr": 1e30, "schedule": "constant", "warmup_steps": 0}}})
