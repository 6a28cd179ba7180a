"""The choices that formulas offer, by name. Free of torch, so that an algorithm's options can be read without it."""

from __future__ import annotations

from typing import Literal, get_args

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)

KLEstimator = Literal["k1", "k2", "k3"]
KL_ESTIMATORS: tuple[KLEstimator, ...] = get_args(KLEstimator)
