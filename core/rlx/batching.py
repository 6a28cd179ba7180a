"""Sequences into padded tensors, and rows into micro-batches by a token budget."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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


def micro_batches(lengths: Tensor, budget: int) -> list[Tensor]:
    """Row indices of each micro-batch: rows of like length together, as many as the budget holds once padded.

    A row longer than the budget makes a micro-batch of its own.

    Args:
        lengths: ``[B]``, or ``[B, K]`` for rows of K sequences that are padded apart.
        budget: tokens, padding included.
    """
    lengths = lengths if lengths.dim() == 2 else lengths[:, None]
    groups: list[list[int]] = []
    longest = torch.zeros_like(lengths[0]) if len(lengths) else lengths
    for row in torch.argsort(lengths.sum(1), descending=True, stable=True).tolist():
        longest = torch.maximum(longest, lengths[row])
        if groups and (len(groups[-1]) + 1) * int(longest.sum()) <= budget:
            groups[-1].append(row)
        else:
            groups.append([row])
            longest = lengths[row]
    return [torch.tensor(group) for group in groups]
