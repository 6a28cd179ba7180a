"""Specs of any content: a plan that holds what was written, or a SpecError that says what is wrong; nothing else.

For a longer search: ``pytest tests/spec/test_fuzz.py --hypothesis-profile=long``.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from rlx.layers import assign, expand_home, lookup, merge, parse_value, read_spec_file, to_yaml
from rlx.plan import Plan, resolve
from rlx.registry import Registry
from rlx.runs import saved_spec
from rlx.spec import Spec
from rlx_sdk import SpecError

CASES = Path(__file__).parents[1] / "cases"
REGISTRY = Registry.discover()
calm = settings(deadline=None, suppress_health_check=list(HealthCheck))


def names_of(section: type[BaseModel], prefix: str = "") -> list[str]:
    found = []
    for name, field in section.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        inner = next((kind for kind in kinds if issubclass(kind, BaseModel)), None)
        found += [prefix + name, *(names_of(inner, f"{prefix}{name}.") if inner else ())]
    return found


KNOWN = names_of(Spec)
OPTIONS = [f"algo.{name}" for algo in ("ppo", "grpo", "dpo", "sft", "kto")
           for name in REGISTRY.get("algorithm", algo).call("config").model_fields]
texts = st.text(max_size=12) | st.sampled_from(["auto", "hf", "ppo", "PPO", "org/m", "1e-5", "~/x", "a:b", "{{ x }}",
                                                "polite_length", "polite_lenght", "http://x", "\x00", "-"])
scalars = st.none() | st.booleans() | st.integers(-3, 300) | st.integers() | st.floats() | texts
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
                        max_leaves=5)
dotted = st.sampled_from(KNOWN) | st.sampled_from(OPTIONS) | st.sampled_from(KNOWN).map(lambda name: name + "s") | (
    st.lists(texts, min_size=1, max_size=3).map(".".join))
changes = st.lists(st.tuples(dotted, anything), max_size=3)


@pytest.fixture(scope="module")
def base(model: str) -> Any:
    def make(algo: str) -> dict[str, Any]:
        sampled = algo in ("ppo", "grpo")
        return {"algo": {"name": algo}, "model": {"path": model}, "data": {"path": "data.jsonl"}, "train": {"steps": 1},
                **({"rewards": [{"name": "polite_length"}], "rollout": {"name": "hf"}} if sampled else {})}

    return make


def said(error: SpecError, text: str = "") -> None:
    assert error.problems
    assert all(isinstance(problem, str) and problem.strip() for problem in error.problems)
    assert text in str(error)


def outcome(tree: dict[str, Any]) -> Plan | None:
    try:
        return resolve(REGISTRY, tree)
    except SpecError as error:
        return said(error)


def written(plan: Plan) -> dict[str, Any]:
    """What the run would be, as it is written into spec.yaml."""
    tree: dict[str, Any] = plan.spec.model_dump(mode="json")
    options = plan.algorithm.options
    return merge(tree, {"algo": options.model_dump(mode="json") if options is not None else {}})


@calm
@given(algo=st.sampled_from(["ppo", "grpo", "dpo", "sft", "kto"]), changed=changes)
def test_any_spec_becomes_what_it_says_or_is_refused(base, algo, changed):
    tree, given = base(algo), dict[str, Any]()
    for name, value in changed:
        try:
            assign(tree, name, copy.deepcopy(value))
        except SpecError:
            return
        given = {k: v for k, v in given.items() if not k.startswith(name)} | {name: value}
    plan = outcome(tree)
    if plan is None:
        return
    for name, value in given.items():
        if isinstance(value, str | int | float | bool) and not (name.endswith("path") or name == "run.dir"):
            found = lookup(written(plan), name)
            assert found == value or (name in ("rollout.name", "data.eval") or str(value).startswith("~")), name
    again = outcome(json.loads(json.dumps(plan.spec.model_dump(mode="json"))))
    assert again is None or again.spec == plan.spec
    saved = saved_spec(plan)
    assert saved_spec(resolve(REGISTRY, saved, saved=True)) == expand_home(saved), "it can be resumed"


@calm
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | anything.map(
    lambda value: json.dumps(value).encode()))
def test_any_file_is_a_tree_or_named(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content)
    try:
        assert isinstance(read_spec_file(file), dict)
    except SpecError as error:
        said(error, "any.yaml")


@calm
@given(st.dictionaries(texts.filter(lambda key: "." not in key), anything, min_size=1, max_size=4))
def test_what_is_written_is_read_back(tmp_path_factory, tree):
    file = tmp_path_factory.getbasetemp() / "written.yaml"
    file.write_text(to_yaml({"x": tree}), encoding="utf-8")
    found = read_spec_file(file)
    assert json.dumps(found, sort_keys=True) == json.dumps({"x": tree}, sort_keys=True)


@calm
@given(name=dotted, text=st.text(max_size=20))
def test_any_flag_is_set_or_refused(base, name, text):
    tree = base("sft")
    try:
        assign(tree, name, parse_value(text))
    except SpecError as error:
        return said(error)
    outcome(tree)
