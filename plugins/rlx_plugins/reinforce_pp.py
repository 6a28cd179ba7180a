"""REINFORCE++, arXiv 2501.03262: no critic and no groups; returns of tokens, whitened over the whole batch.

When to use: one sample a prompt and no critic: many different prompts, with rewards of a similar size.
"""

from __future__ import annotations

from pydantic import Field

from rlx import ops
from rlx_plugins.groups import group_needs
from rlx_plugins.policy_gradient import KLConfig, PolicyConfig, PolicyGradient
from rlx_sdk import Batch, Context, Needs, Rollouts


class ReinforceKLConfig(KLConfig):
    """The pull back to the reference, a part of each token's reward."""

    coef: float = Field(0.01, ge=0)
    """Its strength; 0 loads no reference model."""


class ReinforcePPConfig(PolicyConfig):
    """REINFORCE++'s options."""

    kl: ReinforceKLConfig = ReinforceKLConfig()
    """The pull back to the reference."""


def needs(options: ReinforcePPConfig, rewards: bool) -> Needs:
    """Scored completions, one a prompt will do."""
    return group_needs(options, rewards, min_group=1, group_size=1, token_rewards=True)


class ReinforcePP(PolicyGradient):
    """``A_t = Σ_{s ≥ t} r_s``, the score at the last token and ``−coef·KL`` at each, whitened."""

    def prepare(self, data: Rollouts, ctx: Context) -> Batch:
        """Samples that no reward judged are left out."""
        data = data[data.judged]
        seqs, kl, metrics = self.start(data.seqs, ctx)
        rewards = ops.token_rewards(data.rewards, seqs.mask) - kl
        if "token_rewards" in seqs.per_token:
            rewards = rewards + seqs.per_token["token_rewards"]
        advantages = ops.whiten(ops.returns_to_go(rewards, seqs.mask), seqs.mask, ctx.all_sum)
        return self.batch(seqs.with_(advantages=advantages), metrics)
