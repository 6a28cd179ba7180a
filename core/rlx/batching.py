"""Sequences into padded tensors, and rows into micro-batches by a token budget, over all ranks alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from rlx.ranks import Ranks
from rlx_sdk import Batch, Sequences


def pad_sequences(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad_id: int,
                  **per_token: Sequence[Sequence[float]]) -> Sequences:
    """Prompt and completion of each row, right-padded; the mask marks the completion.

    Args:
        prompts: ids of each row.
        completions: ids of each row, all of them the policy's own.
        pad_id: fills the rest.
        per_token: numbers that belong to the completion's tokens.
    """
    lengths = [len(p) + len(c) for p, c in zip(prompts, completions, strict=True)]
    length, shape = torch.tensor(lengths, dtype=torch.long), (len(prompts), max(lengths, default=1))
    tokens, mask = torch.full(shape, pad_id), torch.zeros(shape, dtype=torch.bool)
    extra = {name: torch.zeros(shape) for name in per_token}
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        tokens[i, : length[i]] = torch.tensor([*prompt, *completion])
        mask[i, len(prompt) : length[i]] = True
        for name, values in per_token.items():
            extra[name][i, len(prompt) : length[i]] = torch.tensor(values[i])
    return Sequences(tokens, length, mask, extra)


def row_lengths(batch: Batch) -> Tensor:
    """``[B, K]`` tokens of each row in each of the batch's K sequences."""
    return torch.stack([seqs.length for seqs in batch.sequences.values()], 1)


def micro_batches(lengths: Tensor, budget: int, most: int | None = None, packed: bool = False) -> list[Tensor]:
    """Row indices of each micro-batch: rows of like length together, as many as the budget holds.

    A row longer than the budget makes a micro-batch of its own.

    Args:
        lengths: ``[B]``, or ``[B, K]`` for rows of K sequences that are padded apart.
        budget: tokens, padding included.
        most: rows in one, at most.
        packed: rows are not padded.
    """
    of_row = (lengths if lengths.dim() == 2 else lengths[:, None]).tolist()
    groups: list[list[int]] = []
    longest: list[int] = []
    tokens = 0
    for row in sorted(range(len(of_row)), key=lambda row: -sum(of_row[row])):
        longest = [max(pair) for pair in zip(longest, of_row[row], strict=True)] if groups else of_row[row]
        tokens += sum(of_row[row])
        cost = tokens if packed else (len(groups[-1]) + 1) * sum(longest) if groups else 0
        if groups and len(groups[-1]) != most and cost <= budget:
            groups[-1].append(row)
        else:
            groups.append([row])
            longest, tokens = of_row[row], sum(of_row[row])
    return [torch.tensor(group) for group in groups]


def balanced(costs: Sequence[int], parts: int) -> list[list[int]]:
    """Item indices of each part, so that the parts cost about the same: the costliest first, to the cheapest part."""
    found: list[list[int]] = [[] for _ in range(parts)]
    sums = [0] * parts
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        cheapest = min(range(parts), key=lambda part: (sums[part], len(found[part])))
        found[cheapest].append(item)
        sums[cheapest] += costs[item]
    return found


def share_out(batch: Batch, budget: int, most: int | None, ranks: Ranks,
              packed: bool = False) -> Iterator[tuple[Batch, bool]]:
    """This rank's micro-batches of a batch that every rank holds whole, and whether each has rows of the batch.

    Rows go to ranks by length, and every rank gets as many micro-batches: those without rows, of which a rank may have
    some at the end, hold a row of padding that changes nothing.
    """
    lengths = row_lengths(batch)
    parts = [torch.tensor(part, dtype=torch.long) for part in balanced(lengths.sum(1).tolist(), ranks.world)]
    planned = [micro_batches(lengths[part], budget, most, packed) for part in parts]
    mine = planned[ranks.rank]
    for rows in mine:
        yield batch[parts[ranks.rank][rows]], True
    for _ in range(max(map(len, planned)) - len(mine)):
        yield _padding(batch), False


def concatenate(batches: Sequence[Batch]) -> Batch:
    """The rows of all, in order, without metrics."""
    first = batches[0]
    return Batch({name: _stack([b.sequences[name] for b in batches]) for name in first.sequences},
                 {role: torch.cat([b.weight[role] for b in batches]) for role in first.weight},
                 {name: torch.cat([b.values[name] for b in batches]) for name in first.values})


def _stack(parts: Sequence[Sequences]) -> Sequences:
    width = max(part.tokens.shape[1] for part in parts)

    def wide(tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat([torch.nn.functional.pad(t, (0, width - t.shape[1])) for t in tensors])

    return Sequences(wide(p.tokens for p in parts), torch.cat([p.length for p in parts]), wide(p.mask for p in parts),
                     {name: wide(p.per_token[name] for p in parts) for name in parts[0].per_token})


def _padding(batch: Batch) -> Batch:
    """A row that no model learns from: two tokens, none of them the policy's, and weight 0."""
    row = batch[:1]
    short = {name: Sequences(seqs.tokens[:, :1].expand(-1, 2), torch.full_like(seqs.length, 2),
                             torch.zeros(1, 2, dtype=torch.bool),
                             {k: v.new_zeros(1, 2) for k, v in seqs.per_token.items()})
             for name, seqs in row.sequences.items()}
    return Batch(short, {role: torch.zeros_like(weight) for role, weight in row.weight.items()},
                 {name: torch.zeros_like(value) for name, value in row.values.items()})
