"""What an algorithm calls: models that split into micro-batches and move data on their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlx.batching import micro_batches
from rlx.ranks import Ranks
from rlx_sdk import Role, Sequences


@dataclass(frozen=True)
class Handle:
    """A model for an algorithm: `LanguageModel`, `ValueModel` and `ScoreModel` in one.

    With gradients on, rows are already a micro-batch on the device and go straight through. Without, they are split by
    token budget, moved, and the answers come back to where the rows were.

    Attributes:
        module: ``CausalLM`` or ``Scorer``, or its engine.
        device: where it runs.
        micro_tokens: budget of one pass.
        temperature: of its logprobs.
    """

    module: Callable[..., Any]
    device: torch.device
    micro_tokens: int
    temperature: float = 1.0

    def logprobs(self, seqs: Sequences) -> Tensor:
        """``[B, T]``, 0 where the mask is false."""
        return self.logprobs_and_entropy(seqs)[0]

    def logprobs_and_entropy(self, seqs: Sequences) -> tuple[Tensor, Tensor]:
        """``[B, T]`` each, 0 where the mask is false."""
        both = self._run(seqs, lambda s: torch.stack(self.module(s.tokens, s.mask, self.temperature)))
        return both[0], both[1]

    def values(self, seqs: Sequences) -> Tensor:
        """``[B, T]``: what the model says before it sees token ``t``; 0 at ``t = 0`` and where the mask is false."""

        def shifted(s: Sequences) -> Tensor:
            before = torch.nn.functional.pad(self.module(s.tokens)[:, :-1], (1, 0))
            return torch.where(s.mask, before, torch.zeros_like(before))[None]

        return self._run(seqs, shifted)[0]

    def scores(self, seqs: Sequences) -> Tensor:
        """``[B]``, read at the last real token."""

        def last(s: Sequences) -> Tensor:
            numbers: Tensor = self.module(s.tokens)
            return numbers.gather(1, s.length[:, None] - 1)[None]

        return self._run(seqs, last)[0, :, 0]

    def _run(self, seqs: Sequences, forward: Callable[[Sequences], Tensor]) -> Tensor:
        if torch.is_grad_enabled():
            return forward(seqs)
        out: Tensor | None = None
        for rows in micro_batches(seqs.length, self.micro_tokens):
            part = forward(seqs[rows].to(self.device)).to(seqs.tokens.device)
            if out is None:
                out = part.new_zeros(part.shape[0], *seqs.tokens.shape)
            out[:, rows, : part.shape[2]] = part
        return out if out is not None else torch.zeros(2, *seqs.tokens.shape)


@dataclass
class RunContext:
    """The `Context` of a run."""

    algorithm: str
    handles: Mapping[Role, Handle]
    ranks: Ranks
    temperature: float
    single_update: bool
    exact_rollouts: bool
    max_completion: int
    step: int = 0

    @property
    def policy(self) -> Handle:
        """The trained policy."""
        return self._role("policy")

    @property
    def reference(self) -> Handle:
        """The policy as the run began."""
        return self._role("reference")

    @property
    def critic(self) -> Handle:
        """The value model."""
        return self._role("critic")

    @property
    def reward(self) -> Handle:
        """The reward model in training."""
        return self._role("reward")

    def all_sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""
        return self.ranks.sum(tensor)

    def _role(self, role: Role) -> Handle:
        if role not in self.handles:
            raise AttributeError(f"algorithm '{self.algorithm}' uses ctx.{role} but its Needs do not declare '{role}'")
        return self.handles[role]
