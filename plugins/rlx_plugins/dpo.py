"""Direct preference optimisation, arXiv 2305.18290, and losses of its family.

From given pairs. With rewards given it runs on the policy's own samples instead: of each prompt's completions the best
and the worst make the pair (as in arXiv 2402.04792, online feedback); prompts whose completions all score alike make
none.

When to use: preference pairs are there, or a reward and no wish for a critic; cheap, and stable.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from rlx import ops
from rlx_plugins.pairs import Side, best_and_worst, pair_batch, preference_metrics, sides
from rlx_sdk import Algorithm, Batch, Config, Context, Loss, Mean, Metric, Needs, Pairs, Role, Rollouts, Sum

if TYPE_CHECKING:
    from torch import Tensor


class DPOConfig(Config):
    """The loss, and the strength of the preference."""

    beta: float = Field(0.1, gt=0)
    """How strongly the policy is held to the reference."""
    loss: Literal["sigmoid", "hinge", "ipo", "robust"] = "sigmoid"
    """DPO's; SLiC's margin; IPO's square, of mean logprobs a token as its authors asked; DPO for noisy labels."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs assumed to be labelled the wrong way round (cDPO, robust)."""
    length_normalised: bool = False
    """Mean logprobs a token instead of their sums."""
    sft_coef: float = Field(0.0, ge=0)
    """Weight of the chosen answer's mean negative log-likelihood (RPO, arXiv 2404.19733)."""
    reference_free: bool = False
    """Compare with no reference."""

    @model_validator(mode="after")
    def _acts(self) -> Self:
        if self.label_smoothing and self.loss in ("hinge", "ipo"):
            raise ValueError(f"label_smoothing can have no effect with loss = {self.loss}")
        if self.loss == "robust" and not self.label_smoothing:
            raise ValueError("loss = robust corrects for the share label_smoothing of wrong labels: give it, or leave "
                             "loss out")
        if self.loss == "ipo" and "length_normalised" in self.model_fields_set and not self.length_normalised:
            raise ValueError("loss = ipo is defined on means over tokens; leave length_normalised out")
        return self


def needs(options: DPOConfig, rewards: bool) -> Needs:
    """Pairs; or, with rewards, at least two completions a prompt to make them from."""
    frozen = frozenset[Role](() if options.reference_free else {"reference"})
    return Needs(data="rollouts" if rewards else "pairs", min_group=2 if rewards else 1, rewards=rewards,
                 row_per_prompt=rewards, trains=frozenset({"policy"}), frozen=frozen)


class DPO(Algorithm[Rollouts | Pairs]):
    """``−log σ(β·h)``, h = log-ratio of chosen − log-ratio of rejected."""

    def __init__(self, options: DPOConfig) -> None:
        """Keep the options."""
        self.options = options
        self.mean = options.length_normalised or options.loss == "ipo"

    def prepare(self, data: Rollouts | Pairs, ctx: Context) -> Batch:
        """The reference's logprobs of both sides, summed over the answer."""
        known: dict[str, Tensor] = {}
        tied: dict[str, Metric] = {}
        if isinstance(data, Rollouts):
            chosen, rejected = best_and_worst(data)
            tied["pairs/tied"] = Sum(len(set(data.group.tolist())) - len(chosen))
        else:
            chosen, rejected = data.chosen, data.rejected
        if not self.options.reference_free:
            known["ref_chosen"], known["ref_rejected"] = map(self._of, sides(ctx.reference, chosen, rejected))
        batch = pair_batch(chosen, rejected, **known)
        return replace(batch, metrics={**batch.metrics, **tied})

    def loss(self, role: Role, rows: Batch, ctx: Context) -> Loss:
        """One loss a pair."""
        o, values = self.options, rows.values
        chosen, rejected = sides(ctx.policy, rows.sequences["chosen"], rows.sequences["rejected"])
        ref_chosen, ref_rejected = (values.get(f"ref_{name}", chosen.total.new_zeros(len(rows)))
                                    for name in ("chosen", "rejected"))
        h = ops.dpo_logits(self._of(chosen), self._of(rejected), ref_chosen, ref_rejected)
        loss = self._pair_loss(h)
        metrics = preference_metrics(self._of(chosen) - ref_chosen, self._of(rejected) - ref_rejected, o.beta)
        if o.sft_coef:
            loss = loss - o.sft_coef * chosen.mean
            metrics["loss/sft"] = Mean(-chosen.mean.sum(), len(h))
        return Loss(loss, {**metrics, "logprobs/chosen": Mean(chosen.total.sum(), len(h)),
                           "logprobs/rejected": Mean(rejected.total.sum(), len(h))})

    def _pair_loss(self, h: Tensor) -> Tensor:
        o = self.options
        if o.loss == "hinge":
            return ops.dpo_hinge_loss(h, o.beta)
        if o.loss == "ipo":
            return ops.dpo_ipo_loss(h, o.beta)
        if o.loss == "robust":
            return ops.dpo_robust_loss(h, o.beta, o.label_smoothing)
        return ops.dpo_sigmoid_loss(h, o.beta, o.label_smoothing)

    def _of(self, answer: Side) -> Tensor:
        return answer.mean if self.mean else answer.total
