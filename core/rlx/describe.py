"""Plugins and the spec described from the code itself."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rlx.registry import KINDS, Entry, Registry
from rlx.spec import Spec
from rlx.text import did_you_mean
from rlx_sdk import PluginError

_WHEN = "When to use: "


def describe_plugin(name: str) -> list[dict[str, Any]]:
    """Every plugin of that name, whatever its kind, with the JSON schema of its options.

    Raises:
        PluginError: there is none.
    """
    registry = Registry.discover()
    entries = [(kind, e) for kind in KINDS for e in registry.entries(kind) if name in (e.name, f"{e.package}/{e.name}")]
    if not entries:
        known = [e.name for kind in KINDS for e in registry.entries(kind)]
        raise PluginError(f"no plugin '{name}'.{did_you_mean(name, known)} (rlx plugins lists {len(known)})"
                          f"{registry.broken_note()}")
    return [{"kind": kind, "name": e.name, "package": e.package, "version": e.version, "summary": e.plugin.summary,
             "missing": e.missing(), "options": e.call("config").model_json_schema(),
             **(describe_algorithm(e) if kind == "algorithm" and not e.missing() else {})}
            for kind, e in entries]


def describe_algorithm(entry: Entry) -> dict[str, Any]:
    """What an algorithm needs, its formula, its source and when to use it; the texts are its module's and class's."""
    alone, scored = (entry.call("needs", entry.call("config")(), rewards) for rewards in (False, True))
    asked = [scored if alone.rewards else alone, *([scored] if alone.data != scored.data else [])]
    sizes = [str(n.group_size or n.min_group) if n.data == "rollouts" else "–" for n in asked]
    build = entry.plugin.build
    algorithm = build.resolve() if hasattr(build, "resolve") else build
    text = inspect.getdoc(importlib.import_module(algorithm.__module__)) or ""
    data = (n.data + ", scored" * n.rewards + " as a whole and by step" * n.token_rewards for n in asked)
    return {"needs": {"data": " or ".join(data),
                      "trains": ", ".join(sorted(asked[0].trains)),
                      "frozen": ", ".join(sorted(asked[0].frozen)) or "–", "samples a prompt": " or ".join(sizes)},
            "formula": (inspect.getdoc(algorithm) or "").replace("``", "`"), "text": text.replace("``", "`"),
            "when": " ".join(text.partition(_WHEN)[2].partition("\n\n")[0].split())}


class Option(NamedTuple):
    """One option, or a group of them, whose type says so."""

    name: str
    """With those of the groups it is in: ``kl.coef``; ``rewards[].name`` within a list."""
    type: str
    default: str | None
    """As JSON; None for one that must be given, and for a group."""
    meaning: str


def options(schema: Mapping[str, Any]) -> Iterator[Option]:
    """The options of a JSON schema, groups before what is in them."""
    yield from _options(schema, schema.get("$defs", {}), "", {})


def _options(schema: Mapping[str, Any], definitions: Mapping[str, Any], before: str,
             defaults: Mapping[str, Any]) -> Iterator[Option]:
    for name, plain in schema.get("properties", {}).items():
        field = {**plain, "default": defaults[name]} if name in defaults else plain  # the group's own come first
        found = [(how, definitions.get(part.get("$ref", "").rpartition("/")[2])) for how, part in _parts(field)]
        how, group = next(((how, group) for how, group in found if group is not None), ("", None))
        meaning = field.get("description", (group or {}).get("description", ""))
        default = json.dumps(field["default"], ensure_ascii=False) if "default" in field else None
        yield Option(before + name, how if group else _type(field), default if how != "group" else None,
                     " ".join(meaning.split()))
        if group is not None:
            inner = field.get("default") if how == "group" else None
            yield from _options(group, definitions, f"{before}{name}{'[]' if how.startswith('list') else ''}.",
                                inner or {})


def _parts(field: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where a group may stand in a field."""
    yield "group", field
    yield "list of groups", field.get("items", {})
    for part in field.get("anyOf", ()):
        yield "group or null", part


def option_lines(schema: Mapping[str, Any]) -> Iterator[str]:
    """``name: type = default  what it does``, one line an option."""
    for name, kind, default, meaning in options(schema):
        shown = "" if kind == "group" else f"{kind}{f' = {default}' if default is not None else ''}  "
        yield f"{'  ' * (name.count('.') + 1)}{name.rpartition('.')[2]}: {shown}{meaning}"


def _type(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(f) for f in field["anyOf"])
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") in ("array", "object"):
        inner = field.get("items", field.get("additionalProperties"))
        of = _type(inner) if isinstance(inner, Mapping) else "any"
        return {"array": "list", "object": "mapping"}[field["type"]] + ("" if of == "any" else f" of {of}")
    low, high = (next((f"{sign} {field[k]}" for k, sign in keys if k in field), "") for keys in (
        (("minimum", ">="), ("exclusiveMinimum", ">")), (("maximum", "<="), ("exclusiveMaximum", "<"))))
    bounds = ", ".join(b for b in (low, high) if b)
    return f"{field.get('type', 'any')}{f' ({bounds})' if bounds else ''}"


def spec_schema() -> dict[str, Any]:
    """The JSON schema of the spec, with the options of every installed plugin under ``x-plugins``."""
    registry = Registry.discover()
    schema = Spec.model_json_schema()
    schema["x-plugins"] = {kind: {e.name: e.call("config").model_json_schema() for e in registry.entries(kind)
                                  if not e.missing()} for kind in KINDS}
    return schema
