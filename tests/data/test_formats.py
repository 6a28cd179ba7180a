"""Each format, compressed or not, and several files as one."""

import gzip
import json
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlx.data import Limits, convert, describe, open_rows, prepare_rows
from rlx_sdk import DataError

CASES = Path(__file__).parents[1] / "cases/data"
ROWS = [{"prompt": "a, \"b\"\nc", "n": "007"}, {"prompt": "é, ü", "n": ""}, {"prompt": "last", "n": "null"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def write(folder, kind):
    file = folder / f"data{kind}"
    frame = pd.DataFrame(ROWS)
    if kind.startswith(".parquet"):
        frame.to_parquet(file)
    elif kind.startswith(".csv"):
        frame.to_csv(file, index=False, compression=None)
    else:
        text = {".json": json.dumps(ROWS, indent=1), ".lines.json": LINES}.get(kind.removesuffix(".gz"), LINES)
        file.write_text(text)
    if kind.endswith(".gz"):
        file.write_bytes(gzip.compress(file.read_bytes()))
    return file


KINDS = [".parquet", ".jsonl", ".json", ".lines.json", ".csv"]


@pytest.mark.parametrize("kind", [*KINDS, *(f"{k}.gz" for k in KINDS)])
def test_every_format_gives_the_same_rows(tmp_path, cache, kind):
    rows = open_rows(str(write(tmp_path, kind)), cache)
    assert [rows[i] for i in range(len(rows))] == ROWS
    assert rows.columns == ("prompt", "n")


@pytest.mark.parametrize("more", [{}, {"version": "1.0", "tags": ["a"]}])
def test_rows_inside_one_object_are_refused_with_their_key_and_the_way_out(tmp_path, cache, tokenizer, more):
    file = tmp_path / "wrapped.json"
    file.write_text(json.dumps({**more, "data": ROWS}))
    with pytest.raises(DataError, match="holds one object, with a list of rows in its key 'data'") as error:
        prepare_rows(open_rows(str(file), cache), "rollouts", tokenizer(), Limits(), {}, cache)
    command = str(error.value).split("alone: ")[1]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    rows = open_rows(str(tmp_path / "rows.json"), cache)
    assert [rows[i] for i in range(len(rows))] == ROWS


def test_a_chat_is_no_list_of_rows(tmp_path, cache, tokenizer):
    (tmp_path / "d.json").write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}))
    with pytest.raises(DataError, match="needs a prompt column, and the columns chosen and rejected"):
        prepare_rows(open_rows(str(tmp_path / "d.json"), cache), "pairs", tokenizer(), Limits(), {}, cache)


def test_a_name_may_lie_about_compression_and_parquet(tmp_path, cache):
    for kind, name in ((".csv.gz", "plain.csv"), (".parquet", "lies.jsonl"), (".jsonl", "plain.jsonl.gz")):
        shutil.move(write(tmp_path, kind), tmp_path / name)
        rows = open_rows(str(tmp_path / name), cache)
        assert [rows[i] for i in range(3)] == ROWS


@pytest.mark.parametrize(("name", "content", "said"), [
    ("d.json", b'[{"a": 1}, 2]', "d.json', line 1: row 2 is 2; each row must be an object such as {"),
    ("d.json", b"3", "row 1 is 3; each row must"),
    ("d.json", b'[{"a": 1}', "d.json' is not valid JSON: the list has no end; was the file cut off?"),
    ("d.json", b'[{"a": "\xff"}]', "d.json', line 1 is not UTF-8 text: 'utf-8' codec"),
    ("d.json", b'{"a": 1}\n{"a"', "d.json', line 2 is not valid JSON"),
    ("d.json", b'[{"a": 1},\n {"a":\n  2,\n  b: 3}]', "line 2 is not valid JSON: Expecting property name enclosed in "
     "double quotes '{\"a\":\\n  2,\\n  →b: 3}]'"),
    ("d.json", b'[{"a": 1}] {"a": 2}', "line 1: row 2 is {\"a\": 2}; each row must be an object such as {\"prompt\": "
     "\"…\"}, and nothing may follow a list of them"),
    ("d.jsonl", b'{"a": 1}\n{"a": "x\n{"a": 3}\n', "line 2 is not valid JSON: Invalid control character at "
     "'{\"a\": \"x→\\n{\"a\": 3}\\n'"),
    ("d.jsonl", b'{"a": 1, "a": 2}', "line 1 is not valid JSON: the key 'a' stands twice in an object"),
    ("d.jsonl", b'{"a": ' + b"[" * 100_000, "line 1 is not valid JSON: "),
    ("d.csv", b"a,b\n1,2\n\n1,2,3\n", "line 4 is not valid csv: it ends a row of 3 cells, and the header has 2. Put"),
    ("d.csv", b"a,b\n1\n", "line 2 is not valid csv: it ends a row of 1 cells"),
    ("d.csv", b"a,a\n1,2\n", "d.csv' has two columns named 'a'; rename one"),
    ("d.csv", b'a,b\n"1,2\n', "d.csv', line 2 is not valid csv: unexpected end of data"),
    ("d.csv", b"a\n\xff\n", "d.csv', line 2 is not UTF-8 text"),
    ("d.csv", b"", "d.csv' has 0 rows"),
    ("d.csv", b"PK\x03\x04\x14", "d.csv' is a zip archive or an Excel workbook; unpack it, or save it as csv."),
    ("d.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 99, mtime=0)[:-9], "d.jsonl.gz' is damaged gzip data"),
    ("d.parquet.gz", gzip.compress(b"PAR1 no", mtime=0), "d.parquet.gz' is not a readable parquet file"),
])
def test_what_is_wrong_is_said_with_its_place(tmp_path, cache, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        open_rows(str(tmp_path / name), cache)
    assert said in str(error.value)
    assert not list(cache.glob("*"))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 20, 40])
