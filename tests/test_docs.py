"""The tutorials' code runs as it stands: files, tests, and commands."""

from __future__ import annotations

import importlib
import inspect
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlx.cli import app
from rlx_sdk import hooks

from .blocks import INSTALLS, Reader, commands, on_path, read_blocks

DOCS = Path(__file__).parents[1] / "docs"
INSTALL = runpy.run_path(str(Path(__file__).parent / "cases/plugins/install.py"))["write_metadata"]
SMALL = ["--set", "train.batch_size=2", "--set", "rollout.max_completion=6", "--set", "data.eval=0"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of its own, on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with on_path(tmp_path):
        yield tmp_path


def small(words):
    """A command with less to do."""
    return [*words, *SMALL] if words[0] in ("train", "check") else words


@pytest.mark.parametrize(("page", "points"), [
    ("writing-a-reward.md", {"keyword": "keyword_reward:keyword", "later": "later_reward:later",
                             "table": "table_reward"}),
    ("writing-an-algorithm.md", {"reinforce_mean": "reinforce_mean"}),
    ("writing-a-rollout.md", {"plain": "plain_rollout"}),
])
def test_a_tutorial_runs(page, points, folder):
    reader, found = Reader(arguments=small), read_blocks(DOCS / page)
    files = [block.file for block in found if block.language == "python"]
    for block in found:
        reader.write(block)
    INSTALL(folder, "a-tutorial", "0.1", points)
    importlib.invalidate_caches()
    for name in files:
        module = importlib.import_module(name.removesuffix(".py"))
        for test in [f for n, f in vars(module).items() if n.startswith("test_")]:
            test(*[folder] * len(inspect.signature(test).parameters))
    said = [reader.command(line) for block in found if block.language == "bash" for line in commands(block.code)
            if not line.startswith(INSTALLS)]
    assert said
    for code, printed in said:
        assert code == 0, printed


def test_the_rewards_of_the_tutorial_are_named_as_it_says(folder):
    [block] = [b for b in read_blocks(DOCS / "writing-a-reward.md") if b.file == "keyword_reward.py"]
    Reader().write(block)
    INSTALL(folder, "a-tutorial", "0.1", {"keyword": "keyword_reward:keyword"})
    importlib.invalidate_caches()
    shown = CliRunner().invoke(app, ["show", "keyword"])
    assert 'word: string = "thanks"  The word.' in shown.output
    done = CliRunner().invoke(app, ["check", "--algo", "grpo", "--reward", "keyword:thank", "--steps", "1"])
    assert "keyword:thank [1.0, 1.0, 1.0, 1.0]" in done.output


def test_an_algorithm_whose_module_says_nothing_is_shown_without_gaps(folder):
    [block] = [b for b in read_blocks(DOCS / "writing-an-algorithm.md") if b.file == "reinforce_mean.py"]
    Reader().write(block)
    INSTALL(folder, "a-tutorial", "0.1", {"reinforce_mean": "reinforce_mean"})
    importlib.invalidate_caches()
    shown = CliRunner().invoke(app, ["show", "reinforce_mean"]).output
    assert "\n\nMinus the log-likelihood" in shown
    assert "\n\n\n" not in shown


def test_every_hook_is_documented_with_its_signature():
    text = (DOCS / "plugins.md").read_text(encoding="utf-8")
    specs = {name: hook for name, hook in vars(hooks).items() if name.startswith("rlx_")}
    assert len(specs) == 4
    for name, hook in specs.items():
        assert f"| `{name}{inspect.signature(hook)}` | {inspect.getdoc(hook)} |".replace("'", "") in text
