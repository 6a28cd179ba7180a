from functools import partial

import pytest
import torch
from pydantic import ValidationError

from rlx_plugins.dpo import DPO, DPOConfig, needs
from rlx_sdk import Pairs, Rollouts

numbers = partial(torch.tensor, dtype=torch.float64)
assert_close = partial(torch.testing.assert_close, atol=1e-6, rtol=0)


def dpo(**options):
    return DPO(DPOConfig.model_validate(options))


@pytest.fixture
def pairs(sequences, lookup):
    """Pairs whose sides have these tokens a row, and models that give these sums of logprobs."""

    def make(chosen_tokens, rejected_tokens):
        chosen = sequences([[1] * n for n in chosen_tokens])
        rejected = sequences([[1] * n for n in rejected_tokens], first=chosen.tokens.numel())

        def model(*sums):
            """Spread each row's sum evenly over its tokens; anything else the model would say is NaN."""
            tables = [torch.where(side.mask, numbers(total)[:, None] / side.mask.sum(1, keepdim=True), torch.nan)
                      for side, total in zip((chosen, rejected), sums, strict=True)]
            return lookup(torch.cat([table.flatten() for table in tables]))

        return Pairs(chosen, rejected, torch.arange(len(chosen))), model

    return make


@pytest.fixture
def rollouts(sequences):
    def make(rewards, group, judged=None):
        seqs = sequences([[1] * (1 + i % 3) for i in range(len(rewards))])
        known = torch.ones(len(rewards)).bool() if judged is None else torch.tensor(judged).bool()
        return Rollouts(seqs, numbers(rewards), known, torch.tensor(group), torch.zeros(len(rewards)).bool())

    return make


@pytest.fixture
def zeros(lookup):
    """A model that says 0 to everything."""
    return lookup(torch.zeros(1000))


def mean(metric):
    return float(metric.total) / float(metric.count)


def test_a_batch_of_given_pairs(case, pairs, context, objective):
    m20 = case("M20_dpo_losses")
    inputs, expected = m20["inputs"], m20["expected"]
    data, model = pairs(inputs["chosen_tokens"], inputs["rejected_tokens"])
    reference = model(inputs["ref_chosen"], inputs["ref_rejected"])
    batch = dpo().prepare(data, context(reference=reference))
    assert_close(batch.values["ref_chosen"], numbers(inputs["ref_chosen"]))
    assert reference.calls == 2
    ctx = context(policy=model(inputs["policy_chosen"], inputs["policy_rejected"]))  # the reference is forbidden now
    loss = dpo(beta=0.1).loss("policy", batch, ctx)
    assert_close(loss.rows, numbers(expected["sigmoid"]["per_pair"]))
    assert_close(objective(dpo(beta=0.1), "policy", batch, ctx), numbers(expected["sigmoid"]["loss"]))
    smooth = objective(dpo(beta=0.1, label_smoothing=0.1), "policy", batch, ctx)
    assert_close(smooth, numbers(expected["sigmoid_label_smoothing_0_1"]))
    assert {name: mean(metric) for name, metric in loss.metrics.items()} == pytest.approx({
        "rewards/chosen": sum(expected["rewards_chosen"]) / 4,
        "rewards/rejected": sum(expected["rewards_rejected"]) / 4,
        "rewards/margin": 0.1 * sum(expected["h"]) / 4,
        "rewards/accuracy": expected["accuracy"],  # the tie of the third pair is no win
        "logprobs/chosen": sum(inputs["policy_chosen"]) / 4,
        "logprobs/rejected": sum(inputs["policy_rejected"]) / 4,
    })


