"""The cache of converted files: made once, mapped into memory, never half a file."""

import os

import pyarrow as pa
import pytest

from rlx.data import Limits, open_rows, prepare_rows
from rlx.data.files import cached_table
from rlx_sdk import DataError


def state_of(folder):
    return {f.name: (f.stat().st_ino, f.stat().st_mtime_ns) for f in folder.iterdir()}


@pytest.fixture
def file(tmp_path):
    """A small file."""
    made = tmp_path / "data.jsonl"
    made.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    return made


def test_the_second_time_converts_nothing(file, cache, tokenizer):
    def prepare():
        return prepare_rows(open_rows(str(file), cache), "rollouts", tokenizer(), Limits(), {}, cache)

    first = prepare()
    before = state_of(cache)
    assert len(before) == 2
    second = prepare()
    assert state_of(cache) == before
    assert [second.ids(i, "prompt") for i in range(2)] == [first.ids(i, "prompt") for i in range(2)]


def test_a_changed_file_is_another_entry(file, cache):
    open_rows(str(file), cache)
    file.write_text('{"prompt": "eins"}\n{"prompt": "zwei"}\n')
    assert open_rows(str(file), cache)[0] == {"prompt": "eins"}
    assert len(state_of(cache)) == 2


def test_the_same_content_elsewhere_is_the_same_entry(file, cache, tmp_path):
    open_rows(str(file), cache)
    (tmp_path / "copy.jsonl").write_bytes(file.read_bytes())
    open_rows(str(tmp_path / "copy.jsonl"), cache)
    assert len(state_of(cache)) == 1


@pytest.mark.parametrize("change", ["kind", "limits", "columns", "tokenizer"])
def test_token_ids_are_kept_by_everything_that_decides_them(file, cache, tokenizer, change):
    file.write_text('{"prompt": "one", "completion": "1", "q": "eins"}\n')
    rows = open_rows(str(file), cache)
    plain = {"kind": "rollouts", "tokenizer": tokenizer(), "limits": Limits(), "columns": {}}
    other = {"kind": "demonstrations", "tokenizer": tokenizer("T07_double_bos"), "limits": Limits(9), "columns": {
        "prompt": "q"}}
    for settings in (plain, plain | {change: other[change]}):
        prepare_rows(rows, cache_dir=cache, **settings)
    assert len([name for name in state_of(cache) if name.startswith("tokens-")]) == 2


def test_rows_are_mapped_not_loaded(tmp_path, cache):
    big = tmp_path / "big.jsonl"
    big.write_text("".join(f'{{"prompt": "{"x" * 1000}", "i": {i}}}\n' for i in range(4000)))
    open_rows(str(big), cache)
    before = pa.total_allocated_bytes()
    rows = open_rows(str(big), cache)
    assert rows[3999]["i"] == 3999
    assert pa.total_allocated_bytes() - before < 100_000


@pytest.mark.parametrize("damage", [b"", b"not arrow", None])
def test_a_damaged_entry_is_made_again(file, cache, damage):
    open_rows(str(file), cache)
    [entry] = cache.iterdir()
    entry.write_bytes(entry.read_bytes()[:-20] if damage is None else damage)
    assert open_rows(str(file), cache)[1] == {"prompt": "two"}


def test_what_a_killed_process_left_does_no_harm(file, cache):
    cache.mkdir()
    (cache / "tmpleft0ver").write_bytes(b"half")
    assert len(open_rows(str(file), cache)) == 2


def test_a_failure_leaves_nothing(cache):
    schema = pa.schema([("a", pa.int64())])

    def batches():
        yield pa.record_batch([pa.array([1])], schema=schema)
        raise DataError("row 2 is bad")

    with pytest.raises(DataError, match="row 2 is bad"):
        cached_table(cache / "x.arrow", lambda: (schema, batches()))
    assert list(cache.iterdir()) == []


def test_another_process_may_have_been_faster(cache):
    schema = pa.schema([("a", pa.int64())])

    def batches():
        cached_table(cache / "x.arrow", lambda: (schema, iter([pa.record_batch([pa.array([1])], schema=schema)])))
        read.update(state_of(cache))
        yield pa.record_batch([pa.array([1])], schema=schema)

    read = {}
    assert cached_table(cache / "x.arrow", lambda: (schema, batches())).to_pylist() == [{"a": 1}]
    assert list(state_of(cache)) == ["x.arrow"]
    assert state_of(cache)["x.arrow"] == read["x.arrow"], "what it reads on another machine is not replaced"


def test_a_disk_without_links_will_do(file, cache, monkeypatch):
    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert len(open_rows(str(file), cache)) == 2
    assert len(state_of(cache)) == 1


def test_a_folder_that_cannot_be_written_is_named(file, tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(DataError, match=r"the cache folder '.*taken/cache' cannot be written: .* Set data.cache to"):
        open_rows(str(file), tmp_path / "taken" / "cache")
    assert not os.path.exists(tmp_path / "taken" / "cache")
