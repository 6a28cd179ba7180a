"""Files of each format as a stream of Arrow batches, with every value as it was written.

Parquet keeps its columns. Of jsonl and json each object is kept as its own text and parsed when a row is asked for: an
absent key stays absent, a date stays text. Every cell of a csv file is text. A file may be compressed with gzip,
whatever its name says. No more than a part of a file is ever in memory.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import json
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
def _bytes(file: Path) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    """The content, unpacked.

    Raises:
        DataError: it is damaged.
    """
    with file.open("rb") as stream:
        if stream.peek(2)[:2] != b"\x1f\x8b":
            yield stream
            return
        try:
            with gzip.open(stream) as unpacked:
                yield unpacked
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"data file '{file}' is damaged gzip data: {error}") from error


@contextmanager
def _text(file: Path) -> Iterator[io.TextIOWrapper]:
    """The content as text: UTF-8, or UTF-16 that says so with a byte order mark, as Windows writes it.

    Raises:
        DataError: it is neither.
    """
    with _bytes(file) as stream:
        wide = (start := stream.peek(2)[:2]) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        if start == b"PK":
            raise DataError(f"data file '{file}' is a zip archive or an Excel workbook; unpack it, or save it as csv.")
        try:
            with io.TextIOWrapper(stream, "utf-16" if wide else "utf-8-sig", newline="") as text:
                yield text
        except UnicodeError as error:
            what = " is not UTF-16" if wide else f", line {_undecodable(file)} is not UTF-8"
            raise DataError(f"data file '{file}'{what} text: {error}. Save it as UTF-8 (in Excel: 'CSV UTF-8')."
                            ) from error


def _undecodable(file: Path) -> int:
    """The first line that is not UTF-8."""
    with _bytes(file) as stream:
        return next(number for number, raw in enumerate(stream, 1) if raw.decode(errors="ignore").encode() != raw)


def _from_parquet(file: Path, aside: Path) -> Batches:
    content: Any = file
    with _bytes(file) as stream:
        if isinstance(stream, gzip.GzipFile):  # parquet is read from its end
            with tempfile.NamedTemporaryFile(dir=aside) as unpacked:
                shutil.copyfileobj(stream, unpacked)
                unpacked.flush()
                content = pa.OSFile(unpacked.name)  # it outlives its name
    try:
        source = pq.ParquetFile(content, pre_buffer=False, buffer_size=_CHUNK)
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
            yield pa.RecordBatch.from_arrays([batch.column(f.name).cast(f.type) for f in schema], schema=schema)
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


def _from_json(file: Path, _: Path) -> Batches:
    return _TEXTS, _batches(_TEXTS, ((text,) for text in _objects(file)))


def _objects(file: Path) -> Iterator[str]:
    """The objects of a list, or those that follow one another, as they are written; at most a chunk is in memory.

    Raises:
        DataError: something is no JSON, or no object.
    """
    with _text(file) as stream:
        text, at, line, row, ends = stream.read(_CHUNK), 0, 1, 1, ""
        while True:
            gap = _GAP.match(text, at)
            line, at = line + gap[0].count("\n"), gap.end()  # type: ignore[index, union-attr]
            if at == len(text):
                text, at = stream.read(_CHUNK), 0
                if text:
                    continue
                if ends == "]":
                    raise DataError(f"data file '{file}' is not valid JSON: the list has no end; was the file cut off?")
                return
            if text[at] == ends or (row == 1 and not ends and text[at] == "["):
                at, ends = at + 1, "over" if ends else "]"
                continue
            try:
                value, end = _JSON.raw_decode(text, at)
            except json.JSONDecodeError as error:
                open_end = error.pos > len(text) - 16 or error.msg.startswith("Unterminated")
                more = stream.read(max(_CHUNK, len(text) - at)) if open_end else ""
                if not more:
                    near = f"{text[max(at, error.pos - 20):error.pos]}→{text[error.pos:error.pos + 20]}"
                    raise DataError(f"data file '{file}', line {line} is not valid JSON: {error.msg} {near!r}"
                                    ) from error
                text, at = text[at:] + more, 0
                continue
            except (ValueError, RecursionError) as error:
                raise DataError(f"data file '{file}', line {line} is not valid JSON: {error}") from error
            if not isinstance(value, dict) or ends == "over":
                raise DataError(f"data file '{file}', line {line}: row {row} is {text[at:end]:.40}; each row must be "
                                'an object such as {"prompt": "…"}, and nothing may follow a list of them.')
            yield text[at:end]
            line, at, row = line + text.count("\n", at, end), end, row + 1


def _from_csv(file: Path, _: Path) -> Batches:
    rows = _csv_rows(file)
    header = next(rows, None)
    if header is None:
        raise DataError(f"data file '{file}' has 0 rows and no header; there is nothing to train on.")
    named = [bool(name) for name in header]  # pandas writes its index under no name, Excel empty columns
    names = list(itertools.compress(header, named))
    _named_once(file, names)
    schema = pa.schema([(name, pa.large_string()) for name in names])
    return schema, _batches(schema, (list(itertools.compress(cells, named)) for cells in rows))


def _csv_rows(file: Path) -> Iterator[list[str]]:
    """The header's cells and those of every row, all as many."""
    with _text(file) as lines:
        first = next(lines, "")
        told = re.fullmatch(r"sep=(.)\s*", first)  # Excel's own first line
        delimiter = told[1] if told else max(",;\t", key=re.sub('"[^"]*"', "", first).count)
        reader = csv.reader(lines if told else itertools.chain([first], lines), strict=True, delimiter=delimiter)
        limit, width = csv.field_size_limit(sys.maxsize), 0
        try:
            for cells in reader:
                width = width or len(cells)
                if cells and len(cells) != width:
                    raise csv.Error(f"it ends a row of {len(cells)} cells, and the header has {width}. Put text that "
                                    f"holds a '{delimiter}' in double quotes.")
                if cells:
                    yield cells
        except csv.Error as error:
            raise DataError(f"data file '{file}', line {reader.line_num + bool(told)} is not valid csv: {error}"
                            ) from error
        finally:
            csv.field_size_limit(limit)


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
_GAP = re.compile(r"[ \t\r\n,]*")
_CHUNK = 1 << 20
CONVERTERS: dict[str, Callable[[Path, Path], Batches]] = {
    ".parquet": _from_parquet, ".jsonl": _from_json, ".json": _from_json, ".csv": _from_csv}
"""What makes rows of a file; the folder is for what must be put aside meanwhile."""
