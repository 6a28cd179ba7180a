"""Files of each format as a stream of Arrow batches, with every value as it was written.

Parquet keeps its columns. Of jsonl and json each object is kept as its own text and parsed when a row is asked for: an
absent key stays absent, a date stays text. Every cell of a csv file is text. A file may be compressed with gzip,
whatever its name says.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlx.data.cache import BATCH_ROWS, Batches
from rlx_sdk import DataError

LINE_COLUMN = "__json_line__"
_TEXTS = pa.schema([(LINE_COLUMN, pa.large_string())])


def file_kind(file: Path) -> str | None:
    """``.parquet``, ``.jsonl``, ``.json`` or ``.csv``; None for other files."""
    with file.open("rb") as stream:
        if stream.read(4) == b"PAR1":
            return ".parquet"
    suffixes = [s.lower() for s in file.suffixes if s.lower() != ".gz"]
    return suffixes[-1] if suffixes and suffixes[-1] in CONVERTERS else None


@contextmanager
def _bytes(file: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The content, unpacked.

    Raises:
        DataError: it is damaged.
    """
    with file.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        if not packed:
            yield stream
            return
        try:
            with gzip.open(stream) as unpacked:
                yield unpacked
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"data file '{file}' is damaged gzip data: {error}") from error


def _from_parquet(file: Path) -> Batches:
    with _bytes(file) as stream:  # parquet is read from its end: of a compressed file all is unpacked
        content = pa.BufferReader(stream.read()) if isinstance(stream, gzip.GzipFile) else file
    try:
        source = pq.ParquetFile(content)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"data file '{file}' is not a readable parquet file: {error}") from error
    # pandas keeps a filtered frame's index as a column of this name; nobody wrote it.
    names = [n for n in source.schema_arrow.names if not n.startswith("__index_level_")]
    _named_once(file, names)
    schema = pa.schema([source.schema_arrow.field(n).with_type(_plain(source.schema_arrow.field(n).type))
                        for n in names])
    return schema, _parquet_batches(file, source, schema)


def _parquet_batches(file: Path, source: pq.ParquetFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        for batch in source.iter_batches(BATCH_ROWS, columns=schema.names):
            columns = [batch.column(field.name).cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"data file '{file}' is damaged: {error}") from error


def _plain(kind: pa.DataType) -> pa.DataType:
    """Categories as their values: an Arrow file takes one dictionary a column, parquet has one a row group."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_plain(f.type)) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def _from_jsonl(file: Path) -> Batches:
    return _TEXTS, _batches(_TEXTS, ((line,) for number, raw in _lines(file)
                                     if (line := _text(file, number, raw).strip()) and _object(file, number, line)))


def _object(file: Path, number: int, line: str) -> bool:
    try:
        value = _JSON.decode(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"data file '{file}', line {number} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"data file '{file}', line {number} is a JSON {type(value).__name__}; each line must be an "
                        'object such as {"prompt": "…"}.')
    return True


def _from_json(file: Path) -> Batches:
    """A list of objects, read whole: its rows end nowhere in particular. What is no list is read as jsonl."""
    with _bytes(file) as stream:
        content = stream.read()
    try:
        value = _JSON.decode(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            raise DataError(f"data file '{file}' is not valid JSON: {error}") from error
        return _from_jsonl(file)
    rows = value if isinstance(value, list) else [value]
    other = next(((i, row) for i, row in enumerate(rows, 1) if not isinstance(row, dict)), None)
    if other is not None:
        raise DataError(f"data file '{file}', row {other[0]} is a JSON {type(other[1]).__name__}; the file should be a "
                        'list of objects such as [{"prompt": "…"}].')
    return _TEXTS, _batches(_TEXTS, ((json.dumps(row),) for row in rows))


def _from_csv(file: Path) -> Batches:
    rows = _csv_rows(file)
    header = next(rows, None)
    if header is None:
        raise DataError(f"data file '{file}' has 0 rows and no header; there is nothing to train on.")
    _named_once(file, header)
    schema = pa.schema([(name, pa.large_string()) for name in header])
    return schema, _batches(schema, rows)


def _csv_rows(file: Path) -> Iterator[list[str]]:
    """The header's cells and those of every row, all as many."""
    lines = (_text(file, number, raw) for number, raw in _lines(file))
    first = next(lines, "")
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(itertools.chain([first], lines), strict=True, delimiter=delimiter)
    limit, width = csv.field_size_limit(sys.maxsize), 0
    try:
        for cells in reader:
            width = width or len(cells)
            if cells and len(cells) != width:
                raise DataError(f"data file '{file}', line {reader.line_num} ends a row of {len(cells)} cells; the "
                                f"header has {width}. Put text that holds a '{delimiter}' in double quotes.")
            if cells:
                yield cells
    except csv.Error as error:
        raise DataError(f"data file '{file}', line {reader.line_num} is not valid csv: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    with _bytes(file) as stream:
        yield from enumerate(stream, 1)


def _text(file: Path, number: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"data file '{file}', line {number} is not UTF-8 text: {error}") from error


def _named_once(file: Path, names: Sequence[str]) -> None:
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise DataError(f"data file '{file}' has two columns named '{twice}'; rename one.")


def _batches(schema: pa.Schema, rows: Iterable[Sequence[str]]) -> Iterator[pa.RecordBatch]:
    left = iter(rows)
    while some := list(itertools.islice(left, BATCH_ROWS)):
        columns = [pa.array(values, pa.large_string()) for values in zip(*some, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key '{next(k for k in keys if keys.count(k) > 1)}' stands twice in an object")
    return found


_JSON = json.JSONDecoder(object_pairs_hook=_once)
CONVERTERS: dict[str, Callable[[Path], Batches]] = {
    ".parquet": _from_parquet, ".jsonl": _from_jsonl, ".json": _from_json, ".csv": _from_csv}
