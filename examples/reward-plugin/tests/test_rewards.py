"""Both rewards keep rlx's contract, and score what they should."""

import asyncio

import pytest
from rlx_concise import Options, concise, on_topic

from rlx_sdk import Sample
from rlx_sdk.testing import check_reward


@pytest.mark.parametrize("reward", [concise, on_topic], ids=lambda reward: reward.plugin.name)
def test_contract(reward):
    check_reward(reward)


def test_concise():
    samples = [Sample("Hello", text) for text in ("", "Hi.", "word " * 30, "word " * 40)]
    assert concise(samples, Options()) == [0.0, 1.0, 0.5, 0.0]
    assert concise(samples, Options(words=40)) == [0.0, 1.0, 1.0, 1.0]


def test_on_topic():
    samples = [Sample("Why is the ocean salty?", "The ocean has salt."), Sample("2 + 2?", "4")]
    first, second = asyncio.run(on_topic(samples))
    assert first.value == 0.5
    assert second is None
