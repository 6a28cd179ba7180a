"""What an algorithm calls: models that split into micro-batches and move data on their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlx.batching import micro_batches
from rlx.models.rows import joined, parted
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
        micro_batch: rows of one pass at most.
        in_step: ranks that must make as many passes, since each pass gathers the weights; None for no such need.
        packed: its passes have no padding.
    """

    module: Callable[..., Any]
    device: torch.device
    micro_tokens: int
    temperature: float = 1.0
    micro_batch: int | None = None
    in_step: Ranks | None = None
    packed: bool = False

    def logprobs(self, seqs: Sequences) -> Tensor:
        """``[B, T]``, 0 where the mask is false."""
        return self._run(seqs, lambda s: self.module(s.tokens, s.mask, self.temperature, False, s.length)[:1])[0]

    def pair_logprobs(self, chosen: Sequences, rejected: Sequences) -> tuple[Tensor, Tensor]:
        """``[B, T]`` of either side; where the model can, what both begin with is computed once."""
        if not getattr(self.module, "shares", False):
            return self.logprobs(chosen), self.logprobs(rejected)
        both = joined(chosen, rejected)
        logprobs = self._run(both, lambda s: self.module(s.tokens, s.mask, self.temperature, False, s.length,
                                                         s.per_token["branch"])[:1])[0]
        return parted(logprobs, both, chosen, rejected)

    def logprobs_and_entropy(self, seqs: Sequences) -> tuple[Tensor, Tensor]:
        """``[B, T]`` each, 0 where the mask is false."""
        logprobs, entropy = self._run(seqs, lambda s: self.module(s.tokens, s.mask, self.temperature, True,
                                                                     s.length))
        return logprobs, entropy

    def values(self, seqs: Sequences) -> Tensor:
        """``[B, T]``: what the model says before it sees token ``t``; 0 at ``t = 0`` and where the mask is false."""

        def shifted(s: Sequences) -> tuple[Tensor]:
            before = torch.nn.functional.pad(self.module(s.tokens, s.length)[:, :-1], (1, 0))
            return (torch.where(s.mask, before, torch.zeros_like(before)),)

        return self._run(seqs, shifted)[0]

    def scores(self, seqs: Sequences) -> Tensor:
        """``[B]``, read at the last real token."""

        def last(s: Sequences) -> tuple[Tensor]:
            return (self.module(s.tokens, s.length).gather(1, s.length[:, None] - 1),)

        return self._run(seqs, last)[0][:, 0]

    def _run(self, seqs: Sequences, forward: Callable[[Sequences], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if torch.is_grad_enabled():
            return forward(seqs)
        out: tuple[Tensor, ...] = ()
        passes = micro_batches(seqs.length, self.micro_tokens, self.micro_batch, self.packed)
        together = max(self.in_step.gather(len(passes))) if self.in_step else len(passes)
        for rows in passes:
            parts = forward(seqs[rows].to(self.device))
            out = out or tuple(torch.zeros_like(seqs.tokens, dtype=part.dtype) for part in parts)
            for whole, part in zip(out, parts, strict=True):
                whole[rows, : part.shape[1]] = part.to(whole.device)
        for _ in range(together - len(passes)):
            forward(_NOTHING.to(self.device))
        return out or (torch.zeros_like(seqs.tokens, dtype=torch.float32),) * 2


_NOTHING = Sequences(torch.zeros(1, 2, dtype=torch.long), torch.full((1,), 2), torch.zeros(1, 2, dtype=torch.bool))
"""A row without a token of the policy's."""


@dataclass
class RunContext:
    """The `Context` of a run."""

    algorithm: str
    handles: Mapping[Role, Any]
    ranks: Ranks
    temperature: float
    single_update: bool
    exact_rollouts: bool
    max_completion: int
    step: int = 0

    @property
    def policy(self) -> Any:
        """The trained policy."""
        return self._role("policy")

    @property
    def reference(self) -> Any:
        """The policy as the run began."""
        return self._role("reference")

    @property
    def critic(self) -> Any:
        """The value model."""
        return self._role("critic")

    @property
    def reward(self) -> Any:
        """The reward model in training."""
        return self._role("reward")

    def all_sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""
        return self.ranks.sum(tensor)

    def _role(self, role: Role) -> Any:
        if role not in self.handles:
            raise AttributeError(f"algorithm '{self.algorithm}' uses ctx.{role} but its Needs do not declare '{role}'")
        return self.handles[role]
