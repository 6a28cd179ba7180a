"""Parquet and jsonl files as rows of plain Python values."""

import datetime
import json
import tempfile
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.data import open_rows
from rlx_sdk import DataError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(), values, max_size=4), min_size=1, max_size=4), st.booleans())
def test_jsonl_objects_come_back_exactly(objects, ascii_only):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.jsonl"
        file.write_text("".join(json.dumps(o, ensure_ascii=ascii_only) + "\n" for o in objects), encoding="utf-8")
        rows = open_rows(str(file), Path(folder))
        assert len(rows) == len(objects)
        for i, wanted in enumerate(objects):
            assert json.dumps(rows[i]) == json.dumps(wanted)  # by text: 1, 1.0 and True are told apart


@pytest.mark.parametrize(("file", "column", "wanted"), [
    ("D01_pandas_index.parquet", "prompt", ["Sort 3, 1, 2.", "Define osmosis.", "Say hi in Welsh."]),
    ("D11_crlf.jsonl", "ground_truth", ["1", "2"]),
    ("D12_blank_lines.jsonl", "prompt", ["p1", "p2", "p3"]),
])
def test_rows_are_what_was_meant(rows, file, column, wanted):
    found = rows(file)
    assert [found[i][column] for i in range(len(found))] == wanted


def test_the_index_that_pandas_left_is_no_column(rows):
    assert rows("D01_pandas_index.parquet").columns == ("prompt",)
    assert rows("D01_pandas_index.parquet")[0] == {"prompt": "Sort 3, 1, 2."}


def test_numbers_stay_what_they_are(rows):
    found = [rows("D31_numeric_truth.parquet")[i] for i in range(3)]
    assert [r["ground_truth"] for r in found] == [72, 10, 1]
    assert {type(r["ground_truth"]) for r in found} == {int}
    assert [r["level"] for r in found] == [1, None, 3]
    assert [r["big"] for r in found] == [2**53 + 1, 1, 2]
    assert found[0]["dec"] == Decimal("1.00")


def test_every_spelling_of_unicode_gives_the_same_text(rows):
    files = [rows(f"D27_unicode{name}") for name in (".jsonl", ".parquet", "_escaped.jsonl")]
    texts = [[f[i]["prompt"] for i in range(len(f))] for f in files]
    assert len(texts[0]) == 9
    assert texts[0] == texts[1] == texts[2]
    assert texts[0][4] != texts[0][5]  # composed and decomposed é are not folded


@pytest.mark.parametrize("size", [42_000, 12_000_000])
def test_a_very_long_line_is_a_row(tmp_path, cache, size):
    file = tmp_path / "long.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("short", "x" * size, "short again")))
    found = open_rows(str(file), cache)
    assert [len(found[i]["prompt"]) for i in range(3)] == [5, size, 11]


def test_nested_and_other_parquet_columns_are_plain(tmp_path, cache):
    frame = pd.DataFrame({
        "prompt": ["a", "b"], "chat": [[{"role": "user", "content": "x"}], []], "info": [{"index": 1}, {"index": None}],
        "kind": pd.Categorical(["u", "v"]), "day": [datetime.date(2024, 1, 2), None], "a.b": [True, False]})
    frame.to_parquet(tmp_path / "data.parquet")
    found = open_rows(str(tmp_path / "data.parquet"), cache)
    assert found[0] == {"prompt": "a", "chat": [{"role": "user", "content": "x"}], "info": {"index": 1}, "kind": "u",
                        "day": datetime.date(2024, 1, 2), "a.b": True}
    assert found[1] == {"prompt": "b", "chat": [], "info": {"index": None}, "kind": "v", "day": None, "a.b": False}


