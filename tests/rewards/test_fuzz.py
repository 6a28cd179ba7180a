"""Rewards that return anything: every sample's own finite number, or an error that names the reward; nothing else.

For a longer search: ``pytest tests/rewards/test_fuzz.py --hypothesis-profile=long``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlx.rewards import Provider, RewardPanel, measure
from rlx.spec import RewardSpec
from rlx_plugins.rewards.http import HttpOptions, HttpReward
from rlx_sdk import RewardContext, RewardError, Sample, Score

N = 3
SAMPLES = [Sample("p", text) for text in ("a", "bb", "ccc")]
ROWS = ["row 1", "row 2", "row 3"]
calm = settings(deadline=None, suppress_health_check=list(HealthCheck))


class Odd:
    """What no number is, and cannot even be shown."""

    def __init__(self, fails: str) -> None:
        self._fails = fails

    def __float__(self) -> float:
        raise RuntimeError("no float") if self._fails != "text" else TypeError

    def __repr__(self) -> str:
        if self._fails == "repr":
            raise ValueError("no repr")
        return "odd " * 40

    def item(self) -> Any:
        return self if self._fails == "item" else 1 / 0


class Liar(Sequence[float]):
    """Its length is not what it holds."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: Any) -> Any:
        if index >= 1:
            raise IndexError
        return 1.0


plain = st.integers() | st.floats() | st.booleans() | st.none()
kinds = st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.uint64, np.bool_, object, "U3"])
odd = st.text(max_size=5) | st.binary(max_size=5) | st.integers(min_value=10**300) | st.sampled_from([
    1j, Decimal("1.5"), Decimal("sNaN"), Fraction(1, 3), ValueError("bad"), KeyboardInterrupt, np.float32(2),
    np.array([3.0]), np.array([[1.0, 2.0]]), torch.tensor(4.0), torch.tensor([5.0], dtype=torch.bfloat16),
    torch.tensor(6.0, requires_grad=True), {"value": 1}, [1.0], set(), Odd("text"), Odd("repr"), Odd("item"), Odd("")])
spans = st.lists(st.tuples(st.integers() | st.floats() | st.text(max_size=2), plain | odd), max_size=2) | plain
scores = st.builds(Score, plain | odd, st.dictionaries(st.text(max_size=3) | st.integers(), plain | odd, max_size=2)
                   | st.none(), spans)
values = plain | odd | scores
results = (st.lists(values, max_size=4) | st.lists(plain, min_size=N, max_size=N) | values | st.just(Liar())
           | st.lists(values, min_size=N, max_size=N).map(tuple) | st.dictionaries(st.integers(0, 3), plain, max_size=3)
           | st.builds(lambda kind, shape: np.ones(shape).astype(kind), kinds,
                       st.sampled_from([(), (N,), (N, 1), (1, N), (N, 2), (0,)]))
           | st.builds(torch.full, st.sampled_from([(N,), (N, 1), (2,)]), st.floats(width=32))
           | st.lists(values, min_size=N, max_size=N).map(iter))
policies = st.sampled_from(["stop", "skip", 0.25])


class Returns:
    """Gives what it was told to, or raises it."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def score(self, samples: Sequence[Sample]) -> Any:
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result

    def close(self) -> None:
        pass


def panel(*rewards: Any, on_error: Any = "stop", weight: float = 1.0, normalised: bool = False) -> RewardPanel:
    spec = RewardSpec(name="any", on_error=on_error, weight=weight)
    return RewardPanel([Provider(f"r{i}", f"'r{i}' (test 1)", spec, reward) for i, reward in enumerate(rewards)],
                       normalised)


def says(error: RewardError, *texts: str) -> None:
    assert any(text in str(error) for text in texts), error


def check(judged: Any, on_error: Any) -> None:
    """Whatever came of it is a finite number for each sample, and is measured."""
    assert on_error != "stop" or not judged.failed
    assert len(judged.rewards) == len(judged.judged) == len(judged.totals) == N
    assert all(type(value) is float and math.isfinite(value) for value in (*judged.rewards, *judged.totals))
    for name, scores in judged.by_provider.items():
        assert len(scores) == N
        assert all(value is None or (type(value) is float and math.isfinite(value)) for value in scores)
        assert all(scores[i] in (None, 0.25) for i in judged.failed_on[name])
    measure(judged, range(N))


def expected(result: Any) -> list[float | None] | None:
    """What plain numbers mean; None for everything else."""
    if not isinstance(result, list | tuple) or len(result) != N:
        return None
    if not all(value is None or type(value) in (int, float, bool) for value in result):
        return None
    try:
        found = [None if value is None else float(value) for value in result]
    except OverflowError:
        return None
    return found if all(value is None or math.isfinite(value) for value in found) else None


@calm
@given(results, policies, st.booleans())
def test_any_result_is_every_samples_own_number_or_an_error_that_names_the_reward(result, on_error, normalised):
    again = list(result) if isinstance(result, Iterator) else result
    one = panel(Returns(iter(again) if isinstance(result, Iterator) else result), on_error=on_error,
                normalised=normalised)
    try:
        judged = one.score(SAMPLES, ROWS, [0, 0, 0])
    except RewardError as error:
        usable = expected(result) is not None and not normalised
        return says(error, *(() if usable else ("'r0' (test 1)", "normalized", "is not finite")))
    check(judged, on_error)
    right = expected(result)
    if right is not None:
        assert judged.by_provider["r0"] == right
        assert judged.judged == [value is not None for value in right]


@calm
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=N, max_size=N),
       st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=N, max_size=N),
       st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_sums_are_right_or_said_to_be_too_large(one, other, weight, normalised):
    try:
        judged = panel(Returns(one), Returns(other), weight=weight, normalised=normalised).score(SAMPLES, ROWS, [0] * N)
    except RewardError as error:
        return says(error, "is not finite")
    check(judged, "stop")
    if not normalised:
        assert judged.rewards == [0.0 + weight * a + weight * b for a, b in zip(one, other, strict=True)]


@calm
@given(st.binary(max_size=40) | st.recursive(plain | st.text(max_size=5), lambda x: st.lists(x, max_size=4)
       | st.dictionaries(st.sampled_from(["scores", "value", "parts", "spans", "error", "x"]), x, max_size=3)).map(
           lambda tree: json.dumps(tree).encode())
       | st.lists(plain, min_size=N, max_size=N).map(lambda scores: json.dumps({"scores": scores}).encode()),
       st.sampled_from([200, 200, 200, 204, 301, 404, 500]), policies)
def test_any_answer_of_a_service_is_its_scores_or_an_error(content, status, on_error):
    transport = httpx.MockTransport(lambda request: httpx.Response(status, content=content))
    options = HttpOptions(url="http://here/", batch=8, attempts=1, backoff=0)
    one = panel(HttpReward(options, RewardContext(), transport=transport), on_error=on_error)
    try:
        check(judged := one.score(SAMPLES, ROWS), on_error)
    except RewardError as error:
        return says(error, "'r0' (test 1)")
    finally:
        one.close()
    if on_error == "stop":
        right = expected(json.loads(content)["scores"])
        assert status == 200
        assert right is None or judged.by_provider["r0"] == right


def test_the_oracle_knows_plain_numbers():
    assert expected([1, None, 2.5]) == [1.0, None, 2.5]
    assert expected([1, 2]) is expected([1, 2, math.nan]) is expected([1, 2, "3"]) is None
    with pytest.raises(RewardError):
        panel(Returns([1, 2])).score(SAMPLES, ROWS)
