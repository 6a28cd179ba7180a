"""Dr. GRPO, arXiv 2503.20783: GRPO without its two biases, the division by the group's std and by the length.

When to use: as GRPO, where answers grow longer without growing better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import ops
from rlx.ops import Aggregation
from rlx_plugins.groups import GroupPolicyGradient, LossKLConfig, group_needs
from rlx_plugins.policy_gradient import PolicyConfig
from rlx_sdk import Context, Needs, Rollouts

if TYPE_CHECKING:
    from torch import Tensor


class DrGRPOConfig(PolicyConfig):
    """Dr. GRPO's options; the sum of a completion's losses is divided by ``rollout.max_completion``."""

    kl: LossKLConfig = LossKLConfig()
    """The pull back to the reference."""
    aggregation: Aggregation = "seq-mean-token-sum-norm"
    """How token losses become one number."""


def needs(options: DrGRPOConfig, rewards: bool) -> Needs:
    """Groups of scored completions."""
    return group_needs(options, rewards)


class DrGRPO(GroupPolicyGradient):
    """``A = r − mean`` of the group."""

    def advantages(self, scores: Tensor, data: Rollouts, ctx: Context) -> Tensor:
        """``[B]``."""
        return ops.centred(scores, data.group)
