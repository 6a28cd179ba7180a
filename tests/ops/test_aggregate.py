from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.ops import AGGREGATIONS, aggregate_rows, row_weights

numbers = partial(torch.tensor, dtype=torch.float64)
CASE_NAMES = {"token-mean": "token_mean", "seq-mean-token-mean": "seq_mean_token_mean",
              "seq-mean-token-sum": "seq_mean_token_sum", "seq-mean-token-sum-norm": "dr_grpo_constant"}


def padded(rows, width):
    """Losses and mask; the padding is NaN."""
    losses, mask = torch.full((len(rows), width), torch.nan, dtype=torch.float64), torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        losses[i, : len(row)], mask[i, : len(row)] = numbers(row), 1
    return losses, mask.bool()


def minimised(losses, mask, mode, norm, split):
    """``Σ weight·row / Σ weight``, its parts computed split by split."""
    parts = [(aggregate_rows(losses[rows], mask[rows], mode, norm), row_weights(mask[rows], mode)) for rows in split]
    return sum((r * w).sum() for r, w in parts) / sum(w.sum() for _, w in parts)


@pytest.mark.parametrize(("mode", "expected"), [("token-mean", 2.5), ("seq-mean-token-sum", 5),
                                                ("seq-mean-token-mean", 3), ("seq-mean-token-sum-norm", 1.25)])
def test_the_four_modes_differ(mode, expected):
    losses, mask = padded([[1, 2, 3], [4]], 4)
    assert minimised(losses, mask, mode, 4, [[0, 1]]).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("width", [6, 20])
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_every_split_gives_one_value_and_one_gradient(case, mode, width):
    m10 = case("M10_aggregation_invariance")
    expected = m10["expected"]["every_split_gives"][CASE_NAMES[mode]]
    rows, norm = m10["inputs"]["per_token_losses"], m10["inputs"]["max_response_length"]
    gradients = []
    for split in m10["inputs"]["splits"].values():
        losses, mask = padded(rows, width)
        losses.requires_grad_()
        loss = minimised(losses, mask, mode, norm, split)
        assert loss.item() == pytest.approx(expected, abs=1e-6)
        loss.backward()
        gradients.append(losses.grad)
    for gradient in gradients:
        torch.testing.assert_close(gradient, gradients[0], atol=1e-6, rtol=0)
        assert gradient[mask].abs().min() > 0
        assert gradient[~mask].abs().max() == 0


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_a_row_without_tokens_counts_for_nothing(mode):
    losses, mask = padded([[1, 2], []], 2)
    assert row_weights(mask, mode)[1] == 0
    assert minimised(losses, mask, mode, 2, [[0], [1]]) == minimised(losses[:1], mask[:1], mode, 2, [[0]])


def test_an_empty_micro_batch_adds_zero(case):
    m44 = case("M44_empty_micro_batch")
    losses, mask = padded(m44["inputs"]["micro_batches"], 2)
    assert minimised(losses, mask, "token-mean", 1, [[0], [1], [2]]).item() == m44["expected"]["loss"]


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.lists(st.lists(st.floats(-10, 10), max_size=5), min_size=2, max_size=6).filter(any), st.data())
def test_no_split_changes_the_result(rows, data):
    losses, mask = padded(rows, 5)
    order = data.draw(st.permutations(range(len(rows))))
    cut = data.draw(st.integers(1, len(rows) - 1))
    for mode in AGGREGATIONS:
        whole = minimised(losses, mask, mode, 7, [list(range(len(rows)))])
        torch.testing.assert_close(minimised(losses, mask, mode, 7, [order[:cut], order[cut:]]), whole)