def test_huge_margins_stay_finite(case, pairs, context):
    m22 = case("M22_dpo_stability")
    h = m22["inputs"]["h"]
    data, model = pairs([1, 1, 1], [1, 1, 1])
    batch = dpo().prepare(data, context(reference=model([0, 0, 0], [0, 0, 0])))
    policy = model(h, [0, 0, 0])
    policy.table.requires_grad_()
    loss = dpo(beta=m22["inputs"]["beta"]).loss("policy", batch, context(policy=policy))
    loss.rows.sum().backward()
    assert_close(loss.rows, numbers(m22["expected"]["loss"]))
    grad = policy.table.grad[batch.sequences["chosen"].tokens[:, 1]]
    assert_close(grad, numbers(m22["expected"]["grad_wrt_h"]))


def test_an_identical_pair_teaches_nothing_and_is_no_win(case, pairs, context):
    expected = case("M22_dpo_stability")["expected"]["identical_pair"]
    data, model = pairs([3], [3])
    same = Pairs(data.chosen, data.chosen, data.row)
    batch = dpo().prepare(same, context(reference=model([-4], [-4])))
    policy = model([-2], [-2])
    policy.table.requires_grad_()
    loss = dpo(beta=0.1).loss("policy", batch, context(policy=policy))
    loss.rows.sum().backward()
    assert loss.rows.item() == pytest.approx(expected["loss"], abs=1e-6)
    assert policy.table.grad.abs().max() == expected["grad_wrt_policy_weights"]
    assert bool(mean(loss.metrics["rewards/accuracy"])) is expected["counts_as_accurate"]


@pytest.mark.parametrize(("h", "accuracy"), [(2e-5, 0), (-2e-5, 0), (1e-3, 1), (-1e-3, 0)])
def test_rounding_noise_is_no_win(pairs, context, h, accuracy):
    data, model = pairs([2], [3])
    batch = dpo().prepare(data, context(reference=model([-4], [-5])))
    loss = dpo().loss("policy", batch, context(policy=model([-4 + h], [-5])))
    assert mean(loss.metrics["rewards/accuracy"]) == accuracy


def test_every_pair_weighs_the_same_in_every_split(case, pairs, context, objective):
    m27 = case("M27_dpo_mean_over_pairs")
    h = -10 * (numbers(m27["inputs"]["per_pair_loss"]).exp() - 1).log()  # the margins that cost this at β = 0.1
    data, model = pairs(m27["inputs"]["chosen_tokens"], [2, 4, 400])
    batch = dpo().prepare(data, context(reference=model([0, 0, 0], [0, 0, 0])))
    ctx = context(policy=model(h.tolist(), [0, 0, 0]))
    for split in m27["inputs"]["splits"]:
        loss = objective(dpo(beta=0.1), "policy", batch, ctx, split).item()
        assert loss == pytest.approx(m27["expected"]["loss"], abs=1e-6)
        assert loss != pytest.approx(m27["known_wrong_values"]["mean_of_micro_batch_means_uneven"], abs=1e-3)