@pytest.mark.parametrize("indent", [None, 1])
def test_objects_are_whole_wherever_a_chunk_ends(tmp_path, cache, monkeypatch, chunk, indent):
    monkeypatch.setattr(convert, "_CHUNK", chunk)
    rows = [*ROWS, {"prompt": "]}, \\ \"[", "n": {"deep": [1.5e300, -2, None, True, {}, "😀 ü"]}}, {}]
    for name, content in (("d.json", json.dumps(rows, indent=indent)),
                          ("d.jsonl", ",\n".join(json.dumps(row, indent=indent, ensure_ascii=False) for row in rows))):
        (tmp_path / name).write_text(content, encoding="utf-8")
        found = open_rows(str(tmp_path / name), cache / name)
        assert [found[i] for i in range(len(found))] == rows


def test_a_long_list_is_never_whole_in_memory(tmp_path, cache):
    row = json.dumps({"prompt": "x" * 1000})
    (tmp_path / "d.json").write_text(f"[{', '.join([row] * 20_000)}]")
    open_rows(str(CASES / "base_sft.jsonl"), cache)  # what is imported on first use
    tracemalloc.start()
    try:
        assert len(open_rows(str(tmp_path / "d.json"), cache)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [".parquet", ".parquet.gz"])
def test_a_long_parquet_file_is_never_whole_in_memory(tmp_path, kind):
    texts = [f"{i} " * 200 for i in range(30_000)]
    pq.write_table(pa.table({"prompt": texts}), tmp_path / "d.parquet", use_dictionary=False, compression="none")
    file = tmp_path / f"d{kind}"
    if kind.endswith(".gz"):
        file.write_bytes(gzip.compress((tmp_path / "d.parquet").read_bytes(), 1))
    before = pa.total_allocated_bytes()
    _, batches = convert.CONVERTERS[".parquet"](file, tmp_path)
    held = [pa.total_allocated_bytes() - before for _ in batches]
    assert len(held) == 30
    assert max(held) < sum(map(len, texts)) / 3
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted({"d.parquet", file.name})


@pytest.mark.parametrize(("content", "encoding"), [
    ("prompt;n\r\na, b;007\r\n", "utf-8-sig"), ("sep=;\r\nprompt;n\r\na, b;007\r\n", "utf-8"),
    ("prompt\tn\r\na, b\t007\r\n", "utf-16"), ('prompt;n;;\n"a, b";007;;\n', "utf-8"),
    (',prompt,n\n0,"a, b",007\n', "utf-8"),
])
def test_csv_as_excel_and_pandas_write_it(tmp_path, cache, content, encoding):
    (tmp_path / "d.csv").write_bytes(content.encode(encoding))
    rows = open_rows(str(tmp_path / "d.csv"), cache)
    assert [rows[i] for i in range(len(rows))] == [{"prompt": "a, b", "n": "007"}]


def test_a_delimiter_inside_of_a_quoted_name_is_none(tmp_path, cache):
    (tmp_path / "d.csv").write_text('"prompt, or, not";n\na;1\n')
    assert open_rows(str(tmp_path / "d.csv"), cache)[0] == {"prompt, or, not": "a", "n": "1"}


def test_utf_16_with_its_mark_is_read(tmp_path, cache):
    (tmp_path / "d.jsonl").write_bytes('{"prompt": "é"}\r\n{"prompt": "ü"}\r\n'.encode("utf-16"))
    rows = open_rows(str(tmp_path / "d.jsonl"), cache)
    assert [rows[i] for i in range(len(rows))] == [{"prompt": "é"}, {"prompt": "ü"}]


def test_what_the_system_does_not_let_read_is_named(cache):
    with pytest.raises(DataError, match=r"data '/proc/self/mem' cannot be read: "):
        open_rows("/proc/self/mem", cache)


def test_files_of_one_name_are_told_apart(tmp_path, cache, tokenizer):
    for folder, row in (("a", '{"prompt": "p"}'), ("b", '{"prompt": 1}')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "d.jsonl").write_text(row)
    with pytest.raises(DataError, match=r"/b/d\.jsonl, row 1: column 'prompt' should be text and is int 1"):
        prepare_rows(open_rows(str(tmp_path), cache), "rollouts", tokenizer(), Limits(), {}, cache)


