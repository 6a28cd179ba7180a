"""Where a reward comes from: its name finds it, on every rank alike."""

import json

import pytest

from rlx.functions import find_reward
from rlx.layers import absolute_paths, named_weight, read_spec_file
from rlx.registry import Registry
from rlx_sdk import Config, PluginError, RewardContext, RewardPlugin, Sample, reward

FILE = '''
from helper_of_rules import POINT
import rlx_sdk


class Options(rlx_sdk.Config):
    """One."""

    to: float = 1.0


def short(samples):
    """1 for a short one."""
    return [POINT * (len(s.completion) < 3) for s in samples]


@rlx_sdk.reward("decorated", config=Options)
def decorated(samples, options):
    return [options.to] * len(samples)


def trl(prompts, completions, **columns):
    return [float(len(p) + len(c)) for p, c in zip(prompts, completions)]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "seen": extra_info["index"]}


NUMBER = 5
'''


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """A file of rewards, and one beside it that it imports."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper_of_rules.py").write_text("POINT = 1.0\n")
    (tmp_path / "rules_here.py").write_text(FILE)
    return tmp_path / "rules_here.py"


@pytest.fixture
def score():
    """Scores samples with the reward of a name."""

    def run(name, samples, registry=None, **options):
        entry, own = find_reward(registry or Registry.discover(), name)
        return entry.call("build", entry.call("config")(**{**own, **options}), RewardContext()).score(samples)

    return run


SAMPLES = [Sample("p", "a"), Sample("p", "long")]


@pytest.mark.parametrize("place", ["rules_here.py", "./rules_here.py", "rules_here"])
def test_a_function_of_a_file_or_a_module(rules, score, place):
    assert score(f"{place}:short", SAMPLES) == [1.0, 0.0]
    assert score(f"{place}:trl", SAMPLES) == [2.0, 5.0]
    assert score(f"{place}:decorated", SAMPLES, to=2.0) == [2.0, 2.0]
    entry, _ = find_reward(Registry(), f"{place}:short")
    assert (entry.name, entry.plugin.summary, entry.package) == ("short", "1 for a short one.", place)


def test_a_files_hash_stands_for_its_version(rules):
    before = find_reward(Registry(), "rules_here.py:short")[0].label
    rules.write_text(FILE + "\n")
    after = find_reward(Registry(), "rules_here.py:short")[0].label
    assert before != after
    assert after.startswith("'short' (rules_here.py sha256 ")


@pytest.mark.parametrize(("name", "said"), [
    ("rules_here.py", "reward 'rules_here.py' is a file; name the function in it: rules_here.py:FUNCTION"),
    ("rules_her.py:short", r"there is no file '.*rules_her\.py'\. Did you mean 'rules_here\.py'\?"),
    ("rules_here.py:shorts", r"has no function 'shorts'\. Did you mean 'short'\? It has: .*short"),
    ("rules_here.py:NUMBER", "has no function 'NUMBER'"),
    ("rules_nowhere:short", r"there is no module 'rules_nowhere' \(in .* or installed\), and no reward of that name"),
    ("broken.py:f", r"'broken.py:f' could not be loaded: ZeroDivisionError: division by zero \(.*broken\.py:1\)"),
    ("exits.py:f", "could not be loaded: SystemExit: 3"),
    ("polite_lenght", "no reward 'polite_lenght'. Did you mean 'polite_length'?"),
    ("gopher://x", "no reward 'gopher://x'"),
    ("hf:", "hf"),
])
def test_what_cannot_be_found_is_said(rules, name, said):
    (rules.parent / "broken.py").write_text("1 / 0\n")
    (rules.parent / "exits.py").write_text("raise SystemExit(3)\n")
    if name == "hf:":
        assert find_reward(Registry.discover(), name)[1] == {"path": ""}
        return
    with pytest.raises(PluginError, match=said):
        find_reward(Registry.discover(), name)


class Link(Config):
    """Where to."""

    to: str


def test_a_plugin_may_take_an_argument_behind_its_name():
    registry = Registry()
    registry.add(reward("gopher", config=Link, argument="to")(lambda samples, options: [len(options.to)]), "mine")
    assert find_reward(registry, "gopher:a/b:c")[1] == {"to": "a/b:c"}
    assert find_reward(registry, "gopher://a:70/b")[1] == {"to": "gopher://a:70/b"}
    assert find_reward(registry, "mine/gopher:a")[1] == {"to": "a"}
    assert isinstance(find_reward(registry, "gopher")[0].plugin, RewardPlugin)


@pytest.mark.parametrize(("text", "name", "weight"), [
    ("a", "a", None), ("a=0.5", "a", 0.5), ("hf:m=2", "hf:m", 2), ("http://h/?k=v", "http://h/?k=v", None),
    ("http://h/?k=v=0.5", "http://h/?k=v", 0.5), ("x.py:f=-1", "x.py:f", -1), ("a=b", "a", "b"),
])
def test_a_weight_stands_behind_the_name(text, name, weight):
    assert named_weight(text) == ({"name": name} if weight is None else {"name": name, "weight": weight})


def test_paths_in_names_are_relative_to_the_spec_file_and_saved_whole(rules, tmp_path, monkeypatch):
    (tmp_path / "spec.yaml").write_text("rewards: [{name: 'rules_here.py:short'}, {name: 'hf:helper_of_rules.py'}, "
                                        "{name: polite_length}]")
    monkeypatch.chdir("/")
    tree = read_spec_file(tmp_path / "spec.yaml")
    assert [r["name"] for r in tree["rewards"]] == [f"{rules}:short", f"hf:{tmp_path}/helper_of_rules.py",
                                                    "polite_length"]
    monkeypatch.chdir(tmp_path)
    given = {"rewards": [{"name": "rules_here.py:short"}, {"name": "rules_here:short"}]}
    assert [r["name"] for r in absolute_paths(json.loads(json.dumps(given)))["rewards"]] == [
        f"{rules}:short", "rules_here:short"]
