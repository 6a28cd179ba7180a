"""``rollout.ahead``: a step's batch is sampled during the step before, with the weights of then."""

from __future__ import annotations

import json
import shutil
import threading
from copy import deepcopy
from dataclasses import replace

import pandas as pd
import pytest
import torch

from rlx.ahead import Ahead, Sampled
from rlx.checkpoint import read_state
from rlx.engine import Engine
from rlx.ranks import Ranks
from rlx.registry import Registry
from rlx.rewards import DRY_ROWS
from rlx_plugins.hf_rollout import HFRollout
from rlx_plugins.options import HFOptions
from rlx_sdk import Generation, RolloutPlugin, Sample, SpecError, TrainingError, hookimpl

from .conftest import metrics_of


class Twin:
    """Samples with weights of its own, as a server would."""

    exact = False

    def __init__(self, options, context):
        self._model, self._released = deepcopy(context.policy), False
        self._hf = HFRollout(HFOptions(), replace(context, policy=self._model))

    def generate(self, requests):
        assert not self._released
        if threading.current_thread() is not threading.main_thread():
            self.begin()
        return self._hf.generate(requests)

    def begin(self):
        pass

    def sync(self, weights, version):
        with torch.no_grad():
            for name, weight in weights:
                self._model.get_parameter(name).copy_(weight)
        self._released = False
        return self._hf.sync(iter(()), version)

    def release(self):
        self._released = True

    def close(self):
        pass


UPDATING = threading.Event()


class Overlaps(Twin):
    """A generation that begins only when an optimizer makes a step meanwhile."""

    def begin(self):
        UPDATING.clear()
        assert UPDATING.wait(60)


class Breaks(Twin):
    def begin(self):
        raise TrainingError("no server is left")


@pytest.fixture(autouse=True)
def backends(monkeypatch):
    class Backends:
        @hookimpl
        def rlx_rollouts(self):
            return [RolloutPlugin(name=made.__name__.lower(), summary="", config=lambda: HFOptions, build=made,
                                  concurrent=True) for made in (Twin, Overlaps, Breaks)]

    discover = Registry.discover

    def with_ours():
        found = discover()
        found.add(Backends(), "tests", "1")
        return found

    monkeypatch.setattr("rlx.api.Registry", type("", (), {"discover": staticmethod(with_ours)}))


async def letters(samples: list[Sample]) -> list[float]:
    SCORED.extend(samples)
    return [s.completion.count("e") / 10 for s in samples]


SCORED: list[Sample] = []


@pytest.fixture
def sampled(train):
    """A run of four steps, or fewer, whose weights move visibly."""
    def made(name, ahead=True, algo="grpo", backend="twin", lr=2e-3, reward="polite_length", eval=0, run=(),
             data=None, steps=4):
        where = {} if data is None else {"path": str(data)}
        return train(algo, reward=reward, run={"name": name, "sample_every": None, **dict(run)},
                     data={"eval": eval, **where},
                     rollout={"name": backend, "ahead": ahead, "max_completion": 12, "group_size": 4},
                     train={"batch_size": 4, "steps": steps, "optim": {"policy": {"lr": lr, "schedule": "constant"}}})
    return made


def completions(result, step):
    return list(pd.read_parquet(result.run / "samples" / f"step_{step:06}.parquet")["completion"])


def test_each_batch_but_the_first_is_of_the_weights_before(sampled):
    still, now, ahead = sampled("still", False, lr=0.0), sampled("now", False), sampled("ahead")
    assert [line["rollout/staleness"] for line in metrics_of(ahead.run)] == [0, 1, 1, 1]
    assert "rollout/staleness" not in metrics_of(now.run)[-1]
    assert completions(ahead, 1) == completions(now, 1)
    assert completions(ahead, 2) == completions(still, 2) != completions(now, 2)
    assert completions(ahead, 3) != completions(still, 3)


