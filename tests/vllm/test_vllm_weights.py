"""Weights in short, as both sides of a sync sum them."""

from __future__ import annotations

import math

import pytest
import torch

from rlx_plugins.vllm_weights import Sums


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sums_are_as_exact_as_their_comparison_needs(dtype):
    """The trainer may sum on a CPU, its server on a GPU; numbers added one by one would make Σw² err by 1e-13."""
    torch.manual_seed(0)
    weight = (0.1 * torch.randn(8192, 576)).to(dtype)
    numbers = weight.double().flatten().tolist()
    total, squares = math.fsum(numbers), math.fsum(w * w for w in numbers)
    fused = Sums([("both", weight)]).holding()
    parts = Sums([("upper", weight[:3000]), ("lower", weight[3000:])]).holding()
    assert (fused.count, fused.packed) == (parts.count, parts.packed) == (weight.numel(), False)
    for found in (fused, parts):
        assert abs(found.squares - squares) < 2e-15 * squares
        assert abs(found.total - total) < 2e-15 * math.sqrt(len(numbers) * squares)
        assert [*found.differences(fused)] == []


def test_weights_of_any_number_of_dimensions_count():
    weights = {"scale": torch.tensor(2.0), "norm": torch.ones(3), "filter": torch.full((2, 2, 2), 3.0)}
    found = Sums(weights.items()).holding()
    assert (found.count, found.total, found.squares, found.packed) == (12, 29.0, pytest.approx(79.0), False)
    assert Sums([("norm", torch.ones(3)), ("moved elsewhere", torch.empty(0))]).holding().packed
