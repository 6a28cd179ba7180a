"""ORPO, arXiv 2403.07691: fine-tuning on the chosen answer, with the odds of the rejected one held down.

When to use: preference pairs and a model that has not been fine-tuned yet: both in one run.
"""

from __future__ import annotations

from pydantic import Field

from rlx import ops
from rlx_plugins.pairs import pair_batch, preference_metrics, sides
from rlx_sdk import Algorithm, Batch, Config, Context, Loss, Mean, Needs, Pairs, Role


class ORPOConfig(Config):
    """ORPO's option."""

    lam: float = Field(0.1, gt=0)
    """Weight of the odds ratio, the paper's λ."""


def needs(options: ORPOConfig, rewards: bool) -> Needs:
    """Pairs, and the policy alone."""
    return Needs(data="pairs", trains=frozenset({"policy"}))


class ORPO(Algorithm[Pairs]):
    """``−mean logπ of chosen − λ·log σ(log odds of chosen − of rejected)``."""

    def __init__(self, options: ORPOConfig) -> None:
        """Keep the options."""
        self.options = options

    def prepare(self, data: Pairs, ctx: Context) -> Batch:
        """Nothing is needed beforehand."""
        return pair_batch(data.chosen, data.rejected)

    def loss(self, role: Role, rows: Batch, ctx: Context) -> Loss:
        """One loss a pair."""
        chosen, rejected = sides(ctx.policy, rows.sequences["chosen"], rows.sequences["rejected"])
        metrics = preference_metrics(chosen.mean, rejected.mean, 1.0)
        metrics["loss/sft"] = Mean(-chosen.mean.sum(), len(rows))
        return Loss(ops.orpo_loss(chosen.mean, rejected.mean, self.options.lam), metrics)
