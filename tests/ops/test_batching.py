import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.batching import micro_batches, pad_sequences, row_lengths
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
