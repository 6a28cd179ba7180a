"""The formulas: pure torch functions, one paper or definition each, shared by the algorithms.

All tensors follow the convention of `rlx_sdk.data`: entry ``t`` of a ``[B, T]`` tensor describes token ``t``.

Write ``from rlx import ops`` and ``ops.gae(…)``: torch is then loaded by the first formula that runs, not by reading an
algorithm's options.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlx.ops.options import AGGREGATIONS, KL_ESTIMATORS, Aggregation, KLEstimator

if TYPE_CHECKING:
    from rlx.ops.advantages import gae, token_rewards
    from rlx.ops.aggregate import aggregate_rows, row_weights
    from rlx.ops.groups import (
        centred,
        dead_groups,
        group_sizes,
        group_sums,
        leave_one_out,
        normalised,
        overlong_penalty,
        returns_to_go,
    )
    from rlx.ops.kl import adapt_kl_coef, kl_estimate
    from rlx.ops.masked import LOG_RATIO_LIMIT, clamped_exp, last_run, masked_mean, masked_sum, whiten
    from rlx.ops.ppo import (
        PolicyLoss,
        importance_weights,
        policy_loss,
        sequence_policy_loss,
        value_loss,
        weighted_policy_loss,
    )
    from rlx.ops.preference import (
        dpo_hinge_loss,
        dpo_ipo_loss,
        dpo_logits,
        dpo_robust_loss,
        dpo_sigmoid_loss,
        kto_loss,
        orpo_loss,
        ranking_loss,
        simpo_loss,
    )

__all__ = [
    "AGGREGATIONS",
    "KL_ESTIMATORS",
    "LOG_RATIO_LIMIT",
    "Aggregation",
    "KLEstimator",
    "PolicyLoss",
    "adapt_kl_coef",
    "aggregate_rows",
    "centred",
    "clamped_exp",
    "dead_groups",
    "dpo_hinge_loss",
    "dpo_ipo_loss",
    "dpo_logits",
    "dpo_robust_loss",
    "dpo_sigmoid_loss",
    "gae",
    "group_sizes",
    "group_sums",
    "importance_weights",
    "kl_estimate",
    "kto_loss",
    "last_run",
    "leave_one_out",
    "masked_mean",
    "masked_sum",
    "normalised",
    "orpo_loss",
    "overlong_penalty",
    "policy_loss",
    "ranking_loss",
    "returns_to_go",
    "row_weights",
    "sequence_policy_loss",
    "simpo_loss",
    "token_rewards",
    "value_loss",
    "weighted_policy_loss",
    "whiten",
]
_MODULES = ("advantages", "aggregate", "groups", "kl", "masked", "ppo", "preference")


def __getattr__(name: str) -> Any:
    """Find a formula in its module when it is first asked for."""
    for module in (importlib.import_module(f"rlx.ops.{m}") for m in _MODULES if name in __all__):
        if hasattr(module, name):
            globals()[name] = getattr(module, name)
            return globals()[name]
    raise AttributeError(f"module 'rlx.ops' has no attribute '{name}'")
