"""The reward model's loss: margins of the options and of the data, centring, accuracy."""

from functools import partial

import pytest
import torch

from rlx_plugins.reward_model import RewardModel, RewardModelConfig
from rlx_sdk import Pairs

numbers = partial(torch.tensor, dtype=torch.float64)


class Scores:
    """A reward model that says these numbers of chosen and rejected sequences."""

    def __init__(self, chosen, rejected):
        self.said = {0: numbers(chosen), 1: numbers(rejected)}

    def scores(self, seqs):
        return self.said[int(seqs.tokens[0, 0]) // 100][seqs.tokens[:, 0] % 100]


@pytest.fixture
def pairs(sequences):
    """Pairs of tokens that say which side and row they are, with or without margins of the data."""

    def make(n, margin=None):
        sides = []
        for side in (0, 1):
            seqs = sequences([[1]] * n)
            seqs.tokens[:, 0] = 100 * side + torch.arange(n)
            sides.append(seqs)
        return Pairs(*sides, torch.arange(n), None if margin is None else numbers(margin))

    return make


def test_margins_of_the_data_count_by_pair(case, pairs, context, objective):
    m25 = case("M25_reward_model_loss")
    given, expected = m25["inputs"], m25["expected"]
    ctx, model = context(reward=Scores(given["chosen"], given["rejected"])), RewardModel(RewardModelConfig())
    batch = model.prepare(pairs(4, given["margin"]), ctx)
    loss = model.loss("reward", batch, ctx)
    torch.testing.assert_close(loss.rows, numbers(expected["per_pair"]), atol=1e-5, rtol=0)
    assert float(loss.metrics["rewards/accuracy"].total) / 4 == expected["accuracy"]
    for split in ([[0, 1, 2, 3]], [[0], [1, 2, 3]], [[3, 1], [0, 2]]):
        assert objective(model, "reward", batch, ctx, split).item() == pytest.approx(expected["loss"], abs=1e-5)
    plain = model.prepare(pairs(4), ctx)
    assert objective(model, "reward", plain, ctx).item() == pytest.approx(expected["loss_without_margin"], abs=1e-5)


def test_the_option_s_margin_is_added_and_centring_pulls_the_sum_to_0(pairs, context):
    ctx = context(reward=Scores([1.0, 2.0], [0.0, 1.5]))
    model = RewardModel(RewardModelConfig(margin=0.5, centre_coef=0.1))
    loss = model.loss("reward", model.prepare(pairs(2, [0.0, 1.0]), ctx), ctx).rows
    expected = torch.nn.functional.softplus(-(numbers([1.0, 0.5]) - numbers([0.5, 1.5]))) + 0.1 * numbers([1.0, 12.25])
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(("chosen", "accuracy"), [(1.0, 0), (1.0 + 1e-6, 0), (1.01, 1), (0.99, 0)])
def test_rounding_noise_is_no_win(pairs, context, chosen, accuracy):
    ctx, model = context(reward=Scores([chosen], [1.0])), RewardModel(RewardModelConfig())
    assert float(model.loss("reward", model.prepare(pairs(1), ctx), ctx).metrics["rewards/accuracy"].total) == accuracy
