"""What the algorithms that learn from scored samples share: old logprobs, the KL to the reference, the clipped loss.

An algorithm's own file says how scores become advantages, and may say another loss a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from rlx import ops
from rlx.ops import Aggregation, KLEstimator
from rlx_sdk import (
    Algorithm,
    Batch,
    Config,
    Context,
    Loss,
    Mean,
    Metric,
    Role,
    Rollouts,
    Sequences,
    Sum,
    TrainingError,
)

if TYPE_CHECKING:
    from torch import Tensor

    from rlx.ops import PolicyLoss


class KLConfig(Config):
    """The pull back to the reference."""

    coef: float = Field(0.0, ge=0)
    """Its strength; 0 loads no reference model."""
    estimator: KLEstimator = "k1"
    """From one sampled token: log-ratio, half its square, or the low-variance unbiased one."""
    where: Literal["reward", "loss"] = "reward"
    """Subtracted from the reward, or added to the loss; there take k2 or k3, as the gradient of k1 is 0 on average."""
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


class ImportanceConfig(Config):
    """Weights that correct for samples that were not drawn from exactly the trainer's policy."""

    level: Literal["token", "sequence"] | None = "token"
    """One weight a token or a completion; null for none."""
    limit: float = Field(2.0, gt=0)
    """The largest weight."""
    beyond: Literal["truncate", "mask"] = "truncate"
    """A weight beyond the limit is cut to it, or 0: then the token, or the completion, teaches nothing."""
    max_logprob_diff: float = Field(0.5, gt=0)
    """Mean difference of logprobs a token at which the run stops: the samples are of something else than the policy."""


