"""The core stays small enough to read: to add, simplify."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import rlx
from rlx.registry import Registry

CORE = Path(rlx.__file__).parent
PLUGINS = CORE.parents[1] / "plugins" / "rlx_plugins"
SOURCES = {str(f.relative_to(CORE)): f.read_text(encoding="utf-8") for f in CORE.rglob("*.py")}
NAMES = {"ppo", "dpo", "sft", "polite_length", "hf", "vllm", "wandb"}


def code_lines(text: str) -> int:
    """Lines that hold code: no blank lines, comments, docstrings or imports."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and number not in prose
               for number, line in enumerate(text.splitlines(), 1))


COMMANDS = {"api.py", "cli.py", "data/look.py", "describe.py", "new_reward.py", "serve.py", "terminal.py"}
"""What people type and see; each reads what the rest offers, and nothing of the rest needs it."""
REWARDS = {"functions.py", "guard.py", "isolate.py", "rewards.py", "worker.py"}
"""Rewards of any origin: found by name, limited in time, kept apart, measured. A stranger's code is met only here."""
PREFLIGHT = {"check.py", "identity.py", "memory.py", "preflight.py", "start.py"}
"""What looks at a run before it starts; the run itself goes without."""
LOOKS = {"sample.py", "view.py"}
"""With the folder of that name: what people look at of a run, while it runs and after."""
PARTS = {name: part for part, names in (
    ("commands", COMMANDS), ("rewards", REWARDS), ("preflight", PREFLIGHT), ("looks", LOOKS)) for name in names}
BOUNDS = {"preflight": 462, "looks": 620, "rewards": 380, "data": 1060, "ops": 220, "models": 328,
          "commands": 450, "engine": 2735}


def test_core_stays_readable():
    """Of each part, so that none grows at the cost of another."""
    sizes: dict[str, int] = dict.fromkeys(BOUNDS, 0)
    for name, text in SOURCES.items():
        part = PARTS.get(name, name.split("/")[0])
        sizes["engine" if part.endswith(".py") else part] += code_lines(text)
    assert {part: size for part, size in sizes.items() if size > BOUNDS[part]} == {}, sizes


def test_files_and_functions_are_short():
    functions = [(name, node) for name, text in SOURCES.items() for node in ast.walk(ast.parse(text))
                 if isinstance(node, ast.FunctionDef)]
    assert [f"{name}: {f.name}" for name, f in functions if (f.end_lineno or 0) - f.lineno >= 60] == []
    assert [name for name, text in SOURCES.items() if text.count("\n") > 300] == []


def test_the_trainer_and_the_algorithms_stay_short():
    assert code_lines(SOURCES["trainer.py"]) <= 155
    built = [entry.plugin.build.resolve() for entry in Registry.discover().entries("algorithm")]
    modules = {sys.modules[part.__module__] for kind in built for part in kind.__mro__}
    files = {Path(str(m.__file__)) for m in modules if m.__name__.startswith("rlx_plugins")} | {PLUGINS / "pairs.py"}
    assert len(files) == len(built) + 3  # three hold what several share
    sizes = {file.name: code_lines(file.read_text(encoding="utf-8")) for file in files}
    assert {name: size for name, size in sizes.items() if size > 120} == {}


def test_core_compares_nothing_with_the_name_of_a_plugin():
    compared = [f"{name}:{node.lineno}" for name, text in SOURCES.items() for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Compare) and NAMES & {c.value for c in [node.left, *node.comparators]
                                                             if isinstance(c, ast.Constant)}]
    assert compared == []
