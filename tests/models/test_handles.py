import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlx.handles import Handle, RunContext
from rlx.models import CausalLM
from rlx.ranks import Ranks
from rlx_sdk import Sequences

LENGTHS = [(3, 4), (1, 1), (6, 5), (2, 0), (1, 9)]
close = {"atol": 1e-5, "rtol": 1e-5}


def handle(module, micro_tokens=10_000, temperature=1.0):
    return Handle(module, torch.device("cpu"), micro_tokens, temperature)


@torch.no_grad()
def answers(model, scorer, seqs, micro_tokens):
    logprobs, entropy = handle(model, micro_tokens, 0.7).logprobs_and_entropy(seqs)
    critic = handle(scorer, micro_tokens)
    return logprobs, entropy, critic.values(seqs), critic.scores(seqs)


@settings(deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(budget=st.integers(1, 80), order=st.permutations(range(len(LENGTHS))))
def test_answers_depend_neither_on_the_budget_nor_on_the_order(llama, scorer, sequences, budget, order):
    model, values, seqs = CausalLM(llama()), scorer(), sequences(LENGTHS)
    whole = answers(model, values, seqs, 10_000)
    for found, expected in zip(answers(model, values, seqs[torch.tensor(order)], budget), whole, strict=True):
        torch.testing.assert_close(found, expected[torch.tensor(order)], **close)


def test_each_row_is_answered_as_if_alone(llama, scorer, sequences):
    model, values, seqs = CausalLM(llama()), scorer(), sequences(LENGTHS)
    whole = answers(model, values, seqs, 10_000)
    for i in range(len(seqs)):
        alone = answers(model, values, seqs[i : i + 1], 1)
        for found, expected in zip(alone, whole, strict=True):
            torch.testing.assert_close(found[0], expected[i][: int(seqs.length[i])] if found.dim() > 1 else expected[i],
                                       **close)


def test_the_temperature_is_the_handle_s(llama, sequences):
    model, seqs = CausalLM(llama()), sequences(LENGTHS)
    with torch.no_grad():
        expected = model(seqs.tokens, seqs.mask, 0.5)[0]
        torch.testing.assert_close(handle(model, temperature=0.5).logprobs(seqs), expected, **close)
        assert not torch.allclose(handle(model).logprobs(seqs), expected, atol=0.1)


@pytest.mark.parametrize("grad", [True, False])
def test_a_value_knows_nothing_of_its_token_or_later_ones(scorer, sequences, grad):
    """values[:, t] = v(tokens[:, :t]): a changed token t leaves values[:, :t + 1] as they were."""
    critic, seqs = handle(scorer()), sequences([(0, 8)])
    with torch.set_grad_enabled(grad):
        before = critic.values(seqs)
        assert before[0, 0] == 0
        for t in range(7):
            tokens = seqs.tokens.clone()
            tokens[0, t] = (tokens[0, t] + 1) % 64
            after = critic.values(Sequences(tokens, seqs.length, seqs.mask))
            assert torch.equal(after[:, : t + 1], before[:, : t + 1])
            assert (after[0, t + 1 :] - before[0, t + 1 :]).abs().min() > 1e-6


def test_values_are_zero_outside_the_mask(scorer, sequences):
    seqs = sequences([(3, 4), (2, 2)])
    with torch.no_grad():
        values = handle(scorer()).values(seqs)
    assert not values[~seqs.mask].any()
    assert values[seqs.mask].abs().min() > 0


@pytest.mark.parametrize("padding", [0, 7, 63])
def test_a_score_is_read_at_the_last_real_token(scorer, padding):
    """Whatever the padding is, also the very id that ends the text, and also if that id stands inside it."""
    model, text = scorer(), torch.tensor([5, 7, 9, 7])
    with torch.no_grad():
        alone = model(text[None])[0, -1]
        longer = torch.full((2, 9), padding)
        longer[0, :4], longer[1] = text, torch.arange(9)
        seqs = Sequences(longer, torch.tensor([4, 9]), torch.ones(2, 9).bool())
        scores = handle(model).scores(seqs)
        torch.testing.assert_close(scores[0], alone, **close)
        torch.testing.assert_close(scores[1], model(longer[1:])[0, -1], **close)
        assert model(longer[:1])[0, 4] != pytest.approx(alone.item(), abs=1e-3)


def test_no_rows_have_no_answers(llama, scorer, sequences):
    none = sequences(LENGTHS)[torch.zeros(5).bool()]
    found = answers(CausalLM(llama()), scorer(), none, 10)
    assert [x.numel() for x in found] == [0, 0, 0, 0]


def test_gradients_pass_through(llama, scorer, sequences):
    seqs, policy, critic = sequences(LENGTHS), CausalLM(llama()), scorer()
    handle(policy).logprobs(seqs).sum().backward()
    (handle(critic).values(seqs).sum() + handle(critic).scores(seqs).sum()).backward()
    for module in (policy, critic):
        assert all(parameter.grad.abs().sum() > 0 for parameter in module.parameters())


def test_an_undeclared_role_names_the_algorithm(llama):
    context = RunContext("bandit", {"policy": handle(CausalLM(llama()))}, Ranks(), 1.0, True, True, 8)
    assert context.policy.temperature == 1.0
    for role in ("reference", "critic", "reward"):
        with pytest.raises(AttributeError, match=f"'bandit' uses ctx.{role} but its Needs do not declare '{role}'"):
            getattr(context, role)
