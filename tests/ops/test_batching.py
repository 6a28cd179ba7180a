import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.batching import balanced, concatenate, micro_batches, pad_sequences, row_lengths, share_out
from rlx.ranks import Ranks
from rlx_sdk import Batch

examples = settings(deadline=None, max_examples=100, derandomize=True)
ids = st.lists(st.integers(0, 9), max_size=6)


@examples
@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 200))
def test_micro_batches_are_a_partition_within_the_budget(lengths, budget):
    parts = [rows.tolist() for rows in micro_batches(torch.tensor(lengths, dtype=torch.long), budget)]
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        assert part
        assert len(part) == 1 or len(part) * max(lengths[row] for row in part) <= budget


@examples
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 200))
def test_micro_batches_are_full(lengths, budget):
    """The next one's longest row would not have fitted into the one before."""
    parts = [rows.tolist() for rows in micro_batches(torch.tensor(lengths), budget)]
    for part in parts[:-1]:
        assert (len(part) + 1) * max(lengths[row] for row in part) > budget


def test_rows_of_like_length_go_together():
    parts = micro_batches(torch.tensor([2, 10, 3, 9, 2]), 20)
    assert [part.tolist() for part in parts] == [[1, 3], [2, 0, 4]]


def test_a_row_longer_than_the_budget_goes_alone():
    assert [part.tolist() for part in micro_batches(torch.tensor([3, 100, 3]), 10)] == [[1], [0, 2]]


def test_micro_batches_of_nothing():
    assert micro_batches(torch.tensor([], dtype=torch.long), 10) == []


@examples
@given(st.lists(st.tuples(ids, ids).filter(lambda row: row[0] or row[1]), max_size=6), st.integers(0, 9))
def test_padding_loses_nothing_and_adds_nothing(rows, pad):
    prompts, completions = [p for p, _ in rows], [c for _, c in rows]
    logprobs = [[-0.5 * token for token in c] for c in completions]
    seqs = pad_sequences(prompts, completions, pad, rollout_logprobs=logprobs)
    assert len(seqs) == len(rows)
    assert seqs.tokens.shape[1] == max((len(p) + len(c) for p, c in rows), default=1)
    found = seqs.per_token["rollout_logprobs"]
    for i, (prompt, completion) in enumerate(rows):
        length = int(seqs.length[i])
        assert seqs.tokens[i, :length].tolist() == [*prompt, *completion]
        assert set(seqs.tokens[i, length:].tolist()) <= {pad}
        assert seqs.mask[i].nonzero().flatten().tolist() == list(range(len(prompt), length))
        assert found[i, seqs.mask[i]].tolist() == logprobs[i]
        assert not found[i, ~seqs.mask[i]].any()


def test_sides_of_unequal_number_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        pad_sequences([[1], [2]], [[3]], 0)


def test_a_pair_is_as_long_as_both_its_sides():
    sides = [pad_sequences([[1, 2], [1]], completions, 0) for completions in ([[3], [4, 5]], [[6, 7, 8], [9]])]
    batch = Batch(dict(zip(("chosen", "rejected"), sides, strict=True)), {})
    assert row_lengths(batch).tolist() == [[3, 5], [3, 2]]


def batch_of(lengths, start=0):
    """Rows whose every token is the row's number."""
    ids = range(start, start + len(lengths))
    seqs = pad_sequences([[i] * n for i, n in zip(ids, lengths, strict=True)], [[] for _ in lengths], 0,
                         extra=[[] for _ in lengths])
    numbers = torch.tensor(list(ids), dtype=torch.float)
    return Batch({"a": seqs}, {"policy": numbers + 1}, {"number": numbers})


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 5), st.integers(1, 60),
       st.one_of(st.none(), st.integers(1, 4)))
def test_ranks_share_the_rows_out_and_make_as_many_passes(lengths, world, budget, most):
    batch = batch_of(lengths)
    found = [list(share_out(batch, budget, most, Ranks(rank, world))) for rank in range(world)]
    assert len({len(passes) for passes in found}) == 1
    real = [part for passes in found for part, has_rows in passes if has_rows]
    assert sorted(n for part in real for n in part.values["number"].tolist()) == list(range(len(lengths)))
    assert all(most is None or len(part) <= most for part in real)
    for part, has_rows in (one for passes in found for one in passes):
        seqs = part.sequences["a"]
        assert has_rows or (not seqs.mask.any() and not part.weight["policy"].any() and seqs.tokens.shape == (1, 2))


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 6))
def test_parts_cost_about_the_same(costs, parts):
    found = balanced(costs, parts)
    assert sorted(i for part in found for i in part) == list(range(len(costs)))
    sums = [sum(costs[i] for i in part) for part in found]
    assert max(sums) - min(sums) <= max(costs, default=0)


@given(st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=4))
def test_parts_put_together_are_the_whole(parts):
    starts = [sum(map(len, parts[:i])) for i in range(len(parts))]
    whole = concatenate([batch_of(lengths, start) for lengths, start in zip(parts, starts, strict=True)])
    expected = batch_of([n for part in parts for n in part])
    assert torch.equal(whole.values["number"], expected.values["number"])
    assert torch.equal(whole.sequences["a"].length, expected.sequences["a"].length)
    for i, n in enumerate(whole.sequences["a"].length.tolist()):
        assert whole.sequences["a"].tokens[i, :n].tolist() == [i] * n


@given(st.integers(0, 30), st.integers(1, 7))
def test_stretches_of_ranks_in_order_are_the_whole(n, world):
    assert [i for rank in range(world) for i in Ranks(rank, world).share(range(n))] == list(range(n))
