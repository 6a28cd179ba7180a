"""Names: unknown, ambiguous, or in need of a package."""

import sys
import textwrap

import pytest

from rlx.registry import Entry, Registry
from rlx_sdk import Config, PluginError, RewardPlugin


@pytest.mark.parametrize(("kind", "name", "said"), [
    ("reward", "polite_lenght", "no reward 'polite_lenght'. Did you mean 'polite_length'? Installed: "),
    ("reward", "Polite_Length", "Did you mean 'polite_length'?"),
    ("algorithm", "PPO", "no algorithm 'PPO'. Did you mean 'ppo'? Installed: "),
    ("algorithm", "ddpo", "Did you mean 'dpo'?"),
    ("algorithm", "polite_length", "no algorithm 'polite_length'. Installed: "),
    ("rollout", "holodeck", "no rollout 'holodeck'. Installed: "),
    ("reward", "other/polite_length", "no reward 'other/polite_length'. Did you mean 'polite_length'?"),
])
def test_an_unknown_name_brings_the_nearest_and_the_list(kind, name, said):
    registry = Registry.discover()
    with pytest.raises(PluginError) as error:
        registry.get(kind, name)
    assert said in str(error.value)
    assert all(e.name in str(error.value) for e in registry.entries(kind))


def test_an_unknown_name_also_brings_what_could_not_be_loaded(install):
    install("P00_good", "P01_import_fails", "P03_unknown_hook")
    with pytest.raises(PluginError) as error:
        Registry.discover().get("reward", "case_goood")
    for said in ("Did you mean 'case_good'? Installed: case_good, ", "Plugins that could not be loaded: ",
                 "broken of rlx-case-import-fails (ModuleNotFoundError: No module named 'a_library_that_is_not_",
                 "unknown_hook of rlx-case-unknown-hook (it implements the hook 'rlx_reward'"):
        assert said in str(error.value)


def test_one_name_in_two_packages_is_an_error_only_when_it_is_used(install):
    install("P02_same_name_a", "P02_same_name_b")
    registry = Registry.discover()
    assert registry.broken == []
    assert registry.get("reward", "polite_length")
    with pytest.raises(PluginError, match="reward 'case_same' is offered by several packages; write "
                                          "'rlx-case-same-a/case_same' and 'rlx-case-same-b/case_same'"):
        registry.get("reward", "case_same")


def test_package_and_name_always_works(install):
    install("P02_same_name_a", "P02_same_name_b")
    registry = Registry.discover()
    assert registry.get("reward", "rlx-case-same-b/case_same").package == "rlx-case-same-b"
    assert registry.get("reward", "rlx/polite_length") is registry.get("reward", "polite_length")


def test_a_missing_package_gives_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    registry = Registry.discover()
    with pytest.raises(PluginError, match=r"tracker 'wandb' needs the package 'wandb', which is not installed: "
                                          r"pip install 'rlx\[wandb\]'"):
        registry.get("tracker", "wandb")
    assert {e.name: e.missing() for e in registry.entries("tracker")}["wandb"] == {"wandb": "rlx[wandb]"}


def entry(**parts):
    record = RewardPlugin(name="mine", summary="", **{"config": lambda: Config, "build": lambda *_: None, **parts})
    return Entry(record, "my-rewards", "1.2")


def test_requirements_may_be_dotted():
    assert entry(requires={"no_such_parent.child": "a", "importlib.metadata": "b"}).missing() == {
        "no_such_parent.child": "a"}


@pytest.mark.parametrize(("part", "arguments"), [("config", ()), ("build", (None, None))])
def test_what_a_plugin_raises_is_wrapped_once_with_its_owner(part, arguments):
    def fails(*_):
        raise KeyError("API_KEY")

    with pytest.raises(PluginError) as error:
        entry(**{part: fails}).call(part, *arguments)
    assert str(error.value).startswith(f"plugin 'mine' (my-rewards 1.2) failed in its {part}: KeyError: 'API_KEY' (")
    assert "test_get.py:" in str(error.value)
    assert isinstance(error.value.__cause__, KeyError)


def test_errors_of_rlx_pass_through():
    def fails(*_):
        raise PluginError("said already")

    with pytest.raises(PluginError, match=r"^said already$"):
        entry(build=fails).call("build", None, None)


def test_what_a_plugin_prints_goes_to_stderr(publish, capsys):
    publish("rlx_case_lazy_noise", textwrap.dedent("""
        from rlx_sdk import Config, RewardPlugin, hookimpl

        def config():
            print("config")
            return Config

        @hookimpl
        def rlx_rewards():
            return [RewardPlugin(name="noise", summary="", config=config, build=lambda o, c: print("build"))]
    """))
    found = Registry.discover().get("reward", "noise")
    found.call("build", found.call("config")(), None)
    assert capsys.readouterr() == ("", "config\nbuild\n")
