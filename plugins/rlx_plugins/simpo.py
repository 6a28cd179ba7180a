"""SimPO, arXiv 2405.14734: a preference for the likelier answer a token, with a margin and no reference.

When to use: preference pairs, without the memory of a reference; mind the learning rate.
"""

from __future__ import annotations

from pydantic import Field

from rlx import ops
from rlx_plugins.pairs import pair_batch, preference_metrics, sides
from rlx_sdk import Algorithm, Batch, Config, Context, Loss, Needs, Pairs, Role


class SimPOConfig(Config):
    """SimPO's options."""

    beta: float = Field(2.0, gt=0)
    """Scales the mean logprobs."""
    gamma: float = Field(1.0, ge=0)
    """By how much the chosen answer shall be ahead."""


def needs(options: SimPOConfig, rewards: bool) -> Needs:
    """Pairs, and the policy alone."""
    return Needs(data="pairs", trains=frozenset({"policy"}))


class SimPO(Algorithm[Pairs]):
    """``−log σ(β·(mean logπ of chosen − of rejected) − γ)``."""

    def __init__(self, options: SimPOConfig) -> None:
        """Keep the options."""
        self.options = options

    def prepare(self, data: Pairs, ctx: Context) -> Batch:
        """Nothing is needed beforehand."""
        return pair_batch(data.chosen, data.rejected)

    def loss(self, role: Role, rows: Batch, ctx: Context) -> Loss:
        """One loss a pair."""
        o, (chosen, rejected) = self.options, sides(ctx.policy, rows.sequences["chosen"], rows.sequences["rejected"])
        return Loss(ops.simpo_loss(chosen.mean, rejected.mean, o.beta, o.gamma),
                    preference_metrics(chosen.mean, rejected.mean, o.beta))