def test_the_best_and_the_worst_of_each_prompt_make_the_pair(rollouts, context, zeros):
    data = rollouts([0.5, 7, 0.1, -3, 0.9, 2], group=[1_000_003, 4, 1_000_003, 4, 1_000_003, 4])
    batch = dpo().prepare(data, context(reference=zeros))
    best, worst = (batch.sequences[side].tokens[:, 0].tolist() for side in ("chosen", "rejected"))
    width = data.seqs.tokens.shape[1]
    assert {(b // width, w // width) for b, w in zip(best, worst, strict=True)} == {(4, 2), (1, 3)}
    assert batch.weight["policy"].tolist() == [1, 1]
    assert batch.metrics["pairs"].value == 2


@pytest.mark.parametrize(("rewards", "judged", "pair"), [
    ([1, 2, 9], [1, 1, 0], (1, 0)),  # the best was not judged
    ([1, 2, 0], [1, 1, 0], (1, 0)),  # 0 stands for not judged, and is no worst
    ([1, 1, 5], [1, 1, 0], None),  # what is left is a tie
    ([1, 2, 3], [0, 1, 0], None),  # one alone has nothing to be compared with
    ([0, 0, 0], [0, 0, 0], None),
    ([2, 2, 2], [1, 1, 1], None),
    ([2, 2, 1], [1, 1, 1], (0, 2)),
    ([0.3, 0.3 + 1e-10, 5], [1, 1, 0], None),  # of a sum, whose order changes its last digits
])
def test_only_judged_completions_that_differ_make_a_pair(rollouts, context, zeros, rewards, judged, pair):
    data = rollouts([float(r) for r in rewards], group=[0, 0, 0], judged=judged)
    batch = dpo().prepare(data, context(reference=zeros))
    width = data.seqs.tokens.shape[1]
    found = [batch.sequences[side].tokens[:, 0].div(width, rounding_mode="floor").tolist()
             for side in ("chosen", "rejected")]
    assert found == ([[], []] if pair is None else [[pair[0]], [pair[1]]])
    loss = dpo().loss("policy", batch, context(policy=zeros))
    assert loss.rows.sum().item() == pytest.approx(0.69314718 if pair else 0)
    assert float(loss.metrics["rewards/accuracy"].count) == len(batch) == batch.metrics["pairs"].value
    assert batch.metrics["pairs/tied"].value == (pair is None)


def test_rewards_turn_it_to_its_own_samples():
    given, sampled = needs(DPOConfig(), False), needs(DPOConfig(), True)
    assert (given.data, given.min_group, given.rewards) == ("pairs", 1, False)
    assert (sampled.data, sampled.min_group, sampled.rewards) == ("rollouts", 2, True)
    assert given.trains == sampled.trains == {"policy"}
    assert given.frozen == sampled.frozen == {"reference"}


@pytest.mark.parametrize(("options", "said"), [
    ({"beta": 0.0}, "greater than 0"),
    ({"label_smoothing": 0.5}, "less than 0.5"),
    ({"label_smoothing": -0.1}, "greater than or equal to 0"),
    ({"Beta": 0.1}, "Extra inputs"),
])
def test_options_that_cannot_work_are_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        DPOConfig.model_validate(options)


@pytest.mark.parametrize(("options", "expected"), [
    ({"loss": "hinge"}, "hinge"), ({"loss": "ipo"}, "ipo_length_averaged"),
])
def test_other_losses_of_given_pairs(options, expected, case, pairs, context, objective):
    m20 = case("M20_dpo_losses")
    inputs = m20["inputs"]
    data, model = pairs(inputs["chosen_tokens"], inputs["rejected_tokens"])
    ctx = context(policy=model(inputs["policy_chosen"], inputs["policy_rejected"]),
                  reference=model(inputs["ref_chosen"], inputs["ref_rejected"]))
    algorithm = dpo(**options)
    batch = algorithm.prepare(data, ctx)
    assert_close(algorithm.loss("policy", batch, ctx).rows, numbers(m20["expected"][expected]["per_pair"]))
    assert objective(algorithm, "policy", batch, ctx).item() == pytest.approx(m20["expected"][expected]["loss"],
                                                                              abs=1e-6)


def test_without_a_reference_none_is_asked(pairs, context):
    data, model = pairs([2], [4])
    policy = model([-1.0], [-3.0])
    algorithm = dpo(reference_free=True, length_normalised=True, sft_coef=0.5)
    assert needs(algorithm.options, False).frozen == frozenset()
    batch = algorithm.prepare(data, context())
    loss = algorithm.loss("policy", batch, context(policy=policy)).rows
    h = -0.5 + 0.75
    expected = torch.nn.functional.softplus(numbers(-0.1 * h)) + 0.5 * 0.5
    assert_close(loss, expected[None])


@pytest.mark.parametrize("options", [{"loss": "hinge", "label_smoothing": 0.1}, {"loss": "ipo", "label_smoothing": 0.1},
                                     {"loss": "ipo", "length_normalised": False}, {"loss": "robust"}])
def test_options_that_could_not_act_are_refused(options):
    with pytest.raises(ValidationError):
        dpo(**options)
