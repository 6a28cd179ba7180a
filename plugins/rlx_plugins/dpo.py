"""Direct preference optimisation, arXiv 2305.18290.

From given pairs. With rewards given it runs on the policy's own samples instead: of each prompt's completions the best
and the worst make the pair (as in arXiv 2402.04792, online feedback); prompts whose completions all score alike make
none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rlx import ops
from rlx_sdk import (
    Algorithm,
    Batch,
    Config,
    Context,
    LanguageModel,
    Loss,
    Mean,
    Needs,
    Pairs,
    Role,
    Rollouts,
    Sequences,
    Sum,
)

if TYPE_CHECKING:
    from torch import Tensor

TIE = 1e-4
"""Nats below which two sides score alike: float32 noise of summed logprobs. A tie is not a win."""


class DPOConfig(Config):
    """The strength of the preference."""

    beta: float = Field(0.1, gt=0)
    """How strongly the policy is held to the reference."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs assumed to be labelled the wrong way round (cDPO)."""


def needs(options: DPOConfig, rewards: bool) -> Needs:
    """Pairs; or, with rewards, at least two completions a prompt to make them from."""
    return Needs(data="rollouts" if rewards else "pairs", min_group=2 if rewards else 1, rewards=rewards,
                 trains=frozenset({"policy"}), frozen=frozenset({"reference"}))


class DPO(Algorithm[Rollouts | Pairs]):
    """``−log σ(β·h)``, h = log-ratio of chosen − log-ratio of rejected."""

    def __init__(self, options: DPOConfig) -> None:
        """Keep the options."""
        self.options = options

    def prepare(self, data: Rollouts | Pairs, ctx: Context) -> Batch:
        """The reference's logprobs of both sides, summed over the answer."""
        chosen, rejected = best_and_worst(data) if isinstance(data, Rollouts) else (data.chosen, data.rejected)
        reference = {f"ref_{name}": _sum_logprobs(ctx.reference, side)
                     for name, side in (("chosen", chosen), ("rejected", rejected))}
        ones = reference["ref_chosen"].new_ones(len(chosen))
        return Batch({"chosen": chosen, "rejected": rejected}, {"policy": ones}, reference,
                     {"pairs": Sum(len(chosen))})

    def loss(self, role: Role, rows: Batch, ctx: Context) -> Loss:
        """One loss a pair."""
        chosen = _sum_logprobs(ctx.policy, rows.sequences["chosen"])
        rejected = _sum_logprobs(ctx.policy, rows.sequences["rejected"])
        ref_chosen, ref_rejected = rows.values["ref_chosen"], rows.values["ref_rejected"]
        h = ops.dpo_logits(chosen, rejected, ref_chosen, ref_rejected)
        beta, n = self.options.beta, len(h)
        return Loss(ops.dpo_sigmoid_loss(h, beta, self.options.label_smoothing), {
            "rewards/chosen": Mean(beta * (chosen - ref_chosen).sum(), n),
            "rewards/rejected": Mean(beta * (rejected - ref_rejected).sum(), n),
            "rewards/margin": Mean(beta * h.sum(), n),
            "rewards/accuracy": Mean((h > TIE).sum(), n),
            "logprobs/chosen": Mean(chosen.sum(), n),
            "logprobs/rejected": Mean(rejected.sum(), n),
        })


def _sum_logprobs(model: LanguageModel, seqs: Sequences) -> Tensor:
    return ops.masked_sum(model.logprobs(seqs), seqs.mask, dim=1)


def best_and_worst(rollouts: Rollouts) -> tuple[Sequences, Sequences]:
    """The best and the worst judged completion of each prompt; none of a prompt whose completions score alike."""
    best, worst = [], []
    for group in sorted(set(rollouts.group.tolist())):
        rows = ((rollouts.group == group) & rollouts.judged).nonzero().flatten()
        if len(rows) and rollouts.rewards[rows].max() > rollouts.rewards[rows].min():
            best.append(rows[rollouts.rewards[rows].argmax()])
            worst.append(rows[rollouts.rewards[rows].argmin()])
    return rollouts.seqs[rollouts.group.new_tensor(best)], rollouts.seqs[rollouts.group.new_tensor(worst)]
