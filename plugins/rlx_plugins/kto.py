"""Kahneman-Tversky optimisation, arXiv 2402.01306: answers that are good or bad by themselves, without pairs.

The reference point z0 is the mean log-ratio of the step's own answers, not below 0, and fixed while a step lasts. The
paper takes it from mismatched prompts and answers; this one does not depend on how a batch is split.

When to use: thumbs up and down on single answers instead of pairs.
"""

from __future__ import annotations

from pydantic import Field

from rlx import ops
from rlx_plugins.pairs import side
from rlx_sdk import Algorithm, Batch, Config, Context, Labelled, Loss, Mean, Metric, Needs, Role


class KTOConfig(Config):
    """KTO's options."""

    beta: float = Field(0.1, gt=0)
    """How strongly the policy is held to the reference."""
    desirable_weight: float = Field(1.0, gt=0)
    """Weight of good answers."""
    undesirable_weight: float = Field(1.0, gt=0)
    """Weight of bad answers."""


def needs(options: KTOConfig, rewards: bool) -> Needs:
    """Labelled answers, and a reference."""
    return Needs(data="labelled", trains=frozenset({"policy"}), frozen=frozenset({"reference"}))


class KTO(Algorithm[Labelled]):
    """``w·(1 − σ(±β·(log-ratio − z0)))``."""

    def __init__(self, options: KTOConfig) -> None:
        """Keep the options."""
        self.options = options

    def prepare(self, data: Labelled, ctx: Context) -> Batch:
        """The reference's log-likelihoods, and z0."""
        reference = side(ctx.reference, data.seqs).total
        ratio = side(ctx.policy, data.seqs).total - reference
        total, count = ctx.all_sum(ratio.new_tensor([float(ratio.sum()), len(ratio)]))
        z0 = (total / count.clamp(min=1)).clamp(min=0)
        ones = ratio.new_ones(len(ratio))
        return Batch({"answer": data.seqs}, {"policy": ones},
                     {"reference": reference, "label": data.label.float(), "z0": z0 * ones}, {"kl/z0": Mean(z0, 1)})

    def loss(self, role: Role, rows: Batch, ctx: Context) -> Loss:
        """One loss an answer."""
        o, good = self.options, rows.values["label"] > 0.5
        ratio = side(ctx.policy, rows.sequences["answer"]).total - rows.values["reference"]
        loss = ops.kto_loss(ratio, good, rows.values["z0"], o.beta)
        weighted = loss * (o.desirable_weight * good + o.undesirable_weight * ~good)
        metrics: dict[str, Metric] = {f"rewards/{name}": Mean(o.beta * ops.masked_sum(ratio, mask), mask.sum())
                                      for name, mask in (("chosen", good), ("rejected", ~good))}
        return Loss(weighted, metrics)