class PolicyConfig(Config):
    """Options of a clipped policy gradient."""

    clip_low: float = Field(0.2, gt=0, le=1)
    """The ratio is clipped at 1 − this."""
    clip_high: float = Field(0.2, gt=0)
    """The ratio is clipped at 1 + this."""
    kl: KLConfig = KLConfig()
    """The pull back to the reference."""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number."""
    importance: ImportanceConfig = ImportanceConfig()
    """Corrects for a rollout backend that is not exact."""


class DualClipConfig(PolicyConfig):
    """With a bound on the loss of bad tokens."""

    dual_clip: float | None = Field(None, gt=1)
    """Bounds the loss of bad tokens at this times −advantage (arXiv 1912.09729)."""


CLIPS = frozenset({"clip_low", "clip_high"})


class PolicyGradient(Algorithm[Rollouts]):
    """Rollouts to advantages once, then clipped updates. A subclass prepares the advantages."""

    def __init__(self, options: Any) -> None:
        """Keep the options; the KL coefficient may move."""
        self.options, self.kl_coef = options, options.kl.coef

    def token_loss(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLoss:
        """The loss a token: PPO's clipped one."""
        o = self.options
        return ops.policy_loss(logprobs, old_logprobs, advantages, o.clip_low, o.clip_high,
                               getattr(o, "dual_clip", None))

    def batch(self, seqs: Sequences, metrics: Mapping[str, Metric], **weight: Tensor) -> Batch:
        """Prepared completions as a batch, weighted as the aggregation says."""
        weights: dict[Any, Tensor] = {"policy": ops.row_weights(seqs.mask, self.options.aggregation), **weight}
        return Batch({"completion": seqs}, weights, metrics={**metrics, "completions": Sum(len(seqs))})

    def start(self, seqs: Sequences, ctx: Context) -> tuple[Sequences, Tensor, dict[str, Metric]]:
        """Old and reference logprobs, weights for an inexact sampler; the reward's KL part ``[B, T]``; metrics.

        Where the batch makes one update, that update's own pass is the old policy's: it is not made twice.
        """
        kl, known = self.options.kl, seqs.per_token
        in_reward = kl.coef > 0 and kl.where == "reward"
        if kl.coef:
            seqs = seqs.with_(ref_logprobs=ctx.reference.logprobs(seqs))
        if ctx.exact_rollouts and "rollout_logprobs" in known:
            old_logprobs = known["rollout_logprobs"]
        elif ctx.single_update and not in_reward:
            return seqs, seqs.mask.float() * 0, {}
        else:
            old_logprobs = ctx.policy.logprobs(seqs)
        seqs = seqs.with_(old_logprobs=old_logprobs)
        weights, metrics = self._beside(old_logprobs, seqs, ctx)
        penalty = old_logprobs.new_zeros(old_logprobs.shape)
        if in_reward:
            penalty = ops.kl_estimate(old_logprobs, seqs.per_token["ref_logprobs"], kl.estimator)
        penalty = self.kl_coef * penalty * seqs.mask
        return seqs.with_(**weights), penalty, metrics

    def _beside(self, old_logprobs: Tensor, seqs: Sequences,
                ctx: Context) -> tuple[dict[str, Tensor], dict[str, Metric]]:
        """The policy of the batch beside its sampler and the reference: importance weights, metrics."""
        known = seqs.per_token
        weights, metrics = {}, {}  # type: dict[str, Tensor], dict[str, Metric]
        if "rollout_logprobs" in known and not ctx.exact_rollouts:
            weights, metrics = self._importance(old_logprobs, known["rollout_logprobs"], seqs.mask)
        if "ref_logprobs" in known:
            metrics |= self._kl_metrics(old_logprobs - known["ref_logprobs"], seqs.mask)
        return weights, metrics

    def _importance(self, logprobs: Tensor, rollout_logprobs: Tensor,
                    mask: Tensor) -> tuple[dict[str, Tensor], dict[str, Metric]]:
        """Weights, and how far the sampler is from the policy: mean ``|Δ|`` and KL (k3) a token."""
        o, log_ratio, tokens = self.options.importance, logprobs - rollout_logprobs, mask.sum()
        kl = ops.masked_sum(ops.kl_estimate(rollout_logprobs, logprobs, "k3"), mask)
        metrics: dict[str, Metric] = {"rollout/logprob_diff": Mean(ops.masked_sum(log_ratio.abs(), mask), tokens),
                                      "rollout/kl": Mean(kl, tokens)}
        if o.level is None:
            return {}, metrics
        weights, over = ops.importance_weights(logprobs, rollout_logprobs, mask, o.limit, o.level, o.beyond)
        return {"importance": weights}, metrics | {"rollout/is_weight": Mean(ops.masked_sum(weights, mask), tokens),
                                   "rollout/is_beyond": Mean(ops.masked_sum(over.float(), mask), tokens)}

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
        """The clipped objective, with entropy and KL where they are asked for."""
        seqs, o = rows.sequences["completion"], self.options
        mask, known = seqs.mask, seqs.per_token
        logprobs, entropy = ctx.policy.logprobs_and_entropy(seqs)
        old_logprobs = logprobs.detach() if ctx.single_update else known["old_logprobs"]
        clipped = self.token_loss(logprobs, old_logprobs, known["advantages"], mask)
        new = "old_logprobs" not in known  # they are this very pass's
        beside = self._beside(old_logprobs, seqs, ctx) if new else ({}, {})
        loss = clipped.loss * {**known, **beside[0]}.get("importance", 1.0)
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
            **beside[1],
        }, {"old_logprobs": old_logprobs} if new else {})

    def check(self, metrics: Mapping[str, float]) -> None:
        """Whether the rollouts' own logprobs say that something else than the policy was sampled."""
        if (found := metrics.get("rollout/logprob_diff", 0.0)) > self.options.importance.max_logprob_diff:
            raise TrainingError(f"the logprobs of the sampled tokens differ by {found:.2f} a token from the policy's "
                                f"(algo.importance.max_logprob_diff = {self.options.importance.max_logprob_diff}): the "
                                "rollout backend samples another model, precision or temperature. Try --rollout hf.")

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """The KL coefficient moves towards its target, unless the step's KL is no number."""
        kl, measured = self.options.kl, metrics.get("kl/mean", math.nan)
        if kl.target is not None and kl.horizon is not None and math.isfinite(measured):
            self.kl_coef = ops.adapt_kl_coef(self.kl_coef, measured, kl.target, kl.horizon, metrics["completions"])

    def state_dict(self) -> dict[str, Any]:
        """The KL coefficient."""
        return {"kl_coef": self.kl_coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The KL coefficient."""
        self.kl_coef = state["kl_coef"]
