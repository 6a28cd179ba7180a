from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.ops import clamped_exp, last_run, masked_mean, masked_sum, whiten

numbers = partial(torch.tensor, dtype=torch.float64)
assert_close = partial(torch.testing.assert_close, atol=1e-6, rtol=0)
examples = settings(deadline=None, max_examples=50, derandomize=True)
finite = st.floats(-100, 100)


def test_masked_mean_divides_by_what_is_kept():
    x, mask = numbers([[1, 2, 3, 9], [4, 9, 9, 9]]), numbers([[1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    assert masked_mean(x, mask).item() == 2.5
    assert masked_mean(x, mask, dim=1).tolist() == [2, 4]
    assert masked_sum(x, mask, dim=1).tolist() == [6, 4]


def test_a_row_without_tokens_has_mean_zero():
    assert masked_mean(numbers([[7.0], [3.0]]), torch.tensor([[False], [True]]), dim=1).tolist() == [0, 3]


def test_what_the_mask_leaves_out_leaks_neither_into_sums_nor_into_gradients():
    x = numbers([1.0, torch.nan, torch.inf, 3.0]).requires_grad_()
    mean = masked_mean(x, torch.tensor([True, False, False, True]))
    mean.backward()
    assert mean.item() == 2
    assert x.grad.tolist() == [0.5, 0, 0, 0.5]


def test_exp_stops_at_twenty():
    assert_close(clamped_exp(numbers([0.5, 100, -100])) / numbers([1, 20, -20]).exp(), numbers([0.6065306597, 1, 1]))


def test_whitening_of_an_advantage_row():
    white = whiten(numbers([0.77329043, 0.71801215, 0.6603, 0.6]), torch.ones(4).bool())
    assert_close(white, numbers([1.14494426, 0.40374849, -0.37008174, -1.17861101]))


def test_whitening_counts_no_padding(case):
    m13 = case("M13_whitening")
    x, mask = numbers(m13["inputs"]["values"]), torch.tensor(m13["inputs"]["mask"])
    white = whiten(x, mask)
    assert_close(white, numbers(m13["expected"]["unbiased_var"]))
    assert not torch.allclose(white, numbers(m13["expected"]["population_var"]), atol=1e-2)
    assert masked_mean(x, mask).item() == 1 != pytest.approx(m13["known_wrong_values"]["padding_counted_mean"])


def test_whitening_ignores_nan_outside_the_mask():
    mask = torch.tensor([True, True, False])
    assert_close(whiten(numbers([1, 3, torch.nan]), mask), numbers([-0.70710678, 0.70710678, 0]))


@pytest.mark.parametrize("mask", [[1, 0], [0, 0]])
def test_one_token_or_none_whitens_to_zero(mask):
    assert whiten(numbers([3.0, 9.0]), torch.tensor(mask)).tolist() == [0, 0]


def test_float32_whitens_as_float64_does():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) + 1e4
    assert_close(whiten(x, torch.ones(1000)).double(), whiten(x.double(), torch.ones(1000)), atol=1e-4)


@examples
@given(st.lists(st.lists(st.tuples(finite, st.booleans()), min_size=1, max_size=6), min_size=1, max_size=4))
def test_whitening_over_ranks_is_that_of_the_global_batch(ranks):
    """Ranks run one after the other: twice to learn the two sums of all, once with both."""
    parts = [(numbers([x for x, _ in rank]), torch.tensor([kept for _, kept in rank])) for rank in ranks]
    whole = whiten(torch.cat([x for x, _ in parts]), torch.cat([mask for _, mask in parts]))
    known: list[torch.Tensor] = []
    for call in range(2):
        own: list[torch.Tensor] = []
        for x, mask in parts:
            sums = iter(known)
            mine: list[torch.Tensor] = []
            whiten(x, mask, lambda s, mine=mine, sums=sums: mine.append(s) or next(sums, s))
            own.append(mine[call])
        known.append(torch.stack(own).sum(0))
    split = []
    for x, mask in parts:
        sums = iter(known)
        split.append(whiten(x, mask, lambda _, sums=sums: next(sums)))
    assert_close(torch.cat(split), whole)


@examples
@given(rows=st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=4))
def test_the_last_run_is_what_a_loop_from_the_end_finds(rows):
    found = last_run(torch.tensor(rows))
    for row, got in zip(rows, found.tolist(), strict=True):
        end = max((i for i, kept in enumerate(row) if kept), default=-1)
        start = end
        while start > 0 and row[start - 1]:
            start -= 1
        assert got == [start <= i <= end if end >= 0 else False for i in range(7)]
