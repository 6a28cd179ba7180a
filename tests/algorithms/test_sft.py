from functools import partial

import pytest
import torch
from pydantic import ValidationError

from rlx_plugins.sft import SFT, SFTConfig, needs
from rlx_sdk import Demonstrations

assert_close = partial(torch.testing.assert_close, atol=1e-6, rtol=0)


@pytest.fixture
def answers(sequences, grid, lookup):
    """Demonstrations whose tokens cost this much, and the policy to which they do."""

    def make(losses):
        seqs = sequences([[1] * len(row) for row in losses])
        return Demonstrations(seqs, torch.arange(len(losses))), lookup((-grid(losses)).requires_grad_())

    return make


def test_every_target_token_weighs_the_same_over_ranks_and_micro_batches(case, answers, context, objective):
    m43 = case("M43_sft_token_weighting")
    ranks = m43["inputs"]["label_token_losses"]
    data, policy = answers([*ranks["rank0"], *ranks["rank1"]])
    ctx, sft = context(policy=policy), SFT(SFTConfig())
    batch = sft.prepare(data, context())  # no model is asked
    assert batch.weight["policy"].sum() == m43["expected"]["tokens"]
    for split in ([[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0], [1], [2], [3]], [[3, 0, 2], [1]]):
        loss = objective(sft, "policy", batch, ctx, split)
        assert loss.item() == pytest.approx(m43["expected"]["loss"], abs=1e-6)
        for wrong in m43["known_wrong_values"].values():
            assert loss.item() != pytest.approx(wrong, abs=1e-3)
        gradient, = torch.autograd.grad(loss, policy.table)
        assert_close(gradient[data.seqs.mask], torch.full((9,), -1 / 9).double())


def test_an_answer_without_tokens_costs_nothing(case, answers, context, objective):
    m44 = case("M44_empty_micro_batch")
    data, policy = answers(m44["inputs"]["micro_batches"])
    sft = SFT(SFTConfig())
    batch = sft.prepare(data, context())
    loss = objective(sft, "policy", batch, context(policy=policy), [[0], [1], [2]])
    loss.backward()
    assert loss.item() == m44["expected"]["loss"]
    assert torch.isfinite(policy.table.grad).all()
    assert float(sft.loss("policy", batch[1:2], context(policy=policy)).metrics["logprobs/answer"].count) == 0


def test_the_reported_logprob_is_a_mean_over_tokens(answers, context):
    data, policy = answers([[1.0, 2.0, 3.0], [6.0]])
    sft = SFT(SFTConfig())
    found = sft.loss("policy", sft.prepare(data, context()), context(policy=policy)).metrics["logprobs/answer"]
    assert float(found.total.detach() / found.count) == -3


@pytest.mark.parametrize(("turns", "kept"), [("every", [1, 2, 5, 6]), ("last", [5, 6])])
def test_every_turn_of_a_conversation_is_learned_or_the_last(turns, kept, sequences, grid, lookup, context, objective):
    seqs = sequences([[1, 1, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0]])
    costs = -grid([[1, 2, 3, 4, 5, 6], [7, 8, 9, 9, 9, 9]])
    sft = SFT(SFTConfig(turns=turns))
    batch = sft.prepare(Demonstrations(seqs, torch.arange(2)), context())
    assert batch.sequences["answer"].mask.nonzero().tolist() == [*([0, t] for t in kept), [1, 1]]
    assert batch.weight["policy"].tolist() == [len(kept), 1]
    loss = objective(sft, "policy", batch, context(policy=lookup(costs)))
    assert loss.item() == pytest.approx(sum([*kept, 7]) / (len(kept) + 1))


def test_it_needs_demonstrations_and_the_policy_alone():
    found = needs(SFTConfig(), False)
    assert (found.data, found.trains, found.frozen) == ("demonstrations", {"policy"}, frozenset())
    with pytest.raises(ValidationError, match="Extra inputs"):
        SFTConfig.model_validate({"beta": 0.1})
