"""`engine.offload_while_sampling`: what only updates need is there for the role that learns; nothing else changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from rlx.engine import Engine
from rlx.logs import library_log
from rlx.parking import Parking, only_for_updates
from rlx.ranks import start_distributed
from rlx.spec import EngineSpec
from rlx_plugins.hf_rollout import HFRollout
from rlx_plugins.options import HFOptions
from rlx_sdk import RolloutContext, Sample, SpecError

from ..e2e.conftest import metrics_of, train  # noqa: F401 - a fixture
from .test_engine import OPTIM, Net, data

SHORT: dict[str, Any] = {"rollout": {"max_completion": 6}, "data": {"eval": 2},
                         "train": {"steps": 2, "batch_size": 4, "minibatches": 2, "update_epochs": 2},
                         "run": {"save_every": 1, "eval_every": 1}}
KEPT = 12
"""Bytes a trained weight that wait on the CPU: master and two moments."""
DROPPED = {("bfloat16", 1): 4}
"""Bytes a trained weight that are made again as zeros: at stage 1 in bfloat16 the gradient."""


def there(engine: Engine) -> int:
    return sum(x.untyped_storage().nbytes() for x in only_for_updates(engine._deepspeed.optimizer, engine.module))


def waiting(engine: Engine) -> tuple[int, int]:
    """Bytes that are kept, and that will be zeros."""
    kept = [(len(held), copy is not None) for held, copy in engine._parking._waiting]
    return sum(size for size, copied in kept if copied), sum(size for size, copied in kept if not copied)


@pytest.mark.parametrize(("dtype", "stage"), [
    ("float32", 3), *(pytest.param(*way, marks=pytest.mark.full) for way in
                      (("float32", 1), ("bfloat16", 1), ("bfloat16", 2), ("bfloat16", 3)))])
def test_a_run_is_the_same_bit_for_bit_and_the_memory_is_given_back(train, monkeypatch, dtype, stage):  # noqa: F811
    engines: list[Engine] = []
    plain = Engine.__init__

    def make(engine: Engine, *args: Any, **options: Any) -> None:
        plain(engine, *args, **options)
        engines.append(engine)

    monkeypatch.setattr("rlx.parking.CHUNK", 1000)  # less than most tensors
    monkeypatch.setattr(Engine, "__init__", make)
    told: list[tuple[bool, tuple[int, int] | None, int | None]] = []
    backend = HFRollout.__init__

    def sampler(self: HFRollout, options: HFOptions, context: RolloutContext) -> None:
        told.append((context.makes_room, context.at_once, context.spare))
        backend(self, options, context)

    monkeypatch.setattr(HFRollout, "__init__", sampler)
    seen: list[tuple[int, tuple[int, int]]] = []

    def reward(samples: Sequence[Sample]) -> list[float]:
        seen.extend((there(engine), waiting(engine)) for engine in engines)
        return [len(sample.completion) / 9 for sample in samples]

    learning: list[set[int]] = []
    backward = Engine.backward

    def learn(self: Engine, loss: Tensor) -> None:
        backward(self, loss)
        learning.append({i for i, engine in enumerate(engines) if there(engine)})

    monkeypatch.setattr(Engine, "backward", learn)
    found = []
    for away in (False, True):
        engines.clear()
        seen.clear()
        learning.clear()
        found.append(train("ppo", reward=reward, **SHORT,
                           engine={"dtype": dtype, "zero_stage": stage, "offload_while_sampling": away}))
        last = seen[-2:]
        assert len(last) == len(engines) == 2
        weights = [sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters()) for engine in engines]
        dropped = DROPPED.get((dtype, stage), 0)
        for (held, (kept, zeros)), number in zip(last, weights, strict=True):
            if away:
                assert (held, kept, zeros) == (0, *(pytest.approx(n * number, rel=0.02) for n in (KEPT, dropped)))
            else:
                assert held >= (KEPT + dropped) * number
                assert kept + zeros == 0
        assert {*map(frozenset, learning)} == {*map(frozenset, ({0}, {1}) if away else ({0, 1},))}
    at_once = (4, 61 + 6)  # rows of a step, and tokens of the longest with what is sampled
    assert told == [(away, at_once, None) for away in (False, True)], "a backend that takes what is free must know"
    one, two = found
    assert metrics_of(one.run) == metrics_of(two.run)
    files = sorted(file.relative_to(one.checkpoint) for file in one.checkpoint.rglob("*.safetensors"))
    assert len(files) >= 3
    for file in files:
        assert (one.checkpoint / file).read_bytes() == (two.checkpoint / file).read_bytes(), file


class Half(Net):
    def example(self, device: torch.device) -> tuple[torch.Tensor]:
        return (super().example(device)[0].bfloat16(),)


def backward(engine: Engine, step: int, part: slice, scale: float = 1.0) -> None:
    x, y = data(step)
    engine.backward(((engine(x[part].bfloat16()) - y[part]) ** 2).sum() * scale)


@pytest.fixture(scope="module")
def engines() -> tuple[Engine, Engine]:
    """One without the setting and one with it, in bfloat16."""
    with library_log(None):
        start_distributed()
        plain, away = (Engine(Half(), OPTIM, 10, torch.bfloat16, EngineSpec(offload_while_sampling=waits))
                       for waits in (False, True))
    return plain, away


def test_gradients_between_updates_are_zeros_that_need_no_copy_and_others_are_kept(engines):
    """Also after an update that was skipped, and one whose gradients were forgotten."""
    [size] = {x.numel() for x in engines[1]._deepspeed.optimizer.fp32_groups_gradients_flat}
    assert (there(engines[1]), waiting(engines[1])) == (0, (4 * size, 4 * size)), "at first there are no moments"
    for step, hurt in enumerate(("", "skipped", "", "forgotten", "parked in between")):
        for engine in engines:
            backward(engine, step, slice(3), math.nan if hurt == "skipped" else 1)
            if hurt == "forgotten":
                engine.forget()
                backward(engine, step, slice(3))
            if hurt == "parked in between":
                engine.park()
            wait = waiting(engine)
            backward(engine, step, slice(3, 7))
            assert engine.step(step).skipped == (hurt == "skipped")
            engine.park()
        assert wait == ((16 * size, 0) if hurt == "parked in between" else (0, 0))
        assert (there(engines[1]), waiting(engines[1])) == (0, (12 * size, 4 * size)), hurt
    plain, away = (dict(engine.state()) for engine in engines)
    assert plain.keys() == away.keys()
    assert all(torch.equal(plain[name], away[name]) for name in plain)


def test_a_checkpoint_is_read_and_written_by_one_engine_at_a_time(engines):
    plain, away = engines
    backward(plain, 0, slice(7))
    plain.step(0)
    saved = dict(plain.state())
    away.load_state(saved, plain.updates)
    assert there(away) == 0
    found = dict(away.state())
    assert there(away) == 0
    assert all(torch.equal(found[name], saved[name]) for name in saved)


def test_what_finds_no_memory_waits_on(monkeypatch):
    """As after a pass that did not fit, which is made again in smaller ones."""
    tensors = [torch.arange(4.0), torch.zeros(3), torch.full((2,), -0.0)]
    parking, resize = Parking(), torch.UntypedStorage.resize_
    parking.park(tensors)

    def short(storage: torch.UntypedStorage, size: int) -> None:
        if size == 12:
            raise torch.OutOfMemoryError("made by a test")
        resize(storage, size)

    monkeypatch.setattr(torch.UntypedStorage, "resize_", short)
    with pytest.raises(torch.OutOfMemoryError):
        parking.fill()
    monkeypatch.undo()
    parking.fill()
    assert torch.equal(tensors[0], torch.arange(4.0))
    assert torch.equal(tensors[1], torch.zeros(3))
    assert tensors[2].signbit().all(), "what is kept is kept bit for bit"


@pytest.mark.parametrize(("algo", "engine", "why"), [
    ("sft", {}, "sft samples nothing here"),
    ("ppo", {"offload": "optimizer"}, "engine.offload keeps them there always")])
def test_it_is_refused_where_it_can_do_nothing(train, algo, engine, why):  # noqa: F811
    with pytest.raises(SpecError, match=rf"engine\.offload_while_sampling can have no effect: {why}"):
        train(algo, engine={"offload_while_sampling": True, **engine}, train={"steps": 1})
