"""Group sequence policy optimisation, arXiv 2507.18071: GRPO with one length-normalised ratio a completion.

When to use: mixture-of-experts models and long completions, where ratios of single tokens are noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rlx import ops
from rlx_plugins.groups import group_needs
from rlx_plugins.grpo import GRPO, GroupConfig
from rlx_sdk import Needs

if TYPE_CHECKING:
    from torch import Tensor

    from rlx.ops import PolicyLoss


class GSPOConfig(GroupConfig):
    """GSPO's options; ratios of sequences are much nearer to 1 than those of tokens."""

    clip_low: float = Field(3e-4, gt=0, le=1)
    """The ratio is clipped at 1 − this."""
    clip_high: float = Field(4e-4, gt=0)
    """The ratio is clipped at 1 + this."""


def needs(options: GSPOConfig, rewards: bool) -> Needs:
    """Groups of scored completions."""
    return group_needs(options, rewards)


class GSPO(GRPO):
    """``max(−A·s, −A·clip(s))``, s = exp(mean of logprobs − old logprobs)."""

    def token_loss(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLoss:
        """The row's loss at each of its tokens."""
        o = self.options
        return ops.sequence_policy_loss(logprobs, old_logprobs, advantages, mask, o.clip_low, o.clip_high)
