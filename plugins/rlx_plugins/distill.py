"""On-policy distillation, arXiv 2306.13649: the student writes, the teacher says how likely each token was.

The teacher is ``model.reference.path``. The advantage of a token is ``log π_teacher − log π_student``: its expectation
over the student's own samples is minus the reverse KL, token by token. No reward is needed.

When to use: a larger model with the same vocabulary already does what the smaller one shall learn.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rlx_plugins.policy_gradient import CLIPS, KLConfig, PolicyConfig, PolicyGradient
from rlx_sdk import Batch, Context, Needs, Rollouts


class TeacherConfig(KLConfig):
    """The pull to the teacher."""

    coef: float = Field(1.0, gt=0)
    """Its strength."""

    @model_validator(mode="after")
    def _teaches(self) -> Self:
        if (self.estimator == "k1") != (self.where == "reward"):
            raise ValueError(f"estimator = {self.estimator} with where = {self.where} does not lead to the teacher: k1 "
                             "has its gradient as an advantage (where = reward), k2 and k3 have theirs in the loss")
        return self


class DistillConfig(PolicyConfig):
    """Options of the clipped update; ``kl`` is the distance to the teacher."""

    kl: TeacherConfig = TeacherConfig()
    """The pull to the teacher."""


def needs(options: DistillConfig, rewards: bool) -> Needs:
    """Samples without rewards, and a teacher."""
    return Needs(data="rollouts", trains=frozenset({"policy"}), frozen=frozenset({"reference"}), teacher=True,
                 several_updates=CLIPS)


class Distill(PolicyGradient):
    """``A_t = log π_teacher − log π_student`` of the token itself; what comes later is later tokens' business."""

    def prepare(self, data: Rollouts, ctx: Context) -> Batch:
        """Every sample counts, whether a reward judged it or not."""
        seqs, kl, metrics = self.start(data.seqs, ctx)
        return self.batch(seqs.with_(advantages=-kl), metrics)
