"""Every registered reward passes the contract test that strangers use."""

import pytest

from rlx.registry import Registry
from rlx_sdk import Sample
from rlx_sdk.testing import check_reward

REWARDS = {e.name: e for e in Registry.discover().entries("reward")}
OPTIONS = {"regex": {"pattern": "a"}, "overlong": {"limit": 100}}
ELSEWHERE = {"hf", "http", "https", "judge"}
"""Those that need a model or a service: their own tests call `check_reward`."""
MISSING = {name for name, entry in REWARDS.items() if entry.missing()}


@pytest.mark.parametrize("name", sorted(REWARDS.keys() - ELSEWHERE - MISSING))
def test_it_keeps_the_contract(name):
    check_reward(REWARDS[name].plugin, OPTIONS.get(name))


def test_only_what_is_an_extra_may_be_missing():
    assert MISSING <= {"reasoning_gym"}


@pytest.mark.parametrize(("text", "value"), [
    ("x" * 49, 0.0), ("x" * 50, 1.0), ("x" * 200, 1.0), ("x" * 201, 0.0), ("", 0.0), ("Please.", 0.5), ("THANK", 0.5),
    ("请" * 50, 1.5), ("  " + "x" * 49 + "  ", 0.0), ("👍" * 50, 1.0), ("Sorry, " + "x" * 50, 1.5),
])
def test_polite_length_by_hand(text, value):
    entry = REWARDS["polite_length"]
    built = entry.call("build", entry.call("config")(), None)
    assert built.score([Sample("p", text)]) == [value]


def test_its_bounds_and_words_are_options():
    entry = REWARDS["polite_length"]
    options = entry.call("config")(min_chars=2, max_chars=3, length_score=2.0, polite_score=5.0, polite_words=("moin",))
    built = entry.call("build", options, None)
    assert built.score([Sample("p", t) for t in ("abc", "Moin", "please", "x")]) == [2.0, 5.0, 0.0, 0.0]
