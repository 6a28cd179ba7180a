"""The gradient of ``Σ weight·loss / Σ weight`` is the same however a batch is split into micro-batches."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlx.batching import micro_batches, row_lengths
from rlx.handles import Handle, RunContext
from rlx.models import CausalLM
from rlx.ops import AGGREGATIONS
from rlx.ranks import Ranks
from rlx_plugins.dpo import DPO, DPOConfig
from rlx_plugins.ppo import PPO, PPOConfig
from rlx_plugins.sft import SFT, SFTConfig
from rlx_sdk import Batch, Demonstrations, Pairs, Rollouts, Sequences

LENGTHS = [(3, 4), (1, 1), (6, 5), (2, 9), (1, 3), (5, 2)]
BUDGETS = [1, 24, 45]
CPU = torch.device("cpu")


@pytest.fixture
def data(sequences):
    """Each kind of data, with six rows of very different lengths."""
    seqs, other = sequences(LENGTHS), sequences([(p, 1 + c // 2) for p, c in LENGTHS], seed=1)
    rollout_logprobs = -3 * torch.rand(seqs.tokens.shape, generator=torch.Generator().manual_seed(2))
    rollouts = Rollouts(seqs.with_(rollout_logprobs=rollout_logprobs), torch.tensor([1.0, -1, 0.5, 3, 0, 2]),
                        torch.tensor([1, 1, 1, 0, 1, 1]).bool(), torch.tensor([0, 0, 1, 1, 2, 2]),
                        torch.zeros(6).bool())
    return {PPO: rollouts, DPO: Pairs(seqs, other, torch.arange(6)), SFT: Demonstrations(seqs, torch.arange(6))}


@pytest.fixture
def context(llama, scorer):
    """Makes the context of a run whose policy has moved away from its reference."""

    def make(seed=0, micro_tokens=10_000, exact=True):
        modules = {"policy": CausalLM(llama(seed)), "reference": CausalLM(llama(7)), "critic": scorer()}
        handles = {role: Handle(module, CPU, micro_tokens, 0.8) for role, module in modules.items()}
        return RunContext("test", handles, Ranks(), 0.8, False, exact, 10), modules

    return make


def gradients(algorithm, role, batch, ctx, module, parts):
    """As the trainer computes them: each part by itself, rows of weight 0 left out."""
    module.zero_grad()
    for rows in parts:
        part = batch[rows]
        loss, weight = algorithm.loss(role, part, ctx).rows, part.weight[role]
        (torch.where(weight > 0, loss, 0) * weight).sum().div(batch.weight[role].sum()).backward()
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters()}


def with_idle_rows(batch: Batch, masked: bool) -> Batch:
    """The batch with two more rows of weight 0 full of random numbers, with or without tokens under the mask."""

    def longer(seqs: Sequences) -> Sequences:
        width = seqs.tokens.shape[1]
        return Sequences(torch.cat([seqs.tokens, torch.randint(64, (2, width))]),
                         torch.cat([seqs.length, torch.tensor([1, width])]),
                         torch.cat([seqs.mask, torch.full((2, width), masked)]),
                         {name: torch.cat([x, torch.full((2, width), 1e3)]) for name, x in seqs.per_token.items()})

    zeros = torch.zeros(2)
    return Batch({name: longer(seqs) for name, seqs in batch.sequences.items()},
                 {role: torch.cat([weight, zeros]) for role, weight in batch.weight.items()},
                 {name: torch.cat([x, zeros]) for name, x in batch.values.items()})


def assert_same_gradients(found, expected):
    for name, gradient in found.items():
        assert expected[name].abs().max() > 0
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


ALGORITHMS = [
    *((PPO(PPOConfig(aggregation=mode)), "policy") for mode in AGGREGATIONS),
    (PPO(PPOConfig.model_validate({"entropy_coef": 0.1, "dual_clip": 3.0,
                                   "kl": {"coef": 0.2, "where": "loss", "estimator": "k3"}})), "policy"),
    (PPO(PPOConfig()), "critic"),
    (DPO(DPOConfig(label_smoothing=0.1)), "policy"),
    (SFT(SFTConfig()), "policy"),
]
NAMES = [*AGGREGATIONS, "kl-in-loss", "critic", "dpo", "sft"]


@pytest.mark.parametrize(("algorithm", "role"), ALGORITHMS, ids=NAMES)
def test_micro_batches_have_the_gradient_of_one_batch(data, context, algorithm, role):
    ctx, modules = context()
    with torch.no_grad():
        batch = algorithm.prepare(data[type(algorithm)], ctx)
    ctx, modules = context(seed=3)  # the policy moves; ratios are far from 1
    module, every = modules[role], torch.arange(len(batch))
    expected = gradients(algorithm, role, batch, ctx, module, [every])
    for made in (batch, with_idle_rows(batch, masked=False), with_idle_rows(batch, masked=True)):
        for budget in BUDGETS:
            parts = micro_batches(row_lengths(made), budget)
            assert len(parts) > 1
            assert_same_gradients(gradients(algorithm, role, made, ctx, module, parts), expected)


@settings(deadline=None, max_examples=10, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(5)), cuts=st.sets(st.integers(1, 4)))
def test_any_split_in_any_order_has_it_too(data, context, order, cuts):
    algorithm = PPO(PPOConfig())
    ctx, modules = context()
    with torch.no_grad():
        batch = algorithm.prepare(data[PPO], ctx)
    parts = torch.tensor(order).tensor_split(sorted(cuts))
    expected = gradients(algorithm, "policy", batch, ctx, modules["policy"], [torch.arange(5)])
    assert_same_gradients(gradients(algorithm, "policy", batch, ctx, modules["policy"], parts), expected)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("algorithm", [PPO(PPOConfig(importance={"max_logprob_diff": 100})), DPO(DPOConfig())],
                         ids=["ppo", "dpo"])
def test_what_is_prepared_does_not_depend_on_the_budget(data, context, algorithm, exact):
    found = []
    for budget in (10_000, *BUDGETS):
        ctx, _ = context(micro_tokens=budget, exact=exact)
        with torch.no_grad():
            found.append(algorithm.prepare(data[type(algorithm)], ctx))
    for batch in found[1:]:
        torch.testing.assert_close(dict(batch.values), dict(found[0].values), atol=1e-4, rtol=1e-4)
        for name, seqs in batch.sequences.items():
            torch.testing.assert_close(dict(seqs.per_token), dict(found[0].sequences[name].per_token), atol=1e-4,
                                       rtol=1e-4)
