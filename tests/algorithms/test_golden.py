"""Every algorithm through `prepare` and `loss` on numbers that were worked out in numpy from the papers' formulas.

The sampled ones judge four completions of one prompt, the others the pairs of a recorded case. A plugin without a
number here fails the last test.
"""

from functools import partial

import pytest
import torch

from rlx.registry import Registry
from rlx_sdk import Demonstrations, Labelled, Pairs, Rollouts, Sequences

numbers = partial(torch.tensor, dtype=torch.float64)
REGISTRY = Registry.discover()
OLD = [[-1.0, -2.0], [-0.5], [-1.5, -0.5, -1.0], [-2.0, -1.0]]
MOVED = [[0.5, -0.1], [-0.5], [0.1, 0.3, -0.4], [-0.3, 0.05]]
"""By how much the policy's logprobs have moved since."""
REFERENCE = [[-1.2, -1.5], [-0.7], [-1.4, -0.6, -1.3], [-1.8, -1.1]]
VALUES = [[0.1, 0.2], [0.3], [0.4, 0.5, 0.6], [0.7, 0.8]]
MOVED_VALUES = [[0.5, 0.2], [0.1], [0.4, 0.8, 0.7], [0.9, 0.5]]
SAMPLED = {
    "ppo": ({}, -0.002574255),
    "grpo": ({"kl": {"coef": 0.04}}, -0.010097162),
    "dr_grpo": ({}, 0.002470359),
    "rloo": ({"kl": {"coef": 0.1}}, 0.015292747),
    "reinforce++": ({}, 0.018609695),
    "dapo": ({"overlong_margin": 2}, 0.110428486),
    "gspo": ({"clip_low": 0.1, "clip_high": 0.1}, -0.017861072),
    "cispo": ({}, 0.205088535),
    "distill": ({}, 0.032344725),
}
"""Of rewards 1, 0, 0, 1; options, and what is minimised."""
GIVEN = {
    "dpo": ({}, [0.62095705, 0.79813887, 0.69314718, 0.62095705]),
    "simpo": ({}, [1.31326169, 1.31326169, 1.31326169, 0.70995273]),
    "orpo": ({}, [2.06931472, 2.06931472, 2.56931472, 2.46331687]),
    "kto": ({}, [0.48438008, 0.53432094, 0.48438008, 0.48438008, 0.47813895, 0.51561992, 0.51561992, 0.47813895]),
    "reward_model": ({"margin": 1.0}, [0.31326169, 2.12692801, 1.31326169, 1.31326169]),
    "sft": ({}, [2.0, 2.0, 2.5, 29 / 12]),
}
"""Of each pair, or answer."""


def build(name, options):
    entry = REGISTRY.get("algorithm", name)
    return entry.call("build", entry.call("config").model_validate(options))


@pytest.mark.parametrize("name", SAMPLED)
def test_of_samples(name, context, lookup, grid, sequences, objective):
    options, expected = SAMPLED[name]
    seqs = sequences([[1] * len(row) for row in OLD], rollout_logprobs=grid(OLD))
    data = Rollouts(seqs, numbers([1, 0, 0, 1]), torch.ones(4).bool(), torch.zeros(4).long(), torch.zeros(4).bool())
    algorithm = build(name, options)
    shape = {"max_completion": 4 if name == "dapo" else 8}
    batch = algorithm.prepare(data, context(reference=lookup(grid(REFERENCE)), critic=lookup(grid(VALUES)), **shape))
    now = context(policy=lookup(grid(OLD) + grid(MOVED)), critic=lookup(grid(MOVED_VALUES)), **shape)
    for split in ([[0, 1, 2, 3]], [[0], [1, 2, 3]], [[2, 0], [3], [1]]):
        assert objective(algorithm, "policy", batch, now, split).item() == pytest.approx(expected, abs=1e-6)
    if name == "ppo":
        assert objective(algorithm, "critic", batch, now).item() == pytest.approx(0.160620090, abs=1e-6)


@pytest.fixture
def given(case, sequences, lookup):
    """The pairs, and models that spread these sums of logprobs over the tokens of each side."""
    inputs = case("M20_dpo_losses")["inputs"]
    chosen, rejected = (sequences([[1] * n for n in inputs[f"{side}_tokens"]], first)
                        for side, first in (("chosen", 0), ("rejected", 100)))

    def model(whose):
        table = torch.full((200,), torch.nan).double()
        for side, seqs in (("chosen", chosen), ("rejected", rejected)):
            each = numbers(inputs[f"{whose}_{side}"])[:, None] / seqs.mask.sum(1, keepdim=True)
            table[seqs.tokens[seqs.mask]] = each.expand(seqs.mask.shape)[seqs.mask]
        return lookup(table)

    return Pairs(chosen, rejected, torch.arange(4)), model


class Scores:
    """A reward model that says 2, 0, 1, 1 of the chosen sides and 0, 1, 1, 1 of the rejected."""

    def scores(self, seqs):
        return numbers([0, 1, 1, 1] if int(seqs.tokens[0, 0]) >= 100 else [2, 0, 1, 1])


def labelled(pairs):
    """Both sides of each pair by themselves: the chosen ones good, the rejected bad."""
    sides, wide = (pairs.chosen, pairs.rejected), max(s.tokens.shape[1] for s in (pairs.chosen, pairs.rejected))
    pad = torch.nn.functional.pad
    tokens, mask = (torch.cat([pad(getattr(s, part), (0, wide - s.tokens.shape[1])) for s in sides])
                    for part in ("tokens", "mask"))
    return Labelled(Sequences(tokens, torch.cat([s.length for s in sides]), mask), torch.arange(8) < 4, torch.arange(8))


@pytest.mark.parametrize("name", GIVEN)
def test_of_given_data(name, given, context, objective):
    options, expected = GIVEN[name]
    algorithm, (pairs, model) = build(name, options), given
    data = labelled(pairs) if name == "kto" else Demonstrations(pairs.chosen, pairs.row) if name == "sft" else pairs
    ctx = context(policy=model("policy"), reference=model("ref"), reward=Scores())
    batch = algorithm.prepare(data, ctx)
    role = "reward" if name == "reward_model" else "policy"
    found = algorithm.loss(role, batch, ctx).rows
    torch.testing.assert_close(found, numbers(expected), atol=1e-6, rtol=0)


def test_dpo_for_noisy_labels(given, context):
    pairs, model = given
    algorithm = build("dpo", {"loss": "robust", "label_smoothing": 0.1})
    ctx = context(policy=model("policy"), reference=model("ref"))
    found = algorithm.loss("policy", algorithm.prepare(pairs, ctx), ctx).rows
    torch.testing.assert_close(found, numbers([0.60220705, 0.82313887, 0.69314718, 0.60220705]), atol=1e-6, rtol=0)


def test_every_algorithm_has_a_number():
    assert {entry.name for entry in REGISTRY.entries("algorithm")} == {*SAMPLED, *GIVEN}
