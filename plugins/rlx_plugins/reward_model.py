"""A reward model from preferences: the Bradley-Terry loss (arXiv 2203.02155).

What it writes is an HF sequence-classification folder with one label.

When to use: preference pairs shall become a reward for PPO, GRPO and the like, or start their critic.
"""

from __future__ import annotations

from pydantic import Field

from rlx import ops
from rlx_plugins.pairs import TIE
from rlx_sdk import Algorithm, Batch, Config, Context, Loss, Mean, Needs, Pairs, Role, Sum


class RewardModelConfig(Config):
    """Options of the loss."""

    margin: float = Field(0.0, ge=0)
    """By how much the chosen answer shall be ahead; the data's column ``margin``, if there is one, is added."""
    centre_coef: float = Field(0.0, ge=0)
    """Pulls the scores of a pair towards a sum of 0 (arXiv 2312.09244)."""


def needs(options: RewardModelConfig, rewards: bool) -> Needs:
    """Pairs, and the reward model alone."""
    return Needs(data="pairs", trains=frozenset({"reward"}))


class RewardModel(Algorithm[Pairs]):
    """``−log σ(r_chosen − r_rejected − margin)``."""

    def __init__(self, options: RewardModelConfig) -> None:
        """Keep the options."""
        self.options = options

    def prepare(self, data: Pairs, ctx: Context) -> Batch:
        """Pairs of equal weight."""
        ones = data.chosen.length.new_ones(len(data.chosen)).float()
        margin = self.options.margin + (0 * ones if data.margin is None else data.margin)
        return Batch({"chosen": data.chosen, "rejected": data.rejected}, {"reward": ones}, {"margin": margin},
                     {"pairs": Sum(len(ones))})

    def loss(self, role: Role, rows: Batch, ctx: Context) -> Loss:
        """One loss a pair."""
        o, n = self.options, len(rows)
        chosen, rejected = (ctx.reward.scores(rows.sequences[name]) for name in ("chosen", "rejected"))
        loss = ops.ranking_loss(chosen, rejected, rows.values["margin"]) + o.centre_coef * (chosen + rejected) ** 2
        return Loss(loss, {"rewards/chosen": Mean(chosen.sum(), n), "rewards/rejected": Mean(rejected.sum(), n),
                           "rewards/margin": Mean((chosen - rejected).sum(), n),
                           "rewards/accuracy": Mean((chosen - rejected > TIE).sum(), n)})
