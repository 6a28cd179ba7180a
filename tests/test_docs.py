"""The tutorials' code runs as it stands: files, tests, and commands."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlx.cli import app
from rlx_sdk import hooks

DOCS = Path(__file__).parents[1] / "docs"
INSTALL = runpy.run_path(str(Path(__file__).parent / "cases/plugins/install.py"))["write_metadata"]
SMALL = ["--set", "train.batch_size=2", "--set", "rollout.max_completion=6", "--set", "data.eval=0"]


def blocks(page, language):
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of its own, on the path."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(("page", "points"), [
    ("writing-a-reward.md", {"keyword": "keyword_reward:keyword", "later": "later_reward:later",
                             "table": "table_reward"}),
    ("writing-an-algorithm.md", {"reinforce_mean": "reinforce_mean"}),
    ("writing-a-rollout.md", {"plain": "plain_rollout"}),
])
def test_a_tutorial_runs(page, points, folder):
    files = {re.match(r"# (\S+\.py)\n", code)[1]: code for code in blocks(page, "python")}
    for name, code in files.items():
        (folder / name).write_text(code, encoding="utf-8")
    INSTALL(folder, "a-tutorial", "0.1", points)
    importlib.invalidate_caches()
    for name in files:
        module = importlib.import_module(name.removesuffix(".py"))
        for test in [f for n, f in vars(module).items() if n.startswith("test_")]:
            test(*[folder] * len(inspect.signature(test).parameters))
    commands = [shlex.split(line) for block in blocks(page, "bash") for line in block.splitlines()]
    assert commands
    for command in commands:
        more = SMALL if command[1] in ("train", "check") else []
        done = CliRunner().invoke(app, [*command[1:], *more], prog_name="rlx")
        assert done.exit_code == 0, done.output


def test_the_rewards_of_the_tutorial_are_named_as_it_says(folder):
    code = next(c for c in blocks("writing-a-reward.md", "python") if "argument=" in c)
    (folder / "keyword_reward.py").write_text(code)
    INSTALL(folder, "a-tutorial", "0.1", {"keyword": "keyword_reward:keyword"})
    importlib.invalidate_caches()
    shown = CliRunner().invoke(app, ["show", "keyword"])
    assert 'word: string = "thanks"  The word.' in shown.output
    done = CliRunner().invoke(app, ["check", "--algo", "grpo", "--reward", "keyword:thank", "--steps", "1"])
    assert "keyword:thank [1.0, 1.0, 1.0, 1.0]" in done.output


def test_every_hook_is_documented_with_its_signature():
    text = (DOCS / "plugins.md").read_text(encoding="utf-8")
    specs = {name: hook for name, hook in vars(hooks).items() if name.startswith("rlx_")}
    assert len(specs) == 4
    for name, hook in specs.items():
        assert f"| `{name}{inspect.signature(hook)}` | {inspect.getdoc(hook)} |".replace("'", "") in text
