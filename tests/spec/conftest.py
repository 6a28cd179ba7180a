"""Settings of the smallest runs, and a model folder to name in them."""

import shutil
from pathlib import Path

import pytest

from rlx.layers import assign, merge
from rlx.plan import resolve
from rlx.registry import Registry
from rlx_sdk import SpecError

CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A model folder with a context of 256 tokens."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    shutil.copytree(CASES / "models/tiny", folder)
    shutil.copytree(CASES / "tok/T00_base", folder, dirs_exist_ok=True)
    return str(folder)


@pytest.fixture
def settings(model):
    """Valid settings of an algorithm, with dotted names on top."""

    def make(algo="ppo", **dotted):
        tree = {"algo": {"name": algo}, "model": {"path": model}, "data": {"path": "data.jsonl"}, "train": {"steps": 1}}
        if algo == "ppo" or ("rewards" in dotted and algo not in ("sft", "reward_model")):
            tree |= {"rewards": [{"name": "polite_length"}], "rollout": {"max_completion": 16}}
        for name, value in dotted.items():
            assign(tree, name.replace("__", "."), value)
        return tree

    return make


@pytest.fixture(scope="session")
def registry():
    """The installed plugins."""
    return Registry.discover()


@pytest.fixture
def plan(registry):
    """Resolves settings."""
    return lambda *trees: resolve(registry, merge(*trees) if len(trees) > 1 else trees[0])


@pytest.fixture
def problems(plan):
    """The problems of settings, as one list."""

    def find(*trees):
        with pytest.raises(SpecError) as error:
            plan(*trees)
        return list(error.value.problems)

    return find
