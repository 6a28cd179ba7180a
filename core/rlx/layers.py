"""Where settings come from: the quickstart, a spec file, flags; later ones win."""

from __future__ import annotations

import copy
import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlx.machine import expanded
from rlx_sdk import SpecError
from rlx_sdk.errors import type_of

QUICKSTART = Path(__file__).parent / "quickstart" / "quickstart.yaml"
MINIMAL = """\
algo: {name: ppo}
model: {path: MODEL_FOLDER}
data: {path: DATA_FILE}
rewards: [{name: REWARD}]
train: {steps: 10}"""
_PATHS = ("model.path", "model.chat_template", "model.critic.init", "model.reference.path", "data.path", "data.eval")
_EITHER = (("train.steps", "train.epochs"),)

Tree = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers and booleans: 1e-5 is a number, ``no``, dates and 007 are text, a key stands once."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own protocol

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((k for k in keys if keys.count(k) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key '{twice}' stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _resolvers() -> Iterator[tuple[str, str, str]]:
    yield "null", r"^(?:~|null|Null|NULL|)$", "~nN\0"
    yield "bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"
    yield "int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"
    number = r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    yield "float", rf"^(?:{number}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", "-+0123456789."


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` or another YAML reader would take for something else."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Line ends that other styles would turn into plain ones are escaped."""
    style = '"' if any(end in text for end in "\r\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
for _tag, _pattern, _first in _resolvers():
    for _taught in (_Loader, _Dumper):
        _taught.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern),
                                      [c.strip("\0") for c in _first])


def to_yaml(tree: Tree) -> str:
    """A tree as text that `read_spec_file` reads back as it was."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def parse_value(text: str) -> Any:
    """A flag's value as YAML reads it."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError):  # ValueError: a number of more digits than Python reads
        return text


def named_weight(text: str) -> Tree:
    """``NAME`` or ``NAME=WEIGHT`` as a reward of the spec; a URL may hold ``=`` too."""
    name, equals, weight = text.rpartition("=")
    value = parse_value(weight)
    if not equals or (":" in name and not isinstance(value, int | float)):
        return {"name": text}
    return {"name": name, "weight": value}


def read_spec_file(path: Path) -> Tree:
    """A spec file as a tree; its paths are taken relative to the file where that exists, else as given.

    Raises:
        SpecError: unreadable, not YAML, or not one mapping.
    """
    if path.suffix in (".jsonl", ".parquet", ".csv"):
        raise SpecError([f"'{path}' is no spec file (SPEC.yaml): data is given with --data {path}"])
    try:
        documents = list(yaml.load_all(path.read_text(encoding="utf-8"), _Loader))
    except OSError as error:
        raise SpecError([f"spec file '{path}' cannot be read: {error.strerror or error}. (Data is given with "
                         "--data FILE, a setting with --set NAME=VALUE)"]) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8
        raise SpecError([f"spec file '{path}' is not valid YAML: {error}"]) from error
    if len(documents) > 1:
        raise SpecError([f"spec file '{path}' holds {len(documents)} documents (split by '---'); keep one."])
    tree = documents[0] if documents else None
    if not isinstance(tree, dict):
        what = "is empty" if tree is None else f"holds {type_of(tree)}, not settings by name"
        raise SpecError([f"spec file '{path}' {what}. A minimal one:\n{MINIMAL}"])
    return _each_path(tree, _PATHS, lambda p: str(path.parent / p) if _is_there(path.parent / p) else p)


def absolute_paths(tree: Tree) -> Tree:
    """The tree with every local path that exists made absolute, so that it means the same from any folder."""
    return _each_path(tree, _PATHS, lambda p: str(Path(p).absolute()) if _is_there(Path(p)) else p)


def _is_there(path: Path) -> bool:
    """Whether a path or a pattern names a file; a chat template, which may be any text, does not."""
    return os.path.exists(path) or ("{" not in str(path) and bool(glob.glob(str(path))))


def expand_home(tree: Tree) -> Tree:
    """The tree with ``~`` written out in every path."""
    settings = (*_PATHS, "data.cache", "run.dir", "run.resume")
    return _each_path(tree, settings, lambda p: str(expanded(p)) if p.startswith("~") else p)


def _each_path(tree: Tree, settings: Sequence[str], change: Callable[[str], str]) -> Tree:
    """The tree with every path changed: a text, those of a list, or the names of a mapping."""
    for setting in settings:
        value = lookup(tree, setting)
        if isinstance(value, str):
            assign(tree, setting, change(value))
        elif isinstance(value, list | dict):
            names = [change(path) if isinstance(path, str) else path for path in value]
            assign(tree, setting, names if isinstance(value, list) else dict(zip(names, value.values(), strict=True)))
    rewards = tree.get("rewards")
    for entry in rewards if isinstance(rewards, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):  # file.py:function, or hf:folder
            head, colon, rest = entry["name"].partition(":")
            entry["name"] = f"{change(head)}:{rest if head.endswith('.py') else change(rest)}" if colon else head
    return tree


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """``over`` on top of ``base``; of settings that exclude each other, only the one in ``over`` stays."""
    merged = copy.deepcopy(dict(base))
    for pair in _EITHER:
        for one, other in (pair, pair[::-1]):
            if lookup(over, one) is not None:
                remove(merged, other)
    _merge_into(merged, over)
    return merged


def _merge_into(tree: Tree, over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge_into(tree[key], value)
        else:
            tree[key] = copy.deepcopy(dict(value) if isinstance(value, Mapping) else value)


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings in a tree."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def lookup(tree: Mapping[str, Any], setting: str) -> Any:
    """The value of a dotted name, or None."""
    here: Any = tree
    for part in setting.split("."):
        here = here.get(part) if isinstance(here, Mapping) else None
    return here


def assign(tree: Tree, setting: str, value: Any) -> None:
    """Set a dotted name."""
    *parents, last = setting.split(".")
    for part in parents:
        here = tree.setdefault(part, {})
        if not isinstance(here, dict):
            raise SpecError([f"'{setting}': '{part}' is already set to {here!r}, so nothing can be set inside it."])
        tree = here
    tree[last] = value


def remove(tree: Tree, setting: str) -> None:
    """Remove a dotted name, if it is there."""
    parent, _, last = setting.rpartition(".")
    here = lookup(tree, parent) if parent else tree
    if isinstance(here, dict):
        here.pop(last, None)
