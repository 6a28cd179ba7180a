"""The formulas: pure torch functions, one paper or definition each, shared by the algorithms.

All tensors follow the convention of `rlx_sdk.data`: entry ``t`` of a ``[B, T]`` tensor describes token ``t``.
"""

from rlx.ops.advantages import gae, token_rewards
from rlx.ops.aggregate import AGGREGATIONS, Aggregation, aggregate_rows, row_weights
from rlx.ops.kl import KL_ESTIMATORS, KLEstimator, adapt_kl_coef, kl_estimate
from rlx.ops.masked import LOG_RATIO_LIMIT, clamped_exp, masked_mean, masked_sum, whiten
from rlx.ops.ppo import PolicyLoss, policy_loss, truncated_importance, value_loss
from rlx.ops.preference import dpo_logits, dpo_sigmoid_loss

__all__ = [
    "AGGREGATIONS",
    "KL_ESTIMATORS",
    "LOG_RATIO_LIMIT",
    "Aggregation",
    "KLEstimator",
    "PolicyLoss",
    "adapt_kl_coef",
    "aggregate_rows",
    "clamped_exp",
    "dpo_logits",
    "dpo_sigmoid_loss",
    "gae",
    "kl_estimate",
    "masked_mean",
    "masked_sum",
    "policy_loss",
    "row_weights",
    "token_rewards",
    "truncated_importance",
    "value_loss",
    "whiten",
]
