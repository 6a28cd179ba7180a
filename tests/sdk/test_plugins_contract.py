"""Every built-in algorithm and the hf backend pass the contract tests that strangers use; wrong ones are told why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import rlx
from rlx.registry import Registry
from rlx_sdk import (
    Algorithm,
    AlgorithmPlugin,
    Batch,
    Config,
    Generation,
    Loss,
    Needs,
    RolloutContext,
    RolloutPlugin,
)
from rlx_sdk.testing import check_algorithm, check_rollout

REGISTRY = Registry.discover()
ALGORITHMS = {entry.name: entry.plugin for entry in REGISTRY.entries("algorithm")}
TINY = Path(rlx.__file__).parent / "quickstart/rlx-tiny"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_keeps_the_contract(name):
    check_algorithm(ALGORITHMS[name])


class Good(Algorithm):
    """Likelihood of judged completions, weighted by their rewards."""

    def prepare(self, data, ctx):
        return Batch({"it": data.seqs}, {"policy": data.judged.float()}, {"reward": data.rewards})

    def loss(self, role, rows, ctx):
        return Loss(-(ctx.policy.logprobs(rows.sequences["it"]).sum(1) * rows.values["reward"]))


class DependsOnTheBatch(Good):
    def loss(self, role, rows, ctx):
        loss = super().loss(role, rows, ctx).rows
        return Loss(loss * len(loss))


class Remembers(Good):
    count = 0

    def prepare(self, data, ctx):
        self.count += 1
        return super().prepare(data, ctx)

    def state_dict(self):
        return {"count": self.count}


class Divides(Good):
    def loss(self, role, rows, ctx):
        seqs = rows.sequences["it"]
        return Loss(ctx.policy.logprobs(seqs).sum(1) / seqs.mask.sum(1))


class OneNumber(Good):
    def loss(self, role, rows, ctx):
        return Loss(super().loss(role, rows, ctx).rows.mean())


class AsksTheCritic(Good):
    def prepare(self, data, ctx):
        ctx.critic.values(data.seqs)
        return super().prepare(data, ctx)


class Detached(Good):
    def loss(self, role, rows, ctx):
        return Loss(super().loss(role, rows, ctx).rows * 0)


class NoWeight(Good):
    def prepare(self, data, ctx):
        return replace(super().prepare(data, ctx), weight={})


class Forgets(Good):
    def state_dict(self):
        return {"it": id(self)}


def plugin(kind, needs=None):
    return AlgorithmPlugin(name="mine", summary="", config=lambda: Config, build=lambda options: kind(),
                           needs=lambda options, rewards: needs or Needs(
                               data="rollouts", trains=frozenset({"policy"}), rewards=True))


@pytest.mark.parametrize(("made", "said"), [
    (plugin(DependsOnTheBatch), "results must not depend on micro-batches"), (plugin(Remembers), "changed its state"),
    (plugin(Divides), "every loss must be finite"), (plugin(OneNumber), "one number for each of the"),
    (plugin(AsksTheCritic), "it asked for context.critic, which its needs do not name"),
    (plugin(Detached), "has no gradient for the policy"), (plugin(NoWeight), "the batch's weight of 'policy' is None"),
    (plugin(Forgets), "after it was loaded into a new one"), (plugin(object), "a subclass of rlx_sdk.Algorithm is "
                                                                              "wanted"),
    (plugin(Good, Needs(data="rollouts", trains=frozenset())), "name at least one role to train"),
    (plugin(Good, Needs(data="pairs", trains=frozenset({"policy"}), rewards=True)), "only rollouts have rewards"),
    (plugin(Good, Needs(data="rollouts", trains=frozenset({"policy"}), row_per_prompt=True)), "set row_per_prompt in"),
    ("mine", "Give it the AlgorithmPlugin"),
])
def test_what_an_algorithm_does_wrong_is_said(made, said):
    with pytest.raises(AssertionError) as error:
        check_algorithm(made)
    assert said in str(error.value)


def test_the_smallest_algorithm_passes():
    check_algorithm(plugin(Good))


@pytest.fixture(scope="module")
def tiny():
    """The bundled model, what a backend is built from, and three prompts."""
    model = AutoModelForCausalLM.from_pretrained(TINY)
    stops = model.generation_config.eos_token_id
    context = RolloutContext(model, str(TINY), tuple(stops) if isinstance(stops, list) else (stops,), 0, "cpu",
                             "float32", 128)
    return context, model.named_parameters, [[5, 6, 7], [8, 9], [10, 11, 12, 13]]


def test_the_hf_backend_keeps_the_contract(tiny):
    check_rollout(REGISTRY.get("rollout", "hf").plugin, *tiny)


class Fixed:
    """Writes the token 20 as often as it may, or does it wrong."""

    exact, version = True, -1

    def __init__(self, wrong):
        self.wrong = wrong

    def sync(self, weights, version):
        self.version = 0 if self.wrong == "version" else version
        return None

    def generate(self, requests):
        for i, request in enumerate(requests):
            n = request.sampling.max_tokens
            noise = torch.rand(1) if self.wrong == "global" else torch.tensor(request.seed)
            token = 20 + int(noise * 1000) % 7 if self.wrong != "seed" else 20
            one = Generation([token] * n, [-1.0] * (n - (self.wrong == "logprobs")),
                             "stop" if self.wrong == "reason" else "length", self.version)
            yield (0 if self.wrong == "index" else i), [one] * (request.n + (self.wrong == "n"))

    def release(self):
        self.version = None  # as one that sleeps, and wakes with the next weights

    def close(self):
        pass


@pytest.mark.parametrize(("wrong", "said"), [
    ("version", "has version 0; the last sync was 1"), ("global", "it drew from torch's global generator"),
    ("seed", "draw by the request's seed"), ("logprobs", "one finite number ≤ 0 a token is wanted"),
    ("reason", "'length' is wanted"), ("index", "every index is wanted once"), ("n", "completions where n is 1"),
    (None, None)])
def test_what_a_backend_does_wrong_is_said(tiny, wrong, said):
    made = RolloutPlugin(name="mine", summary="", config=lambda: Config, build=lambda options, context: Fixed(wrong))
    if wrong is None:
        check_rollout(made, *tiny)
        return
    with pytest.raises(AssertionError) as error:
        check_rollout(made, *tiny)
    assert said in str(error.value)