def test_an_empty_list_is_no_data(tmp_path, cache):
    (tmp_path / "d.json").write_text("[]")
    with pytest.raises(DataError, match=r"d\.json' has 0 rows; there is nothing to train on"):
        open_rows(str(tmp_path / "d.json"), cache)


def test_cells_longer_than_readers_like_and_other_delimiters(tmp_path, cache):
    (tmp_path / "d.csv").write_text(f'prompt;n\n"{"x" * 3_000_000}";1\n\nb,c;2\n')
    rows = open_rows(str(tmp_path / "d.csv"), cache)
    assert (len(rows), len(rows[0]["prompt"]), rows[1]) == (2, 3_000_000, {"prompt": "b,c", "n": "2"})


def test_two_parquet_columns_of_one_name_are_refused(tmp_path, cache):
    pq.write_table(pa.table([["a"], ["b"]], names=["prompt", "prompt"]), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"d\.parquet' has two columns named 'prompt'"):
        open_rows(str(tmp_path / "d.parquet"), cache)


def test_a_value_that_python_has_not_is_named(tmp_path, cache):
    pq.write_table(pa.table({"prompt": ["a"], "day": pa.array([10**7], pa.date32())}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"d\.parquet', row 1: column 'day' holds a value that cannot be read"):
        open_rows(str(tmp_path / "d.parquet"), cache)[0]


@pytest.mark.parametrize("path", ["S16_shards", "S16_shards/part-*.jsonl", "S16_shards/**/*.jsonl"])
def test_folders_and_patterns_are_their_files_by_name(rows, path):
    found = rows(path)
    assert [found[i]["prompt"] for i in range(len(found))] == ["s a", "s b", "s c", "s d", "s e"]
    assert [found.place(i) for i in (0, 2, 4)] == [
        "part-00.jsonl, row 1", "part-01.jsonl, row 1", "part-02.jsonl, row 2"]


def test_several_files_of_several_formats(tmp_path, cache):
    files = [str(write(tmp_path, kind)) for kind in (".parquet", ".csv", ".json")]
    rows = open_rows(files, cache)
    assert [rows[i] for i in range(9)] == ROWS * 3
    assert rows.fingerprint != open_rows(files[::-1], cache).fingerprint


def test_a_bad_row_of_several_files_is_named_with_its_file(tmp_path, cache, tokenizer):
    (tmp_path / "a.jsonl").write_text('{"prompt": "p"}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "p"}\n{"prompt": 1}\n')
    with pytest.raises(DataError, match=r"b\.jsonl, row 2: column 'prompt' should be text and is int 1"):
        prepare_rows(open_rows(str(tmp_path), cache), "rollouts", tokenizer(), Limits(), {}, cache)


@pytest.mark.parametrize(("paths", "said"), [
    ([], "data.path is an empty list"), ("none-*.jsonl", "there is no data file 'none-*.jsonl' (looked at /"),
])
def test_paths_without_a_file(cache, paths, said):
    with pytest.raises(DataError) as error:
        open_rows(paths, cache)
    assert said in str(error.value)


def test_a_folder_without_data_lists_what_it_holds(tmp_path, cache):
    (tmp_path / "readme.txt").touch()
    with pytest.raises(DataError, match=r"holds no \.parquet, \.jsonl, \.json, \.csv file; it holds readme\.txt"):
        open_rows(str(tmp_path), cache)


def test_a_saved_dataset_is_known_by_its_folder(tmp_path, cache):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    rows = open_rows(str(tmp_path / "saved"), cache)
    assert [rows[i] for i in range(3)] == ROWS


def test_dropped_and_noticed_rows_of_several_files_are_named_with_their_file(tmp_path, cache, tokenizer):
    (tmp_path / "a.jsonl").write_text('{"prompt": "p"}\n{"prompt": "too long"}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "q"}\n{"prompt": "far too long"}\n{"prompt": "[INST]"}\n')
    limits = Limits(6, overlong="drop")
    found = prepare_rows(open_rows(str(tmp_path), cache), "rollouts", tokenizer(), limits, {}, cache)
    assert "2 rows dropped as too long (a.jsonl, row 2, b.jsonl, row 2)" in describe(found)
    assert "plain text to this tokenizer (b.jsonl, row 3)" in describe(found)
    assert [found.place(i) for i in range(len(found))] == ["a.jsonl, row 1", "b.jsonl, row 1", "b.jsonl, row 3"]


def test_sources_by_weight(tmp_path, cache, tokenizer):
    for name, n in (("a", 2), ("b", 5)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"prompt": "{name}{i}"}}\n' for i in range(n)))
    paths = {str(tmp_path / "a.jsonl"): 3, str(tmp_path / "b.jsonl"): 1.5}
    found = prepare_rows(open_rows(paths, cache), "rollouts", tokenizer(), Limits(), {}, cache)
    texts = [found.example(i).prompt for i in range(len(found))]
    assert texts == ["a0", "a1"] * 5 + ["b0", "b1", "b2", "b3", "b4"]
    assert [bytes(found.ids(i, "prompt")).decode() for i in range(len(found))] == texts
    with pytest.raises(DataError, match=r"data\.eval: of sources with weights no rows can be held out"):
        found.split(1)