def test_the_trainer_updates_meanwhile(sampled, monkeypatch):
    step = Engine.step

    def told(engine, index):
        UPDATING.set()
        return step(engine, index)

    monkeypatch.setattr(Engine, "step", told)
    assert len(metrics_of(sampled("overlaps", backend="overlaps").run)) == 4


@pytest.mark.parametrize(("algo", "eval"), [("grpo", 4), ("dapo", 0)])
def test_resumed_equals_uninterrupted_bit_for_bit(sampled, algo, eval):
    """With the batch that was sampled ahead, whose weights are gone; its rewards are not lost by an evaluation."""
    run = {"eval_every": 1} if eval else {}
    SCORED.clear()
    straight = sampled("straight", algo=algo, reward=letters, eval=eval, run=run)
    assert len({id(sample) for sample in SCORED}) == len(SCORED)
    held_out = sum(len(pd.read_parquet(file)) for file in straight.run.glob("samples/eval_*.parquet"))
    trained = sum(len(pd.read_parquet(file)) for file in straight.run.glob("samples/step_*.parquet"))
    assert len(SCORED) == DRY_ROWS + held_out + trained
    lines = [line for line in map(json.loads, (straight.run / "metrics.jsonl").read_text().splitlines())
             if "time/step" in line]
    assert any("time/rollout" in line for line in lines[1:]) == (algo == "dapo")
    assert ["speed/generated_tokens_per_s" in line for line in lines] == [True, False, False, False]
    broken = straight.run.parent / "broken"
    shutil.copytree(straight.run, broken)
    shutil.rmtree(broken / "checkpoints" / "global_step_4")
    assert len(read_state(broken / "checkpoints" / "global_step_2")["source"]["ahead"]["batch"]) == 4
    assert read_state(straight.checkpoint)["source"]["ahead"]["batch"] == []

    resumed = sampled("broken", algo=algo, reward=letters, eval=eval, run={"resume": "auto", **run})

    assert metrics_of(resumed.run) == metrics_of(straight.run)
    for file in sorted(straight.checkpoint.rglob("*.safetensors")):
        assert file.read_bytes() == (resumed.checkpoint / file.relative_to(straight.checkpoint)).read_bytes(), file


def test_on_resume_with_other_data_the_batch_is_sampled_anew(sampled, tmp_path):
    """Its rows would be others; the position goes back to where it began."""
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Say {n}"}) + "\n" for n in range(40)))
    first = sampled("a", data=file, steps=2, lr=1e-4, run={"save_every": 1})
    shutil.rmtree(first.checkpoint)
    file.write_text("".join(json.dumps({"prompt": f"Tell me {n}"}) + "\n" for n in range(5)))
    resumed = sampled("a", data=file, steps=2, lr=1e-4, run={"resume": "auto", "resume_changed": True})
    samples = pd.read_parquet(resumed.run / "samples" / "step_000002.parquet")
    assert samples["prompt"].str.contains("Tell me").all()
    assert metrics_of(resumed.run)[-1]["rollout/staleness"] == 0
    assert read_state(resumed.checkpoint)["source"]["position"] == 8


def test_a_million_tokens_take_little_space_in_a_checkpoint():
    ahead = Ahead("")
    ahead.begin(lambda: Sampled([(0, 0)], [[(Generation([149_999] * 10_000, [-1 / 3] * 10_000, "stop", 1), None)]]))
    assert len(json.dumps(ahead.state_dict(Ranks()), indent=1)) < 11 * 10_000


def test_what_goes_wrong_there_ends_the_run(sampled):
    with pytest.raises(TrainingError, match="no server is left"):
        sampled("breaks", backend="breaks")


def test_a_backend_that_shares_the_trainer_s_weights_is_refused(sampled):
    with pytest.raises(SpecError, match=r"rollout.ahead: the rollout backend 'hf' cannot sample while the trainer "
                                        r"computes; use --rollout .*vllm_server"):
        sampled("hf", backend="hf")
