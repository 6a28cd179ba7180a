"""DAPO, arXiv 2503.14476: GRPO with a wider upper clip, token-mean, no dead groups, and a soft limit of length.

Groups whose task rewards are all equal are sampled anew from further prompts, at most ``rounds`` times a step; the
penalty of long completions comes after that, so that it does not keep a group alive.

When to use: long reasoning with rewards of 0 and 1, where many prompts are always or never solved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from pydantic import Field, model_validator

from rlx import ops
from rlx.ops import Aggregation
from rlx_plugins.groups import group_needs
from rlx_plugins.grpo import GRPO, GRPOConfig
from rlx_plugins.policy_gradient import CLIPS
from rlx_sdk import Batch, Context, Group, Mean, Needs, Rollouts


class DAPOConfig(GRPOConfig):
    """DAPO's options."""

    clip_high: float = Field(0.28, gt=0)
    """The ratio is clipped at 1 + this."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number."""
    rounds: int = Field(4, ge=1)
    """How often a step samples prompts at most, until enough groups have something to learn from."""
    overlong_margin: int | None = Field(None, ge=1)
    """Tokens before ``rollout.max_completion`` over which the penalty falls to −1; null for no penalty."""
    overlong_coef: float = Field(1.0, gt=0)
    """The penalty is multiplied by it."""

    @model_validator(mode="after")
    def _acts(self) -> Self:
        if self.overlong_margin is None and "overlong_coef" in self.model_fields_set:
            raise ValueError("overlong_coef can have no effect without overlong_margin: give both, or leave it out")
        return self


def needs(options: DAPOConfig, rewards: bool) -> Needs:
    """Groups of scored completions, sampled in rounds."""
    return group_needs(options, rewards, CLIPS | {"dual_clip"}, rounds=options.rounds,
                       min_completion=options.overlong_margin or 1)


class DAPO(GRPO):
    """``A = (r − mean) / (std + eps)`` of the group, r with the penalty of length; ``clip(ρ, 1 − 0.2, 1 + 0.28)``."""

    options: DAPOConfig

    def keep(self, group: Group) -> bool:
        """Whether the rewards differ."""
        low, high = min(group.rewards, default=0.0), max(group.rewards, default=0.0)
        return high - low > 1e-8 * max(abs(low), abs(high))

    def prepare(self, data: Rollouts, ctx: Context) -> Batch:
        """Add the penalty, then as GRPO."""
        o, lengths = self.options, data.seqs.mask.sum(1)
        if o.overlong_margin is None:
            return super().prepare(data, ctx)
        penalty = o.overlong_coef * ops.overlong_penalty(lengths, ctx.max_completion, o.overlong_margin)
        batch = super().prepare(replace(data, rewards=data.rewards + penalty), ctx)
        measured = {"reward/overlong": Mean(penalty.sum(), len(penalty))}
        return replace(batch, metrics={**batch.metrics, **measured})
