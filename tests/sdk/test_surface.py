"""What rlx_sdk is to a stranger: its names, and how little importing it costs."""

import subprocess
import sys

import pytest

import rlx_sdk
from rlx_sdk import InputError, RlxError, RunError, SpecError

NAMES = """
Algorithm AlgorithmPlugin Batch CheckpointError Config Context DataError DataKind Demonstrations Fingerprint
FinishReason Generation Group InputError Kind Labelled LanguageModel Loss Max Mean Message Metric Min ModelError Needs
Pairs Plugin PluginError Request Reward RewardContext RewardError RewardPlugin RlxError Role RolloutBackend
RolloutContext RolloutPlugin Rollouts RunError RunStopped Sample Sampling Score ScoreModel Scores Sequences SpecError
Sum Tracker TrackerContext TrackerPlugin TrainingError ValueModel hookimpl hookspec lazy reward
"""


def test_the_public_names_are_these():
    assert sorted(NAMES.split()) == rlx_sdk.__all__
    assert all(getattr(rlx_sdk, name) is not None for name in rlx_sdk.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'rlx_sdk' has no attribute 'Confg'"):
        rlx_sdk.Confg  # noqa: B018


@pytest.mark.parametrize("module", ["rlx_sdk", "rlx_sdk.testing", "rlx_plugins"])
def test_importing_loads_nothing_heavy(module):
    heavy = ["torch", "pydantic", "transformers", "deepspeed", "numpy", "rlx"]
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_error_is_in_one_tree_of_two_branches():
    errors = [e for name in rlx_sdk.__all__ if name.endswith("Error") and (e := getattr(rlx_sdk, name))]
    assert all(issubclass(e, RlxError) for e in errors)
    assert [e for e in errors if not issubclass(e, InputError | RunError)] == [RlxError]


def test_a_spec_error_lists_every_problem():
    assert str(SpecError(["a is wrong"])) == "1 problem in the spec:\n  - a is wrong"
    assert str(SpecError(["a", "b"])) == "2 problems in the spec:\n  - a\n  - b"
    assert SpecError(["a", "b"]).problems == ("a", "b")
