"""Files of any content: rows come out as they went in, or a DataError says what is wrong; nothing else is ever raised.

For a longer search: ``pytest tests/data/test_fuzz.py --hypothesis-profile=long``.
"""

import csv
import datetime
import gzip
import io
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rlx.data import Limits, layouts, open_rows, prepare_rows
from rlx.data.layouts import KINDS, KNOWN
from rlx.data.look import lines, look_at
from rlx_sdk import DataError

calm = settings(deadline=None, suppress_health_check=list(HealthCheck))
texts = st.text(max_size=30) | st.sampled_from(
    ["", " ", "<|im_end|>", "a<|im_end|>b", "\n\nAssistant: x", "None", "é\u0301"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
                        max_leaves=6)
functions = st.fixed_dictionaries({"name": texts, "arguments": anything})
calls = st.lists(st.fixed_dictionaries({"function": functions}) | anything, max_size=2)
turns = (st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool", "odd"]),
                                "content": texts | anything}, optional={"tool_calls": calls | anything})
         | st.fixed_dictionaries({"from": st.sampled_from(["human", "gpt", "system", "function_call", "odd"]),
                                  "value": texts | anything}))
chats = st.lists(turns, max_size=4)
good = st.just([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}])
names = st.sampled_from([*KNOWN, "system", "tools", "history", "reward_model", "text", "x"])
values = texts | chats | good | anything | st.lists(texts | st.floats(), max_size=3)
EXAMPLES = [layout["example"] for layout in yaml.safe_load(Path(layouts.__file__).with_suffix(".yaml").read_text())]
nearly = st.builds(lambda row, other: {**row, **other}, st.sampled_from(EXAMPLES),
                   st.dictionaries(names, values, max_size=1))
rows_of = (st.lists(st.dictionaries(names, values, max_size=5), min_size=1, max_size=4)
           | st.lists(nearly, min_size=1, max_size=3) | st.lists(st.sampled_from(EXAMPLES[:3]), min_size=1, max_size=3))


def outcome(content, name, kind, tokenizer, limits):
    """The rows that were prepared, checked; or the error's text."""
    with tempfile.TemporaryDirectory() as folder:
        file, cache = Path(folder) / name, Path(folder) / "cache"
        file.write_bytes(content)
        try:
            found = prepare_rows(open_rows(str(file), cache), kind, tokenizer, limits, {}, cache)
        except DataError as error:
            return named(error, name)
        for i in range(len(found)):
            check_row(found, i, tokenizer, limits)
        return [found.rows[found.row_index(i)] for i in range(len(found))]


def named(error, name):
    assert name in str(error)
    return str(error)


def check_row(found, i, tokenizer, limits):
    """What was written is what is trained, to its stop token; cut only where that was asked for; never to nothing."""
    example, cut, stops = found.example(i), limits.overlong.startswith("truncate"), set(tokenizer.stop_token_ids)
    sides = [c for c in ("completion", "chosen", "rejected") if c in found.table.column_names]
    prompt = found.ids(i, "prompt")
    assert prompt
    assert found.kind != "labelled" or found.table.column("label")[i].as_py() is example.label
    for side, answer in zip(sides, example.answers, strict=True):
        ids = found.ids(i, side)
        assert ids
        assert limits.total is None or len(prompt) + len(ids) <= limits.total
        assert not stops & set(ids[:-1])
        if not cut:
            written = answer if isinstance(answer, str) else answer["content"]
            assert ids[-1] in stops
            assert written.strip().removesuffix("<|im_end|>").strip() in tokenizer.decode(prompt + ids, True)
    assert limits.prompt is None or len(prompt) <= limits.prompt
    system = found.rows[found.row_index(i)].get("system")
    assert cut or not system or example.hidden or system in tokenizer.decode(prompt, True)
    if isinstance(example.prompt, str) and example.prompt and not cut:
        assert tokenizer.decode(prompt, True) == example.prompt


def as_read(value):
    """NaN equals nothing; by text it does."""
    return json.dumps(value, sort_keys=True)


limits_of = st.builds(Limits, st.none() | st.integers(1, 60), st.none() | st.integers(2, 60),
                      st.sampled_from(["error", "drop", "truncate_left", "truncate_right"]))


@calm
@given(rows_of, st.sampled_from(KINDS), st.sampled_from([".jsonl", ".json", ".jsonl.gz", ".json.gz"]), st.booleans(),
       limits_of)
@example(rows=[{"prompt": "2+2?", "system": "Be."}, {**EXAMPLES[1], "system": "Be."}], kind="rollouts", name=".jsonl",
         ascii_only=True, limits=Limits())
def test_objects(tokenizer, rows, kind, name, ascii_only, limits):
    whole = json.dumps(rows, ensure_ascii=ascii_only) if ".json." in f"{name}." and "jsonl" not in name else "".join(
        json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)
    content = whole.encode("utf-8", "surrogatepass")
    found = outcome(gzip.compress(content) if name.endswith("gz") else content, f"d{name}", kind, tokenizer(), limits)
    assert isinstance(found, str) or all(as_read(row) in {as_read(r) for r in rows} for row in found)


