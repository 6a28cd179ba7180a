"""Proximal policy optimisation for language models, arXiv 1707.06347, with a critic and GAE (1506.02438).

Choices where papers differ: the KL to the reference is taken from the sampled tokens (k1, in the reward, by default);
advantages are whitened over the global batch; policy and critic have their own optimizers, so there is no value
coefficient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from rlx import ops
from rlx.ops import Aggregation, KLEstimator
from rlx_sdk import Algorithm, Batch, Config, Context, Loss, Mean, Metric, Needs, Role, Rollouts, Sequences, Sum

if TYPE_CHECKING:
    from torch import Tensor


class KLConfig(Config):
    """The pull back to the reference."""

    coef: float = Field(0.01, ge=0)
    """Its strength; 0 loads no reference model."""
    estimator: KLEstimator = "k1"
    """From one sampled token: log-ratio, half its square, or the low-variance unbiased one."""
    where: Literal["reward", "loss"] = "reward"
    """Subtracted from each token's reward, or added to the loss."""
    target: float | None = Field(None, gt=0)
    """Moves the coefficient towards this KL a completion (arXiv 1909.08593)."""
    horizon: float | None = Field(None, gt=0)
    """Completions over which it moves."""

    @model_validator(mode="after")
    def _acts(self) -> Self:
        if (self.target is None) != (self.horizon is None):
            raise ValueError("target and horizon belong together: give both or neither")
        inert = self.model_fields_set - {"coef"}
        if self.coef == 0 and inert:
            raise ValueError(f"coef is 0, so there is no KL and {', '.join(sorted(inert))} can have no effect")
        return self


class PPOConfig(Config):
    """PPO's options; the defaults are the usual ones for language models."""

    clip_low: float = Field(0.2, gt=0, lt=1)
    """The ratio is clipped at 1 − this."""
    clip_high: float = Field(0.2, gt=0)
    """The ratio is clipped at 1 + this."""
    dual_clip: float | None = Field(None, gt=1)
    """Bounds the loss of bad tokens at this times −advantage."""
    value_clip: float | None = Field(0.2, gt=0)
    """How far a value may move from the old one before the loss stops rewarding it; null for no clipping."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount a token."""
    lam: float = Field(0.95, ge=0, le=1)
    """GAE's λ."""
    kl: KLConfig = KLConfig()
    """The pull back to the reference."""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    whiten_advantages: bool = True
    """Advantages get mean 0 and variance 1 over the batch."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number."""
    critic_warmup: int = Field(0, ge=0)
    """Steps in which only the critic learns."""
    importance_limit: float = Field(2.0, gt=0)
    """Truncates the weights that correct for a sampler that is not exactly the policy."""


def needs(options: PPOConfig, rewards: bool) -> Needs:
    """Rollouts with rewards; the reference only if there is a KL."""
    frozen = frozenset[Role]({"reference"} if options.kl.coef else ())
    # With one update a batch the policy is the old policy: every ratio is 1 and every value is the old one.
    return Needs(data="rollouts", trains=frozenset({"policy", "critic"}), frozen=frozen, rewards=True,
                 several_updates=frozenset({"clip_low", "clip_high", "dual_clip", "value_clip"}))


