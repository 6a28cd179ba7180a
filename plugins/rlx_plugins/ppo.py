"""Proximal policy optimisation for language models, arXiv 1707.06347, with a critic and GAE (1506.02438).

Choices where papers differ: the KL to the reference is taken from the sampled tokens (k1, in the reward, by default);
advantages are whitened over the global batch; policy and critic have their own optimizers, so there is no value
coefficient.

When to use: any reward that can be computed, also one of single steps; a critic costs memory and learns most from a
sample.
"""

from __future__ import annotations

from pydantic import Field

from rlx import ops
from rlx_plugins.policy_gradient import CLIPS, DualClipConfig, KLConfig, PolicyGradient
from rlx_sdk import Batch, Context, Loss, Mean, Needs, Role, Rollouts, Sequences


class PPOKLConfig(KLConfig):
    """The pull back to the reference."""

    coef: float = Field(0.01, ge=0)
    """Its strength; 0 loads no reference model."""


class PPOConfig(DualClipConfig):
    """PPO's options; the defaults are the usual ones for language models."""

    clip_low: float = Field(0.2, gt=0, lt=1)
    """The ratio is clipped at 1 − this."""
    value_clip: float | None = Field(0.2, gt=0)
    """How far a value may move from the old one before the loss stops rewarding it; null for no clipping."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount a token."""
    lam: float = Field(0.95, ge=0, le=1)
    """GAE's λ."""
    kl: PPOKLConfig = PPOKLConfig()
    """The pull back to the reference."""
    whiten_advantages: bool = True
    """Advantages get mean 0 and variance 1 over the batch."""
    critic_warmup: int = Field(0, ge=0)
    """Steps in which only the critic learns."""


def needs(options: PPOConfig, rewards: bool) -> Needs:
    """Rollouts with rewards; the reference only if there is a KL."""
    frozen = frozenset[Role]({"reference"} if options.kl.coef else ())
    # With one update a batch the policy is the old policy: every ratio is 1 and every value is the old one.
    return Needs(data="rollouts", trains=frozenset({"policy", "critic"}), frozen=frozen, rewards=True,
                 token_rewards=True, several_updates=CLIPS | {"dual_clip", "value_clip"})


class PPO(PolicyGradient):
    """``max(−A·ρ, −A·clip(ρ))`` a token, ρ = exp(logprob − old), A from GAE; ``½·(V − R)²``, clipped, of the critic."""

    options: PPOConfig

    def prepare(self, data: Rollouts, ctx: Context) -> Batch:
        """Old logprobs, KL, values, advantages, returns. Samples that no reward judged are left out."""
        o, data = self.options, data[data.judged]
        seqs, kl, metrics = self.start(data.seqs, ctx)
        rewards = ops.token_rewards(data.rewards, seqs.mask) - kl
        if "token_rewards" in seqs.per_token:
            rewards = rewards + seqs.per_token["token_rewards"]
        values = ctx.critic.values(seqs)
        advantages, returns = ops.gae(rewards, values, seqs.mask, o.gamma, o.lam)
        if o.whiten_advantages:
            advantages = ops.whiten(advantages, seqs.mask, ctx.all_sum)
        seqs = seqs.with_(advantages=advantages, old_values=values, returns=returns)
        return self.batch(seqs, metrics, critic=ops.row_weights(seqs.mask, "token-mean"))

    def loss(self, role: Role, rows: Batch, ctx: Context) -> Loss:
        """The clipped objective, or the clipped value error."""
        if role == "critic":
            return self._value_loss(rows.sequences["completion"], ctx)
        return super().loss(role, rows, ctx)

    def _value_loss(self, seqs: Sequences, ctx: Context) -> Loss:
        known, values = seqs.per_token, ctx.critic.values(seqs)
        loss = ops.value_loss(values, known["old_values"], known["returns"], self.options.value_clip)
        return Loss(ops.aggregate_rows(loss, seqs.mask, "token-mean"),
                    {"critic/value": Mean(ops.masked_sum(values, seqs.mask), seqs.mask.sum()),
                     "critic/return": Mean(ops.masked_sum(known["returns"], seqs.mask), seqs.mask.sum())})

    def trains(self, role: Role, step: int) -> bool:
        """The policy waits for the critic."""
        return role != "policy" or step >= self.options.critic_warmup
