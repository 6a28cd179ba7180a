"""Packages are loaded one by one; a broken one is kept with its cause and breaks nothing else."""

import re

import pytest

from rlx.registry import KINDS, Registry
from rlx_sdk import PluginError

BUILTIN = {"algorithm": {"ppo", "dpo", "sft"}, "reward": {"polite_length"}, "rollout": {"hf"}, "tracker": {"wandb"}}


def names(registry, kind):
    return {e.name for e in registry.entries(kind)}


def test_the_built_in_plugins_come_through_entry_points():
    registry = Registry.discover()
    assert registry.broken == []
    assert {kind: names(registry, kind) & BUILTIN[kind] for kind in KINDS} == BUILTIN
    assert {e.package for kind in KINDS for e in registry.entries(kind)} == {"rlx"}


def test_a_strangers_package_is_found(install):
    install("P00_good")
    entry = Registry.discover().get("reward", "case_good")
    assert (entry.package, entry.version, entry.plugin.summary) == ("rlx-case-good", "0.1", "One for everything.")


@pytest.mark.parametrize(("case", "reason"), [
    ("P01_import_fails", r"ModuleNotFoundError: No module named 'a_library_that_is_not_installed' "
                         r"\(rlx_case_import_fails/__init__\.py:3\)"),
    ("P01_missing_attr", r"AttributeError: module 'rlx_case_missing_attr' has no attribute 'Plugin'$"),
    ("P03_unknown_hook", r"it implements the hook 'rlx_reward', which rlx does not have\. Did you mean 'rlx_rewards'\?"
                         r" \(hooks: rlx_algorithms, rlx_rewards, rlx_rollouts, rlx_trackers\)"),
    ("P05_wrong_argument", r"rlx_case_wrong_arg.*'rlx_rewards'.*rlx_rewards\(register\).*"
                           r"Argument\(s\) {'register'} are declared in the hookimpl but can not be found"),
])
def test_a_broken_package_is_kept_with_its_cause(install, case, reason):
    install("P00_good", case)
    registry = Registry.discover()
    [broken] = registry.broken
    assert re.search(reason, broken.reason), broken.reason
    assert broken.package.startswith("rlx-case-")
    assert "case_good" in names(registry, "reward")
    assert names(registry, "algorithm") >= BUILTIN["algorithm"]


HOOK = "import rlx_sdk\n@rlx_sdk.hookimpl\n"


@pytest.mark.parametrize(("text", "reason"), [
    ("import sys; sys.exit('no licence')", "SystemExit: no licence"),
    ("x = 1", "it implements none of the hooks rlx_algorithms, rlx_rewards, rlx_rollouts, rlx_trackers"),
    ("def rlx_rewards(): return []", "it implements none of the hooks"),
    (HOOK + "def rlx_rewards(): pass", "its hook rlx_rewards() returned None; a list of rlx_sdk.RewardPlugin is"),
    (HOOK + "def rlx_rewards(): return [len]", "returned [<built-in function len>]; a list of rlx_sdk.RewardPlugin"),
    (HOOK + "def rlx_rollouts(): return [rlx_sdk.reward('a')(print).plugin]",
     "its hook rlx_rollouts() returned [RewardPlugin("),
    (HOOK + "def rlx_rewards(): return 1 / 0", "ZeroDivisionError: division by zero"),
])
def test_a_package_that_does_something_else_is_broken_too(publish, text, reason):
    publish("rlx_case_odd", text)
    registry = Registry.discover()
    [broken] = registry.broken
    assert reason in broken.reason
    assert names(registry, "reward") >= BUILTIN["reward"]


def test_a_broken_half_takes_the_other_half_along(publish):
    publish("rlx_case_half", "import rlx_sdk\n@rlx_sdk.reward('half')\ndef half(s): return s\n"
                             "@rlx_sdk.hookimpl\ndef rlx_rewards(): return [half.plugin]\n"
                             "@rlx_sdk.hookimpl\ndef rlx_trackers(): return None\n")
    registry = Registry.discover()
    assert "half" not in names(registry, "reward")
    assert "rlx_trackers() returned None" in registry.broken[0].reason


def test_what_a_package_prints_at_import_goes_to_stderr(install, capsys):
    install("L08_noisy")
    assert "case_noisy" in names(Registry.discover(), "reward")
    out, err = capsys.readouterr()
    assert out == ""
    assert "[case_noisy] loaded" in err


def test_a_plugin_can_be_added_by_hand():
    from rlx_sdk import reward

    registry = Registry()
    registry.add(reward("mine")(lambda samples: []), "this program")
    assert registry.get("reward", "mine").label == "'mine' (this program ?)"
    with pytest.raises(PluginError, match="implements none of the hooks"):
        registry.add(len, "this program")