@calm
@given(st.lists(names, min_size=1, max_size=4, unique=True), st.data(), st.sampled_from(KINDS), limits_of)
def test_cells(tokenizer, columns, data, kind, limits):
    cell = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(["007", "null", "", "true"])
    rows = data.draw(st.lists(st.lists(cell, min_size=len(columns), max_size=len(columns)), max_size=4))
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
    writer.writerows([columns, *rows])
    found = outcome(stream.getvalue().encode(), "d.csv", kind, tokenizer(), limits)
    assert isinstance(found, str) or all(list(row.values()) in rows for row in found)


arrays = st.sampled_from([
    pa.string(), pa.large_string(), pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("ns"),
    pa.decimal128(9, 2), pa.binary(), pa.null(), pa.list_(pa.string()), pa.dictionary(pa.int32(), pa.string()),
    pa.list_(pa.dictionary(pa.int8(), pa.string())), pa.map_(pa.string(), pa.int64()), pa.duration("ns"),
    pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])), pa.time64("ns"), pa.string_view()])


def made(kind, data):
    """A value that fits an Arrow type."""
    if data.draw(st.integers(0, 4)) == 0:
        return None
    if pa.types.is_dictionary(kind):
        return made(kind.value_type, data)
    if pa.types.is_list(kind):
        return [made(kind.value_type, data) for _ in range(data.draw(st.integers(0, 3)))]
    if pa.types.is_struct(kind):
        return {"role": data.draw(st.sampled_from(["user", "assistant", "odd"])), "content": data.draw(texts)}
    if pa.types.is_map(kind):
        return [("k", 1)]
    simple = {"date32[day]": datetime.date(2024, 1, 2), "binary": b"\xff", "decimal128(9, 2)": None, "null": None}
    if str(kind) in simple:
        return simple[str(kind)]
    if pa.types.is_boolean(kind):
        return data.draw(st.booleans())
    number = pa.types.is_integer(kind) or pa.types.is_temporal(kind)
    low, high = (0, 10**13) if pa.types.is_time(kind) else (-2**62, 2**62)
    return data.draw(st.integers(low, high) if number else st.floats() if pa.types.is_floating(kind)
                     else st.text(st.characters(exclude_categories=["Cs"]), max_size=20))


@calm
@given(st.dictionaries(names, arrays, min_size=1, max_size=4), st.data(), st.sampled_from(KINDS), limits_of)
def test_columns(tokenizer, schema, data, kind, limits):
    n, stream = data.draw(st.integers(0, 4)), io.BytesIO()
    columns = {name: pa.array([made(kind, data) for _ in range(n)], kind) for name, kind in schema.items()}
    try:
        pq.write_table(pa.table(columns), stream)
    except (pa.ArrowException, OSError):  # no such column in parquet
        return
    found = outcome(stream.getvalue(), "d.parquet", kind, tokenizer(), limits)
    if not isinstance(found, str):
        held = [repr(row) for row in pq.read_table(stream).to_pylist()]
        assert all(repr(row) in held for row in found)


ORDINARY = {
    "d.jsonl": b'{"prompt": "Add 2 and 2.", "completion": "4"}\n' * 3,
    "d.json": json.dumps([{"prompt": "Add 2 and 2.", "completion": "é"}] * 3).encode(),
    "d.csv": 'prompt,completion\n"Add 2, ""and"" 2.",4\nb,é\n'.encode(),
    "d.jsonl.gz": gzip.compress(b'{"prompt": "Add 2 and 2.", "completion": "4"}\n' * 30),
}
_frame = io.BytesIO()
pq.write_table(pa.table({"prompt": ["Add 2 and 2."] * 3, "completion": ["4"] * 3}), _frame)
ORDINARY["d.parquet"] = _frame.getvalue()


@calm
@given(st.sampled_from(sorted(ORDINARY)), st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=4)), max_size=3),
       st.floats(0.2, 1))
def test_damage(tokenizer, name, edits, kept):
    """What is left of the file is read as it was, unless the damage is inside of a value; else it is an error."""
    content = bytearray(ORDINARY[name])
    for place, new in edits:
        at = int(place * len(content))
        content[at : at + len(new)] = new
    found = outcome(bytes(content[: max(1, round(kept * len(content)))]), name, "demonstrations", tokenizer(), Limits())
    if not isinstance(found, str):
        whole = outcome(ORDINARY[name], name, "demonstrations", tokenizer(), Limits())
        assert 0 < len(found) <= len(whole)
        assert edits or all(row in whole for row in found)


@calm
@given(st.binary(max_size=200) | texts.map(lambda t: t.encode("utf-16", "surrogatepass")),
       st.sampled_from(["d.jsonl", "d.json", "d.csv", "d.parquet", "d.json.gz", "d.parquet.gz"]))
def test_noise(tokenizer, content, name):
    assert isinstance(outcome(content, name, "rollouts", tokenizer(), Limits()), str)


@pytest.fixture(scope="module")
def folder(model_folder):
    return str(model_folder("T00_base"))


@calm
@given(rows_of)
def test_every_file_can_be_looked_at(folder, rows):
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        try:
            report = look_at({"path": f"{place}/d.jsonl", "cache": place}, folder, None, 1)
        except DataError as error:
            named(error, "d.jsonl")
            return
        assert report["usable"] == len(rows) - sum(int(p.split()[0]) for p in report["problems"] if "cannot be" in p)
        "\n".join(lines(report)).encode()
        json.dumps(report)
