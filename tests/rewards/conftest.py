"""The rewards of the case files, and a panel of them."""

import importlib.util
from pathlib import Path

import pytest

from rlx.rewards import Provider, RewardPanel
from rlx.spec import RewardSpec
from rlx_sdk import RewardContext, Sample

CASES = Path(__file__).parents[1] / "cases/rewards"
ROWS = [f"row {n}" for n in range(11, 19)]
TEXTS = ["a", "bb", "ccc", "dddd", "e", "ff", "g", "h"]


@pytest.fixture
def case():
    """A decorated reward of a case file."""

    def load(file, name):
        spec = importlib.util.spec_from_file_location(f"case_{file}", CASES / f"{file}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)

    return load


@pytest.fixture
def samples():
    """Eight samples of data rows 11 to 18."""
    return [Sample(f"prompt {'x' if i % 2 else i}", text) for i, text in enumerate(TEXTS)]


@pytest.fixture
def panel():
    """Makes a panel of decorated rewards; settings are those of the spec's entry."""
    made = []

    def make(*rewards, **settings):
        providers = [Provider(r.plugin.name, f"'{r.plugin.name}' (case-rewards 0.1)",
                              RewardSpec(name=r.plugin.name, **settings),
                              r.plugin.build(r.plugin.config()(), RewardContext())) for r in rewards]
        made.append(RewardPanel(providers))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def score(panel, samples):
    """Scores the eight samples."""
    return lambda *rewards, **settings: panel(*rewards, **settings).score(samples, ROWS)
