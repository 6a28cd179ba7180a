"""Spec files, flags, and how they lie on each other."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.layers import absolute_paths, assign, leaves, lookup, merge, parse_value, read_spec_file, remove
from rlx_sdk import SpecError

CASES = Path(__file__).parents[1] / "cases"


@pytest.mark.parametrize(("text", "value"), [
    ("1e-5", 1e-5), ("1E-2", 1e-2), ("-1.0e-6", -1e-6), ("1e5", 1e5), (".5", 0.5), ("5.", 5.0), ("+3", 3), ("0", 0),
    ("007", "007"), ("08", "08"), ("1_000", "1_000"), ("0x1f", "0x1f"), ("12:30:00", "12:30:00"), ("1.2.3", "1.2.3"),
    ("no", "no"), ("yes", "yes"), ("on", "on"), ("off", "off"), ("true", True), ("False", False),
    ("null", None), ("~", None), ("", None), ("2024-01-01", "2024-01-01"), ("'1'", "1"), ("[1, 2e-3]", [1, 2e-3]),
    ("{a: 1}", {"a": 1}), ("a: [", "a: ["), ("{{ messages }}", "{{ messages }}"), ("9" * 5000, "9" * 5000),
    ("@x", "@x"),
])
def test_values_are_read_as_yaml_1_2_does(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@settings(deadline=None)
@given(st.text())
def test_any_text_of_a_flag_becomes_a_plain_value(text):
    assert isinstance(parse_value(text), str | int | float | bool | list | dict | None)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.booleans() | st.none())
def test_json_is_read_as_json(value):
    assert parse_value(json.dumps(value)) == value


@pytest.mark.parametrize(("file", "said"), [
    ("S02_empty.yaml", "S02_empty.yaml' is empty. A minimal one:\nalgo: {name: ppo}"),
    ("S02_only_comment.yaml", "S02_only_comment.yaml' is empty. A minimal one:"),
    ("S02_top_level_list.yaml", "S02_top_level_list.yaml' holds a list, not settings by name. A minimal one:"),
    ("S02_two_documents.yaml", "S02_two_documents.yaml' holds 2 documents (split by '---'); keep one."),
    ("no_such.yaml", "no_such.yaml' cannot be read: No such file"),
    ("", "cannot be read: Is a directory"),
])
def test_a_file_that_is_no_spec_is_named_with_what_is_wrong(file, said):
    with pytest.raises(SpecError) as error:
        read_spec_file(CASES / "specs" / file)
    assert said in str(error.value)


@pytest.mark.parametrize(("content", "said"), [
    (b"a: [1", "is not valid YAML: while parsing"), (b"a: 1\na: 2\n", "the key 'a' stands twice"),
    (b"a: {b: 1, b: 2}", "the key 'b' stands twice"), (b"a: \xff", "is not valid YAML: 'utf-8' codec"),
    (b"a: !!python/object:os.system x", "is not valid YAML: could not determine a constructor"),
    (b"a: " + b"9" * 5000, "is not valid YAML: Exceeds the limit"), (b"{[1]: 2}", "is not valid YAML"),
])
def test_broken_yaml_is_named(tmp_path, content, said):
    (tmp_path / "spec.yaml").write_bytes(content)
    with pytest.raises(SpecError) as error:
        read_spec_file(tmp_path / "spec.yaml")
    assert said in str(error.value)
    assert "spec.yaml" in str(error.value)


def test_paths_are_relative_to_the_spec_file_where_they_exist(tmp_path, monkeypatch):
    (tmp_path / "here" / "teacher").mkdir(parents=True)
    (tmp_path / "here" / "data.jsonl").touch()
    template = "{{ x }}" * 100  # longer than any file name may be
    (tmp_path / "here" / "spec.yaml").write_text(
        f"data: {{path: data.jsonl, eval: 5}}\nother: data.jsonl\n"
        f"model: {{path: org/name, chat_template: '{template}', reference: {{path: teacher}}}}\n")
    monkeypatch.chdir(tmp_path)
    tree = read_spec_file(Path("here/spec.yaml"))
    assert tree == {"data": {"path": "here/data.jsonl", "eval": 5}, "other": "data.jsonl",
                    "model": {"path": "org/name", "chat_template": template, "reference": {"path": "here/teacher"}}}
    assert absolute_paths(tree)["model"]["reference"]["path"] == str(tmp_path / "here" / "teacher")


@pytest.mark.parametrize(("path", "wanted"), [
    ("[data.jsonl, 'hf:name']", ["here/data.jsonl", "hf:name"]),
    ("{data.jsonl: 2, 'part-*.csv': 1}", {"here/data.jsonl": 2, "here/part-*.csv": 1}),
    ("'*.csv'", "here/*.csv"), ("'*.parquet'", "*.parquet"),
])
def test_so_are_several_paths_and_patterns(tmp_path, monkeypatch, path, wanted):
    (tmp_path / "here").mkdir()
    for name in ("data.jsonl", "part-1.csv"):
        (tmp_path / "here" / name).touch()
    (tmp_path / "here" / "spec.yaml").write_text(f"data: {{path: {path}}}\n")
    monkeypatch.chdir(tmp_path)
    assert read_spec_file(Path("here/spec.yaml"))["data"]["path"] == wanted


def test_later_layers_win_leaf_by_leaf_and_leave_the_first_untouched():
    base = {"train": {"seed": 8, "optim": {"policy": {"lr": 1.0}}}, "rewards": [1, 2]}
    over = {"train": {"optim": {"policy": {"eps": 2.0}}}, "rewards": [3]}
    assert merge(base, over) == {"train": {"seed": 8, "optim": {"policy": {"lr": 1.0, "eps": 2.0}}}, "rewards": [3]}
    assert base == {"train": {"seed": 8, "optim": {"policy": {"lr": 1.0}}}, "rewards": [1, 2]}
    assert merge({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}


@pytest.mark.parametrize(("one", "other"), [("steps", "epochs"), ("epochs", "steps")])
def test_a_later_length_takes_the_place_of_the_other_kind(one, other):
    assert merge({"train": {one: 40}}, {"train": {other: 2}}) == {"train": {other: 2}}


def test_dotted_names():
    tree = {}
    assign(tree, "a.b.c", 1)
    assign(tree, "a.d", {})
    assert (tree, list(leaves(tree))) == ({"a": {"b": {"c": 1}, "d": {}}}, ["a.b.c", "a.d"])
    assert (lookup(tree, "a.b.c"), lookup(tree, "a.x.y"), lookup(tree, "a.b.c.d")) == (1, None, None)
    remove(tree, "a.b")
    remove(tree, "x.y")
    assert tree == {"a": {"d": {}}}
    with pytest.raises(SpecError, match=r"'a\.d\.e\.f': 'e' is already set to 3, so nothing can be set inside it"):
        assign({"a": {"d": {"e": 3}}}, "a.d.e.f", 1)
