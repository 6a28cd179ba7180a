"""``--rollout auto``, the default: the best backend that is installed for this machine."""

import pytest

from rlx.registry import Registry
from rlx_sdk import Config, RolloutPlugin, hookimpl


@pytest.fixture
def registry():
    """The installed plugins, of the rollout backends only hf, to which a test may add."""
    found = Registry.discover()
    found._entries["rollout"] = [entry for entry in found.entries("rollout") if entry.name == "hf"]
    return found


@pytest.fixture
def backends(registry, monkeypatch):
    """Registers backends of some worth on a GPU; the machine then has one, or not."""

    def add(gpu=True, **worths):
        monkeypatch.setattr("rlx.plan.gpu_is_there", lambda: gpu)

        class Offered:
            @hookimpl
            def rlx_rollouts(self):
                return [RolloutPlugin(name=name, summary="", config=lambda: Config, build=lambda *a: None,
                                      requires=requires, auto=lambda there, worth=worth: worth * there)
                        for name, (worth, requires) in worths.items()]

        registry.add(Offered(), "p", "1")

    return add


NO = {"no_such_module": "fast-rollouts"}


@pytest.mark.parametrize(("gpu", "worths", "chosen", "noted"), [
    (True, {"fast": (9, {})}, "fast", None),
    (True, {"fast": (9, {}), "faster": (10, {})}, "faster", None),
    (False, {"fast": (9, {})}, "hf", None),
    (True, {"fast": (9, NO)}, "hf", "rollouts by hf: fast is not installed (pip install 'fast-rollouts')"),
    (False, {"fast": (9, NO)}, "hf", None),
])
def test_the_best_that_is_there(plan, settings, backends, gpu, worths, chosen, noted):
    backends(gpu, **worths)
    made = plan(settings("ppo"))
    assert made.rollout.name == made.spec.rollout.name == chosen
    assert [note for note in made.notes if "rollouts by" in note] == ([noted] if noted else [])
    assert plan(settings("ppo", rollout__name="hf")).rollout.name == "hf"


def test_what_is_named_must_be_there(problems, settings, backends):
    backends(fast=(9, NO))
    [found] = problems(settings("ppo", rollout__name="fast"))
    assert found == ("rollout 'fast' needs the package 'no_such_module', which is not installed: pip install "
                     "'fast-rollouts'")


def test_nothing_is_said_where_nothing_is_sampled(plan, settings, backends):
    backends(fast=(9, NO))
    assert not any("rollouts by" in note for note in plan(settings("sft")).notes)