def test_categories_may_differ_between_row_groups(tmp_path, cache):
    schema = pa.schema([("prompt", pa.string()), ("kind", pa.dictionary(pa.int32(), pa.string()))])
    with pq.ParquetWriter(tmp_path / "data.parquet", schema) as writer:
        for name in "ab":
            kinds = pa.array([f"{name}{i}" for i in range(3)]).dictionary_encode()
            writer.write_table(pa.table({"prompt": ["p"] * 3, "kind": kinds}, schema=schema))
    found = open_rows(str(tmp_path / "data.parquet"), cache)
    assert [found[i]["kind"] for i in range(6)] == ["a0", "a1", "a2", "b0", "b1", "b2"]


@pytest.mark.parametrize(("file", "said"), [
    ("D13_bad_middle.jsonl", "D13_bad_middle.jsonl', line 4 is not valid JSON: "),
    ("D25_zero_rows.jsonl", "D25_zero_rows.jsonl' has 0 rows; there is nothing to train on"),
    ("D25_zero_rows.parquet", "D25_zero_rows.parquet' has 0 rows"),
    ("base_promts.jsonl", "base_promts.jsonl' (looked at /"),
    ("base_promts.jsonl", "Did you mean 'base_prompts.jsonl'?"),
    ("no_such_folder/data.parquet", "there is no data file"),
    (".", "files; name those of one kind, e.g. '"),
])
def test_an_unusable_file_is_named(rows, file, said):
    with pytest.raises(DataError) as error:
        rows(file)
    assert said in str(error.value)


@pytest.mark.parametrize(("content", "said"), [
    (b'{"a": 1}\n\n"text"\n', "line 3: row 2 is \"text\"; each row must be an object"),
    (b'{"a": 1}\n[1]\n', "line 2: row 2 is [1]; each"),
    (b'{"a": 1}\nnull\n', "line 2: row 2 is null; each"),
    (b'{"a": 1}\n{"a": "\xff"}\n', "line 2 is not UTF-8 text: 'utf-8' codec can't decode byte 0xff"),
    (b'{"a": ' + b"9" * 5000 + b"}\n", "line 1 is not valid JSON: Exceeds the limit"),
    ('{"a": 1}'.encode("utf-16")[:-1], "bad.jsonl' is not UTF-16 text: 'utf-16-le' codec can't decode"),
    ('{"a": 1}'.encode("utf-16-le"), "line 1 is not valid JSON"),
])
def test_a_bad_line_is_named_by_its_number(tmp_path, cache, content, said):
    (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(DataError) as error:
        open_rows(str(tmp_path / "bad.jsonl"), cache)
    assert said in str(error.value)
    assert "bad.jsonl" in str(error.value)
    assert not list(cache.glob("*"))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, cache):
    (tmp_path / "bom.jsonl").write_bytes('\ufeff{"prompt": "p"}\n'.encode())
    assert open_rows(str(tmp_path / "bom.jsonl"), cache)[0] == {"prompt": "p"}


def test_other_kinds_of_files_are_refused_by_name(tmp_path, cache):
    (tmp_path / "data.xlsx").write_text("prompt\na\n")
    with pytest.raises(DataError, match=r"data\.xlsx': rlx reads \.parquet, \.jsonl, \.json, \.csv files, also with "
                                        r"\.gz, not '\.xlsx'"):
        open_rows(str(tmp_path / "data.xlsx"), cache)


def test_suffixes_may_be_capitals(tmp_path, cache):
    (tmp_path / "DATA.JSONL").write_text('{"prompt": "p"}\n')
    assert len(open_rows(str(tmp_path / "DATA.JSONL"), cache)) == 1


def test_a_broken_parquet_file_is_named(tmp_path, cache, rows):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"bad\.parquet' is not a readable parquet file"):
        open_rows(str(tmp_path / "bad.parquet"), cache)
    table = pa.table({"prompt": [f"text {i}" for i in range(9000)]})
    pq.write_table(table, tmp_path / "cut.parquet", compression="gzip")
    content = bytearray((tmp_path / "cut.parquet").read_bytes())
    content[200:2000] = bytes(1800)
    (tmp_path / "cut.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"cut\.parquet' is damaged"):
        open_rows(str(tmp_path / "cut.parquet"), cache)
