"""Group relative policy optimisation, arXiv 2402.03300: no critic; a prompt's completions are each other's baseline.

When to use: rewards that can be checked (mathematics, code, formats), without the memory of a critic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rlx import ops
from rlx.ops import Aggregation
from rlx_plugins.groups import GroupPolicyGradient, LossKLConfig, group_needs
from rlx_plugins.policy_gradient import CLIPS, DualClipConfig, PolicyConfig
from rlx_sdk import Context, Needs, Rollouts

if TYPE_CHECKING:
    from torch import Tensor


class GroupConfig(PolicyConfig):
    """What GRPO and its descendants have in common."""

    kl: LossKLConfig = LossKLConfig()
    """The pull back to the reference."""
    aggregation: Aggregation = "seq-mean-token-mean"
    """How token losses become one number."""
    std_eps: float = Field(1e-6, gt=0)
    """Added to the standard deviation of a group's rewards, which divides by n − 1."""


class GRPOConfig(GroupConfig, DualClipConfig):
    """GRPO's options. Without a KL, as is now usual; the paper's is ``kl.coef = 0.04``."""


def needs(options: GRPOConfig, rewards: bool) -> Needs:
    """Groups of scored completions."""
    return group_needs(options, rewards, CLIPS | {"dual_clip"})


class GRPO(GroupPolicyGradient):
    """``A = (r − mean) / (std + eps)`` of the group, for every token of a completion."""

    options: GroupConfig

    def advantages(self, scores: Tensor, data: Rollouts, ctx: Context) -> Tensor:
        """``[B]``."""
        return ops.normalised(scores, data.group, self.options.std_eps)
