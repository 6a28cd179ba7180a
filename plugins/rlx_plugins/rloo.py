"""REINFORCE leave-one-out, arXiv 2402.14740: the baseline of a completion is the mean reward of the others.

The KL, if any, is part of a completion's reward, as in the paper.

When to use: a reward model or a rule, few samples a prompt, and hardly anything to tune.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import ops
from rlx_plugins.groups import GroupPolicyGradient, group_needs
from rlx_plugins.policy_gradient import PolicyConfig
from rlx_sdk import Context, Needs, Rollouts

if TYPE_CHECKING:
    from torch import Tensor


class RLOOConfig(PolicyConfig):
    """RLOO's options."""


def needs(options: RLOOConfig, rewards: bool) -> Needs:
    """Groups of scored completions."""
    return group_needs(options, rewards, group_size=4)


class RLOO(GroupPolicyGradient):
    """``A = r − mean of the others``."""

    def advantages(self, scores: Tensor, data: Rollouts, ctx: Context) -> Tensor:
        """``[B]``."""
        return ops.leave_one_out(scores, data.group)
