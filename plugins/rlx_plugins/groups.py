"""What the algorithms that compare a prompt's completions with each other share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from rlx import ops
from rlx.ops import KLEstimator
from rlx_plugins.policy_gradient import CLIPS, KLConfig, PolicyConfig, PolicyGradient
from rlx_sdk import Batch, Context, Mean, Metric, Needs, Role, Rollouts

if TYPE_CHECKING:
    from torch import Tensor


class LossKLConfig(KLConfig):
    """The pull back to the reference, by default as DeepSeekMath has it: k3 in the loss."""

    estimator: KLEstimator = "k3"
    """From one sampled token: log-ratio, half its square, or the low-variance unbiased one."""
    where: Literal["reward", "loss"] = "loss"
    """Subtracted from the reward, or added to the loss; there take k2 or k3, as the gradient of k1 is 0 on average."""


def group_needs(options: PolicyConfig, rewards: bool, clips: frozenset[str] = CLIPS, **more: Any) -> Needs:
    """Several scored completions a prompt; the reference only if there is a KL."""
    frozen = frozenset[Role]({"reference"} if options.kl.coef else ())
    return Needs(data="rollouts", trains=frozenset({"policy"}), frozen=frozen, rewards=True,
                 **{"min_group": 2, "group_size": 8, "several_updates": clips, **more})


class GroupPolicyGradient(PolicyGradient):
    """A prompt's completions are compared with each other. A subclass says how."""

    @abstractmethod
    def advantages(self, scores: Tensor, data: Rollouts, ctx: Context) -> Tensor:
        """``[B]`` or ``[B, T]`` from ``[B]`` scores, a KL in the reward already subtracted."""

    def prepare(self, data: Rollouts, ctx: Context) -> Batch:
        """Scores to advantages. Samples that no reward judged, and those left alone by that, are left out."""
        data = data[data.judged]
        alone = ops.group_sizes(data.group) == 1
        dead = ops.dead_groups(data.rewards, data.group)
        share = 1 / ops.group_sizes(data.group)  # each group counts once
        metrics: dict[str, Metric] = {"groups/dead": Mean((dead & ~alone).mul(share).sum(), share.sum()),
                                      "groups/single": Mean(alone.sum(), share.sum())}
        data = data[~alone]
        seqs, kl, measured = self.start(data.seqs, ctx)
        scores = data.rewards - ops.masked_sum(kl, seqs.mask, dim=1)
        advantages = self.advantages(scores, data, ctx)
        wide = advantages if advantages.dim() == 2 else advantages[:, None].expand(seqs.mask.shape)
        return self.batch(seqs.with_(advantages=wide.to(kl.dtype)), metrics | measured)
