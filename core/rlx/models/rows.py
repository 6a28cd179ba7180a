"""Rows through a decoder other than padded: behind each other, or two answers behind one prompt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlx_sdk import Sequences


def packed_states(decoder: Any, tokens: Tensor, length: Tensor) -> Tensor:
    """``[B, T, H]`` last hidden states, computed as one row of the real tokens; what is padding gets 0.

    Positions begin anew with each row, from which HF's attention masks know that rows do not see each other.
    """
    place = _places(tokens)
    real = place < length[:, None]
    states: Tensor = decoder(input_ids=tokens[real][None], position_ids=place[real][None],
                             use_cache=False).last_hidden_state[0]
    return states.new_zeros(*tokens.shape, states.shape[-1]).masked_scatter(real[..., None], states)


def branched_states(decoder: Any, tokens: Tensor, branch: Tensor) -> Tensor:
    """``[B, T, H]`` states of the token before each, in rows of a beginning (branch 0) and two ways to go on (1, 2)."""
    place = _places(tokens)
    shared, first = ((branch == n).sum(1, keepdim=True) for n in (0, 1))
    seen = ((branch[:, None, :] == 0) | (branch[:, None, :] == branch[:, :, None])).tril()
    states: Tensor = decoder(input_ids=tokens, position_ids=torch.where(branch == 2, place - first, place),
                             attention_mask=seen[:, None], use_cache=False).last_hidden_state
    before = torch.where(place == shared + first, shared, place).sub(1).clamp(min=0)
    return states.gather(1, before[..., None].expand(states.shape))


def joined(chosen: Sequences, rejected: Sequences) -> Sequences:
    """Both sides of each pair in one row: what both begin with, then the rest of either; ``per_token["branch"]``."""
    width = min(chosen.tokens.shape[1], rejected.tokens.shape[1])
    alike = chosen.tokens[:, :width] == rejected.tokens[:, :width]
    alike &= ~(chosen.mask[:, :width] | rejected.mask[:, :width])
    alike &= _places(alike) < torch.minimum(chosen.length, rejected.length)[:, None]
    shared, first = alike.cumprod(1).sum(1, keepdim=True), chosen.length[:, None]
    length = first[:, 0] + rejected.length - shared[:, 0]
    place = torch.arange(int(length.max()) if len(length) else 1, device=length.device).expand(len(length), -1)
    source = torch.where(place < first, place, place - first + shared + chosen.tokens.shape[1])
    source = source.clamp(max=chosen.tokens.shape[1] + rejected.tokens.shape[1] - 1)
    tokens, mask = (torch.cat(sides, 1).gather(1, source) for sides in (
        (chosen.tokens, rejected.tokens), (chosen.mask, rejected.mask)))
    branch = (place >= shared).long() + (place >= first)
    return Sequences(tokens, length, mask & (place < length[:, None]), {"branch": branch})


def parted(x: Tensor, both: Sequences, chosen: Sequences, rejected: Sequences) -> tuple[Tensor, Tensor]:
    """What `joined` rows were given, ``[B, T]``, back to either side; 0 where its mask is false."""
    branch = both.per_token["branch"]
    shift = (branch == 1).sum(1, keepdim=True)
    places = _places(chosen.tokens), _places(rejected.tokens) + shift
    one, other = (torch.where(side.mask, x.gather(1, place.clamp(max=x.shape[1] - 1)), 0)
                  for side, place in zip((chosen, rejected), places, strict=True))
    return one, other


def _places(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1], device=x.device).expand_as(x)
