"""CISPO, arXiv 2506.13585: GRPO in which the clipped ratio only weighs, so that no token loses its gradient.

When to use: long reasoning in which rare, decisive tokens are clipped away by GRPO.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rlx import ops
from rlx.ops import Aggregation
from rlx_plugins.groups import group_needs
from rlx_plugins.grpo import GRPO, GroupConfig
from rlx_sdk import Needs

if TYPE_CHECKING:
    from torch import Tensor

    from rlx.ops import PolicyLoss


class CISPOConfig(GroupConfig):
    """CISPO's options; without a lower bound, as in the paper."""

    clip_low: float = Field(1.0, gt=0, le=1)
    """The ratio is clipped at 1 − this."""
    clip_high: float = Field(0.28, gt=0)
    """The ratio is clipped at 1 + this."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number."""


def needs(options: CISPOConfig, rewards: bool) -> Needs:
    """Groups of scored completions."""
    return group_needs(options, rewards)


class CISPO(GRPO):
    """``−sg(clip(ρ))·A·log π`` a token."""

    def token_loss(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLoss:
        """The weighted log-likelihood."""
        o = self.options
        return ops.weighted_policy_loss(logprobs, old_logprobs, advantages, o.clip_low, o.clip_high)
