"""Data files become memory-mapped rows.

A file is converted once, in a stream, to an Arrow file in the cache, named by the hash of its content; after that only
the rows that are looked at are read. Parquet keeps its columns; of jsonl each line is kept as text and parsed when
asked for, so that values reach rewards exactly as they were written (an absent key stays absent, a date stays text).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlx.text import did_you_mean
from rlx_sdk import DataError

BATCH_ROWS = 1024
HUB = "hf:"
LINE_COLUMN = "__json_line__"
_JSONL = pa.schema([(LINE_COLUMN, pa.large_string())])


@dataclass(frozen=True)
class Rows:
    """The rows of a data file, memory-mapped.

    Attributes:
        file: as the user named it.
        fingerprint: hash of the content.
        columns: names, in order; of jsonl those of the first row.
    """

    file: str
    fingerprint: str
    columns: tuple[str, ...]
    table: pa.Table

    def __len__(self) -> int:
        """The number of rows."""
        return int(self.table.num_rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One row as plain Python values; indices count from 0."""
        row: dict[str, Any] = self.table.slice(index, 1).to_pylist()[0]
        return json.loads(row[LINE_COLUMN]) if LINE_COLUMN in row else row


def open_rows(path: str, cache_dir: Path) -> Rows:
    """Open a parquet or jsonl file, or ``hf:NAME`` (``hf:NAME@SPLIT``) through the datasets package.

    Raises:
        DataError: no such file, an unknown kind, no rows, or a line that is not a JSON object (with its number).
    """
    if path.startswith(HUB):
        return _open_dataset(path, cache_dir)
    file = _find(path)
    convert = _CONVERTERS.get(file.suffix.lower())
    if convert is None:
        raise DataError(f"data file '{path}': rlx reads {' and '.join(_CONVERTERS)} files, not '{file.suffix}'.")
    with file.open("rb") as stream:
        fingerprint = hashlib.file_digest(stream, "sha256").hexdigest()
    table = cached_table(cache_dir / f"rows-{fingerprint[:32]}{file.suffix.lower()}.arrow", lambda: convert(file))
    if not table.num_rows:
        raise DataError(f"data file '{path}' has 0 rows; there is nothing to train on.")
    columns = tuple(table.column_names)
    if columns == (LINE_COLUMN,):
        columns = tuple(json.loads(table.column(0)[0].as_py()))
    return Rows(path, fingerprint, columns, table)


def _open_dataset(path: str, cache_dir: Path) -> Rows:
    """A data set of the hub, or a folder that ``Dataset.save_to_disk`` wrote."""
    name, _, split = path.removeprefix(HUB).partition("@")
    if importlib.util.find_spec("datasets") is None:
        raise DataError(f"data '{path}' needs the package 'datasets', which is not installed: pip install "
                        "'rlx[datasets]'")
    import datasets

    try:
        found = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
        found = found[split or "train"] if isinstance(found, dict) else found
    except Exception as error:  # the hub's, the network's, a script's
        raise DataError(f"data '{path}' cannot be had through datasets: {type(error).__name__}: {error}") from error
    fingerprint = hashlib.sha256(f"{name} {split} {len(found)} {found._fingerprint}".encode()).hexdigest()
    schema = found.with_format("arrow")[:0].schema.remove_metadata()
    table = cached_table(cache_dir / f"rows-{fingerprint[:32]}.arrow", lambda: (schema, (
        batch for part in found.with_format("arrow").iter(BATCH_ROWS) for batch in part.cast(schema).to_batches())))
    if not table.num_rows:
        raise DataError(f"data '{path}' has 0 rows; there is nothing to train on.")
    return Rows(path, fingerprint, tuple(table.column_names), table)


def cached_table(cached: Path, make: Callable[[], tuple[pa.Schema, Iterator[pa.RecordBatch]]]) -> pa.Table:
    """The memory-mapped Arrow file at ``cached``, made first if it is not there or was cut off.

    Written aside and renamed, so that a killed or a second process never leaves or reads half a file.

    Raises:
        DataError: the folder cannot be written.
    """
    with contextlib.suppress(OSError, pa.ArrowInvalid):
        return _mapped(cached)
    schema, batches = make()
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=cached.parent)
        try:
            with os.fdopen(handle, "wb") as stream, pa.ipc.new_file(stream, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            os.replace(aside, cached)
        except BaseException:
            os.unlink(aside)
            raise
    except OSError as error:
        raise DataError(f"the cache folder '{cached.parent}' cannot be written: {error.strerror}. Set data.cache to "
                        "another.") from error
    return _mapped(cached)


def _mapped(cached: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(cached))).read_all()


def _find(path: str) -> Path:
    file = Path(path).expanduser()
    if file.is_file():
        return file
    if file.is_dir():
        raise DataError(f"data path '{path}' is a folder; name one file in it.")
    siblings = [p.name for p in file.parent.iterdir()] if file.parent.is_dir() else []
    hint = did_you_mean(file.name, siblings)
    raise DataError(f"there is no data file '{path}' (looked at {file.absolute()}).{hint}")


def _from_parquet(file: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    try:
        source = pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"data file '{file}' is not a readable parquet file: {error}") from error
    # pandas keeps a filtered frame's index as a column of this name; nobody wrote it.
    names = [n for n in source.schema_arrow.names if not n.startswith("__index_level_")]
    schema = pa.schema([_plain_field(source.schema_arrow.field(n)) for n in names])
    return schema, _parquet_batches(file, source, schema)


def _parquet_batches(file: Path, source: pq.ParquetFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        for batch in source.iter_batches(BATCH_ROWS, columns=schema.names):
            yield pa.RecordBatch.from_arrays([_plain(c) for c in batch.columns], schema=schema)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"data file '{file}' is damaged: {error}") from error


def _plain_field(field: pa.Field) -> pa.Field:
    """Categories as their values: an Arrow file takes one dictionary a column, parquet has one a row group."""
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _from_jsonl(file: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    return _JSONL, _jsonl_batches(file)


def _jsonl_batches(file: Path) -> Iterator[pa.RecordBatch]:
    lines: list[str] = []
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            if line := _line(file, number, raw):
                lines.append(line)
            if len(lines) == BATCH_ROWS:
                yield pa.RecordBatch.from_arrays([pa.array(lines, pa.large_string())], schema=_JSONL)
                lines = []
    yield pa.RecordBatch.from_arrays([pa.array(lines, pa.large_string())], schema=_JSONL)


def _line(file: Path, number: int, raw: bytes) -> str:
    """One line's JSON object as text; empty for a blank line."""
    try:
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        value = json.loads(line) if line else {}
    except UnicodeDecodeError as error:
        raise DataError(f"data file '{file}', line {number} is not UTF-8 text: {error}") from error
    except ValueError as error:
        raise DataError(f"data file '{file}', line {number} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"data file '{file}', line {number} is a JSON {type(value).__name__}; each line must be an "
                        'object such as {"prompt": "…"}.')
    return line


_CONVERTERS: dict[str, Callable[[Path], tuple[pa.Schema, Iterator[pa.RecordBatch]]]] = {
    ".parquet": _from_parquet, ".jsonl": _from_jsonl}