class PPO(Algorithm[Rollouts]):
    """Rollouts to advantages once, then clipped updates of policy and critic."""

    def __init__(self, options: PPOConfig) -> None:
        """Keep the options; the KL coefficient may move."""
        self.options, self.kl_coef = options, options.kl.coef

    def prepare(self, data: Rollouts, ctx: Context) -> Batch:
        """Old logprobs, KL, values, advantages, returns. Samples that no reward judged are left out."""
        o = self.options
        seqs, scores = data.seqs[data.judged], data.rewards[data.judged]
        rollout_logprobs = seqs.per_token["rollout_logprobs"]
        old_logprobs = rollout_logprobs if ctx.exact_rollouts else ctx.policy.logprobs(seqs)
        rewards = ops.token_rewards(scores, seqs.mask)
        extra: dict[str, Tensor] = {}
        metrics: dict[str, Metric] = {}
        if o.kl.coef:
            extra["ref_logprobs"] = ctx.reference.logprobs(seqs)
            metrics = self._kl_metrics(old_logprobs - extra["ref_logprobs"], seqs.mask)
            if o.kl.where == "reward":
                kl = ops.kl_estimate(old_logprobs, extra["ref_logprobs"], o.kl.estimator)
                rewards = rewards - self.kl_coef * kl * seqs.mask
        if not ctx.exact_rollouts:
            extra["importance"] = ops.truncated_importance(old_logprobs, rollout_logprobs, o.importance_limit)
        values = ctx.critic.values(seqs)
        advantages, returns = ops.gae(rewards, values, seqs.mask, o.gamma, o.lam)
        if o.whiten_advantages:
            advantages = ops.whiten(advantages, seqs.mask, ctx.all_sum)
        seqs = seqs.with_(old_logprobs=old_logprobs, advantages=advantages, old_values=values, returns=returns, **extra)
        weight: dict[Role, Tensor] = {"policy": ops.row_weights(seqs.mask, o.aggregation),
                                      "critic": ops.row_weights(seqs.mask, "token-mean")}
        metrics["completions"] = Sum(len(seqs))
        return Batch({"completion": seqs}, weight, metrics=metrics)

    def _kl_metrics(self, log_ratio: Tensor, mask: Tensor) -> dict[str, Metric]:
        """The KL (k1) a completion and a token, and how often k3 clamped its exponent."""
        total, tokens = ops.masked_sum(log_ratio, mask), mask.sum()
        metrics: dict[str, Metric] = {"kl/mean": Mean(total, len(mask)), "kl/token": Mean(total, tokens),
                                      "kl/coef": Mean(self.kl_coef, 1)}
        if self.options.kl.estimator == "k3":
            beyond = (log_ratio.abs() > ops.LOG_RATIO_LIMIT).float()
            metrics["kl/clamped"] = Mean(ops.masked_sum(beyond, mask), tokens)
        return metrics

    def loss(self, role: Role, rows: Batch, ctx: Context) -> Loss:
        """The clipped objective, or the clipped value error."""
        seqs = rows.sequences["completion"]
        return self._value_loss(seqs, ctx) if role == "critic" else self._policy_loss(seqs, ctx)

    def _policy_loss(self, seqs: Sequences, ctx: Context) -> Loss:
        o, mask, known = self.options, seqs.mask, seqs.per_token
        logprobs, entropy = ctx.policy.logprobs_and_entropy(seqs)
        old_logprobs = logprobs.detach() if ctx.single_update else known["old_logprobs"]
        clipped = ops.policy_loss(logprobs, old_logprobs, known["advantages"], o.clip_low, o.clip_high, o.dual_clip)
        loss = clipped.loss * known["importance"] if "importance" in known else clipped.loss
        if o.entropy_coef:
            loss = loss - o.entropy_coef * entropy
        if o.kl.coef and o.kl.where == "loss":
            loss = loss + self.kl_coef * ops.kl_estimate(logprobs, known["ref_logprobs"], o.kl.estimator)
        tokens = mask.sum()
        return Loss(ops.aggregate_rows(loss, mask, o.aggregation, ctx.max_completion), {
            "policy/clip_fraction": Mean(ops.masked_sum(clipped.clipped.float(), mask), tokens),
            "policy/dual_clip_fraction": Mean(ops.masked_sum(clipped.dual_clipped.float(), mask), tokens),
            "policy/ratio": Mean(ops.masked_sum(clipped.ratio, mask), tokens),
            "policy/entropy": Mean(ops.masked_sum(entropy, mask), tokens),
        })

    def _value_loss(self, seqs: Sequences, ctx: Context) -> Loss:
        known, values = seqs.per_token, ctx.critic.values(seqs)
        loss = ops.value_loss(values, known["old_values"], known["returns"], self.options.value_clip)
        return Loss(ops.aggregate_rows(loss, seqs.mask, "token-mean"),
                    {"critic/value": Mean(ops.masked_sum(values, seqs.mask), seqs.mask.sum()),
                     "critic/return": Mean(ops.masked_sum(known["returns"], seqs.mask), seqs.mask.sum())})

    def trains(self, role: Role, step: int) -> bool:
        """The policy waits for the critic."""
        return role != "policy" or step >= self.options.critic_warmup

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """The KL coefficient moves towards its target."""
        kl = self.options.kl
        if kl.target is not None and kl.horizon is not None and "kl/mean" in metrics:
            self.kl_coef = ops.adapt_kl_coef(self.kl_coef, metrics["kl/mean"], kl.target, kl.horizon,
                                         metrics["completions"])

    def state_dict(self) -> dict[str, Any]:
        """The KL coefficient."""
        return {"kl_coef": self.kl_coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The KL coefficient."""
        self.kl_coef = state["kl_coef"]
