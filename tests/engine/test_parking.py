"""`engine.offload_while_sampling`: what only updates need is away while the policy samples; nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rlx.engine import Engine
from rlx.faults import ways_to_save
from rlx.parking import only_for_updates
from rlx.spec import EngineSpec
from rlx_plugins.hf_rollout import HFRollout
from rlx_plugins.options import HFOptions
from rlx_sdk import RolloutContext, Sample, SpecError

from ..e2e.conftest import metrics_of, train  # noqa: F401 - a fixture

SHORT: dict[str, Any] = {"rollout": {"max_completion": 6}, "data": {"eval": 2}, "train": {"steps": 2, "batch_size": 4},
                         "run": {"save_every": 1, "eval_every": 1}}
HELD = {("float32", 1): 12, ("bfloat16", 1): 16, ("bfloat16", 2): 12, ("float32", 3): 12, ("bfloat16", 3): 12}
"""Bytes a trained weight that are away: master and two moments; at stage 1 in bfloat16 the gradient too."""


@pytest.mark.parametrize(("dtype", "stage"), [
    ("float32", 3), *(pytest.param(*way, marks=pytest.mark.full) for way in
                      (("float32", 1), ("bfloat16", 1), ("bfloat16", 2), ("bfloat16", 3)))])
def test_a_run_is_the_same_bit_for_bit_and_the_memory_is_given_back(train, monkeypatch, dtype, stage):  # noqa: F811
    engines: list[Engine] = []
    plain = Engine.__init__

    def make(engine: Engine, *args: Any, **options: Any) -> None:
        plain(engine, *args, **options)
        engines.append(engine)

    monkeypatch.setattr(Engine, "__init__", make)
    told: list[bool] = []
    backend = HFRollout.__init__

    def sampler(self: HFRollout, options: HFOptions, context: RolloutContext) -> None:
        told.append(context.makes_room)
        backend(self, options, context)

    monkeypatch.setattr(HFRollout, "__init__", sampler)
    seen: list[tuple[int, int]] = []

    def reward(samples: Sequence[Sample]) -> list[float]:
        for engine in engines:
            sizes = [x.untyped_storage().nbytes() for x in only_for_updates(engine._deepspeed.optimizer, engine.module)]
            seen.append((sum(sizes), sum(len(kept) for _, kept in engine._parking._waiting)))
        return [len(sample.completion) / 9 for sample in samples]

    found = []
    for away in (False, True):
        engines.clear()
        seen.clear()
        found.append(train("ppo", reward=reward, **SHORT,
                           engine={"dtype": dtype, "zero_stage": stage, "offload_while_sampling": away}))
        last = seen[-2:]
        assert len(last) == len(engines) == 2
        weights = [sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters()) for engine in engines]
        for (there, waiting), number in zip(last, weights, strict=True):
            held = HELD[dtype, stage] * number
            assert (there, waiting) == (0, pytest.approx(held, rel=0.02)) if away else there >= held and not waiting
    assert told == [False, True], "a backend that takes what is free must know"
    one, two = found
    assert metrics_of(one.run) == metrics_of(two.run)
    files = sorted(file.relative_to(one.checkpoint) for file in one.checkpoint.rglob("*.safetensors"))
    assert len(files) >= 3
    for file in files:
        assert (one.checkpoint / file).read_bytes() == (two.checkpoint / file).read_bytes(), file


@pytest.mark.parametrize(("algo", "engine", "why"), [
    ("sft", {}, "sft samples nothing here"),
    ("ppo", {"offload": "optimizer"}, "engine.offload keeps them there always")])
def test_it_is_refused_where_it_can_do_nothing(train, algo, engine, why):  # noqa: F811
    with pytest.raises(SpecError, match=rf"engine\.offload_while_sampling can have no effect: {why}"):
        train(algo, engine={"offload_while_sampling": True, **engine}, train={"steps": 1})


@pytest.mark.parametrize(("engine", "named"), [
    (EngineSpec(), True), (EngineSpec(offload_while_sampling=True), False), (EngineSpec(offload="optimizer"), False)])
def test_too_little_memory_to_sample_names_it(engine, named):
    spec = SimpleNamespace(engine=engine, rewards=["any"])
    assert ("engine.offload_while_sampling = true" in ways_to_save(spec, "rollout")) == named
