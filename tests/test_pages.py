"""Pages of docs that are made from the code; a stale one fails here."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import rlx
from rlx.cli import app
from rlx.describe import options
from rlx.plan import resolve
from rlx.registry import KINDS, Registry
from rlx.spec import Spec
from rlx_sdk import hooks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PLUGINS = ("algorithms", "rewards", "rollouts", "trackers")


def load(maker):
    spec = importlib.util.spec_from_file_location(maker.stem, maker)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("maker", sorted(DOCS.glob("make_*.py")), ids=lambda path: path.stem)
def test_the_page_is_current(maker):
    made = load(maker)
    pages = made.pages() if hasattr(made, "pages") else {f"{maker.stem.removeprefix('make_')}.md": made.page()}
    for page, text in pages.items():
        assert (DOCS / page).is_file(), f"run: python docs/{maker.name}"
        assert (DOCS / page).read_text(encoding="utf-8") == text, f"run: python docs/{maker.name}"


def test_each_plugin_has_a_page_and_no_page_lacks_its_plugin():
    pages = load(DOCS / "make_plugins.py").pages()
    assert {str(page.relative_to(DOCS)) for kind in PLUGINS for page in (DOCS / kind).glob("*.md")} == set(pages)


def test_every_setting_says_what_it_does():
    assert [option.name for option in options(Spec.model_json_schema()) if not option.meaning] == []


def test_the_default_of_a_group_goes_before_that_of_its_options():
    defaults = {option.name: option.default for option in options(Spec.model_json_schema())}
    assert defaults["train.optim.policy.lr"] == "1e-06"
    assert defaults["train.optim.critic.lr"] == "1e-05"


def test_the_tree_of_the_readme_has_every_file_and_folder():
    tree = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Where things are")[2]
    words = set(re.findall(r"[\w/]+(?:\.py)?", tree.replace("/ ", " ")))
    for home in ("sdk/rlx_sdk", "core/rlx"):
        inside = {p.name for p in (ROOT / home).iterdir() if (p.suffix == ".py" or p.is_dir())
                  and not p.name.startswith("_") and p.name != "scaffold"}
        assert inside - words == set(), home


def test_every_command_is_in_the_table_of_commands():
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert len(names) > 10
    assert [name for name in names if f"`rlx {name}" not in text] == []


def test_every_extra_is_in_the_table_of_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert [name for name in extras if name != "dev" and f"'rlx[{name}]'" not in text] == []


def table(text, column=1):
    """First cell to another one."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[column] for row in rows[:1] + rows[2:]}


def test_what_the_table_of_peers_says_of_rlx_is_true():
    said = table((ROOT / "README.md").read_text(encoding="utf-8").partition("## Among its peers")[2].partition("##")[0])
    section = (DOCS / "peers.md").read_text(encoding="utf-8").partition("\n## rlx\n")[2].partition("\n## ")[0]
    sources = table(section)
    assert list(sources)[1:] == list(said)[1:]
    assert [path for path in re.findall(r"`([\w.]+/[\w./]+)`", section) if not (ROOT / path).exists()] == []

    registry = Registry.discover()
    names = {kind: {entry.name for entry in registry.entries(kind) if entry.package == "rlx"} for kind in KINDS}
    length = {"rewards": [{"name": "length"}]}
    learned = {name: resolve(registry, {"algo": {"name": name}, **more}).needs.trains for name, more in (
        ("ppo", length), ("grpo", length), ("dpo", {}), ("sft", {}), ("reward_model", {}))}
    assert (said["trains with"], "critic" in learned["ppo"], "reward" in learned["reward_model"]) == (
        "DeepSpeed ZeRO", True, True)
    assert [said[row] for row in ("PPO with a critic", "GRPO", "DPO", "SFT", "trains reward models")] == ["yes"] * 5
    assert (said["samples with"], names["rollout"]) == ("HF, vLLM", {"hf", "vllm", "vllm_server"})
    assert said["a reward of your own"] == "function, model, HTTP service, judge; TRL's and verl's functions"
    assert {"hf", "http", "judge"} <= names["reward"]
    offered = said["found as installed packages"].replace("rollout backends", "rollouts").split(", ")
    assert {f"rlx_{kind}" for kind in offered} == {name for name in vars(hooks) if name.startswith("rlx_")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (said["needs Ray"], [one for one in project["dependencies"] if one.startswith("ray")]) == ("no", [])
    assert said[""] == f"rlx {rlx.__version__.rpartition('.')[0]}"
    assert [said[row] for row in ("several turns, tools", "images")] == ["no"] * 2
    ahead = {entry.name for entry in Registry.discover().entries("rollout") if entry.plugin.concurrent}
    assert (said["asynchronous sampling"], ahead) == ("one step, vLLM servers", {"vllm_server"})
