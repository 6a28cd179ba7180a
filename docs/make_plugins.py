"""Writes a page of every plugin that comes with rlx, from the plugin itself: ``python docs/make_plugins.py``."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlx.describe import describe_algorithm, options
from rlx.registry import KINDS, Entry, Registry

HERE = Path(__file__).parent
TOP = "<!-- Made by docs/make_plugins.py from the plugin; edit its docstrings and options, or that script. -->"
ALIASES = {"https"}
"""The same plugin under a second name."""
USED = {"algorithm": "`--algo {name}`; in a spec file `algo: {{name: {name}}}`.",
        "reward": "`--reward {text}`, or `--reward {text}=0.5` for another weight; in a spec file "
                  "`rewards: [{{name: \"{text}\"}}]`.",
        "rollout": "`--rollout {name}`; in a spec file `rollout: {{name: {name}}}`.",
        "tracker": "`--set 'trackers=[{{name: {name}}}]'`; in a spec file `trackers: [{{name: {name}}}]`."}
SETTING = {"algorithm": "algo.", "reward": "", "rollout": "rollout.options.", "tracker": ""}
"""What stands before an option's name in --set; rewards and trackers are lists, with ``options`` in each entry."""
LISTS = {"reward": "rewards", "tracker": "trackers"}


def pages() -> dict[str, str]:
    """The text of each page, by its path in docs."""
    registry = Registry.discover()
    return {path_of(kind, entry.name): page(kind, entry) for kind in KINDS for entry in registry.entries(kind)
            if entry.package == "rlx" and entry.name not in ALIASES}


def path_of(kind: str, name: str) -> str:
    """Where the page of a plugin is."""
    return f"{kind}s/{name.replace('+', '_plus')}.md"


def page(kind: str, entry: Entry) -> str:
    """The page of one plugin."""
    plugin = entry.plugin
    argument = {None: "", "url": "://HOST:PORT"}.get(plugin.argument, f":{(plugin.argument or '').upper()}")
    needs = ", ".join(f"`pip install '{what}'`" for what in dict.fromkeys(plugin.requires.values()))
    used = USED[kind].format(name=entry.name, text=entry.name + argument)
    always = getattr(plugin, "always", False)
    parts = [f"# {entry.name}", TOP,
             *(_algorithm(entry) if kind == "algorithm" else _prose(plugin.build.target, kind != "tracker")),
             "Every run has it." if always else f"Use it: {used}", *([f"Needs {needs}."] if needs else []),
             "## Options", _table(kind, entry.call("config").model_json_schema()),
             f"Source: `plugins/{plugin.build.target.partition(':')[0].replace('.', '/')}.py`."]
    return "\n\n".join(parts) + "\n"


def _algorithm(entry: Entry) -> Iterator[str]:
    found = describe_algorithm(entry)
    yield found["text"]
    yield found["formula"]
    names = list(found["needs"])
    yield (f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n| {' | '.join(found['needs'].values())} |")


def _prose(target: str, classes: bool) -> Iterator[str]:
    """The docstrings of a module, which is not imported, and of the class in it."""
    module, _, name = target.partition(":")
    found = importlib.util.find_spec(module)
    tree = ast.parse(Path(str(found and found.origin)).read_text(encoding="utf-8"))
    for node in (tree, *(n for n in tree.body if classes and isinstance(n, ast.ClassDef) and n.name == name)):
        yield inspect.cleandoc(ast.get_docstring(node) or "").replace("``", "`")


def _table(kind: str, schema: Mapping[str, Any]) -> str:
    """Options as rows, with the names that --set takes."""
    found = [option for option in options(schema) if option.type != "group"]
    if not found:
        return "None."
    where = f"In `options` of its entry in `{LISTS[kind]}`.\n\n" if kind in LISTS else ""
    return where + "| setting | type | default | what it does |\n|---|---|---|---|\n" + "\n".join(
        "| " + " | ".join(cell.replace("|", "∣").replace("``", "`") for cell in (
            f"`{SETTING[kind]}{option.name}`", option.type.replace(" | ", ", "),
            "required" if option.default is None else f"`{option.default}`", option.meaning)) + " |"
        for option in found)


if __name__ == "__main__":
    for path, text in pages().items():
        (HERE / path).parent.mkdir(exist_ok=True)
        (HERE / path).write_text(text, encoding="utf-8")
