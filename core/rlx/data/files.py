"""Data files become memory-mapped rows.

A file is converted once, in a stream, to an Arrow file in the cache, named by the hash of its content; after that only
the rows that are looked at are read. Several files, the files of a folder or of a pattern follow one another by name.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from rlx.data.cache import BATCH_ROWS, Progress, cached_table, unseen
from rlx.data.convert import CONVERTERS, LINE_COLUMN, file_kind
from rlx.machine import expanded
from rlx.text import did_you_mean_file, listing
from rlx_sdk import DataError

__all__ = ["BATCH_ROWS", "Rows", "cached_table", "open_rows"]
HUB = "hf:"
_LOOKED_AT = 100
"""Rows of a file of objects whose keys are its columns."""
_SAVED = ("state.json", "dataset_dict.json")
"""What `datasets` writes into a folder of its own."""
Paths = str | Sequence[str] | Mapping[str, float]


@dataclass(frozen=True)
class _File:
    """One file, memory-mapped."""

    name: str
    fingerprint: str
    columns: tuple[str, ...]
    table: pa.Table


@dataclass(frozen=True)
class Rows:
    """The rows of one or several data files, memory-mapped.

    Attributes:
        file: as the user named it.
        fingerprint: hash of the content.
        columns: names, in order; of objects those of the first ones.
        files: what holds the rows, in order.
        sources: number of files and weight of each thing that was named; without weights, None.
    """

    file: str
    fingerprint: str
    columns: tuple[str, ...]
    files: tuple[_File, ...]
    sources: tuple[tuple[int, float | None], ...]
    ends: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Count."""
        object.__setattr__(self, "ends", tuple(accumulate(file.table.num_rows for file in self.files)))

    @property
    def identity(self) -> dict[str, Any]:
        """By which a resumed run knows that they are the same."""
        return {"rows": len(self), "fingerprint": self.fingerprint}

    def __len__(self) -> int:
        """The number of rows."""
        return self.ends[-1]

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One row as plain Python values; indices count from 0.

        Raises:
            DataError: Python has no such value, e.g. a year of five digits.
        """
        file, row = self._find(index)
        found = {}
        for name in file.table.column_names:
            try:
                found[name] = file.table.column(name)[row].as_py()
            except (ValueError, OverflowError, pa.ArrowException) as error:
                raise DataError(f"data file '{self.file}', {self.place(index)}: column '{name}' holds a value that "
                                f"cannot be read: {error}") from error
        return json.loads(found[LINE_COLUMN]) if LINE_COLUMN in found else found

    def place(self, index: int) -> str:
        """The row's number as people count, and its file if there are several."""
        file, row = self._find(index)
        names = [Path(other.name).name for other in self.files]
        name = Path(file.name).name if names.count(Path(file.name).name) == 1 else file.name
        return f"row {row + 1:,}" if len(names) == 1 else f"{name}, row {row + 1:,}"

    def _find(self, index: int) -> tuple[_File, int]:
        number = bisect_right(self.ends, index)
        return self.files[number], index - (self.ends[number - 1] if number else 0)


def open_rows(paths: Paths, cache_dir: Path, progress: Progress = unseen) -> Rows:
    """Open data.

    Args:
        paths: a parquet, jsonl, json or csv file (also ``.gz``), a folder of them, a pattern such as ``part-*.jsonl``,
            ``hf:NAME`` (``hf:NAME@SPLIT``) or a folder saved by the datasets package; several; or each with a weight.
        cache_dir: for converted files.
        progress: of their conversion.

    Raises:
        DataError: no such file, an unknown kind, no rows, or something in a file that cannot be read (with its line).
    """
    named = [paths] if isinstance(paths, str) else list(paths)
    if not named:
        raise DataError("data.path is an empty list; name at least one file")
    parts = [_open(path, cache_dir, progress) for path in named]
    files = tuple(file for part in parts for file in part)
    if not any(file.table.num_rows for file in files):
        raise DataError(f"data {'file' if len(files) == 1 else 'path'} '{listing(named)}' has 0 rows; there is nothing "
                        "to train on.")
    weights = [paths[path] if isinstance(paths, Mapping) else None for path in named]
    sources = tuple((len(part), weight) for part, weight in zip(parts, weights, strict=True))
    prints = [file.fingerprint for file in files]
    whole = prints[0] if len(files) == 1 else hashlib.sha256(json.dumps(prints).encode()).hexdigest()
    columns = tuple(dict.fromkeys(column for file in files for column in file.columns))
    return Rows(listing(named), whole, columns, files, sources)


def _open(path: str, cache_dir: Path, progress: Progress) -> list[_File]:
    """The files that one path means."""
    folder = expanded(path)
    if path.startswith(HUB) or any((folder / name).is_file() for name in _SAVED):
        return [_open_dataset(path, cache_dir, progress)]
    try:
        return [_open_file(path if file == folder else str(file), file, cache_dir, progress) for file in _find(path)]
    except OSError as error:
        raise DataError(f"data '{path}' cannot be read: {error}") from error


def _open_file(name: str, file: Path, cache_dir: Path, progress: Progress) -> _File:
    kind = file_kind(file)
    if kind is None:
        raise DataError(f"data file '{name}': rlx reads {listing(CONVERTERS)} files, also with .gz, not "
                        f"'{''.join(file.suffixes[-2:])}'.")
    with file.open("rb") as stream:
        fingerprint = hashlib.file_digest(stream, "sha256").hexdigest()

    table = cached_table(cache_dir / f"rows-{fingerprint[:32]}{kind}.arrow", lambda: CONVERTERS[kind](file, cache_dir),
                         progress, f"reading {name}")
    columns = tuple(table.column_names)
    if columns == (LINE_COLUMN,):
        first = table.column(0).slice(0, _LOOKED_AT).to_pylist()
        columns = tuple(dict.fromkeys(key for line in first for key in json.loads(line)))
    return _File(name, fingerprint, columns, table)


def _open_dataset(path: str, cache_dir: Path, progress: Progress) -> _File:
    """A data set of the hub, or a folder that ``Dataset.save_to_disk`` wrote."""
    name, _, split = path.removeprefix(HUB).partition("@")
    if importlib.util.find_spec("datasets") is None:
        raise DataError(f"data '{path}' needs the package 'datasets', which is not installed: pip install "
                        "'rlx[datasets]'")
    import datasets

    try:
        found = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
    except Exception as error:  # the hub's, the network's, a script's
        hint = "A file is named without hf:" if expanded(name).is_file() else (
            "Give hf:ORG/NAME as the hub has it, a folder that save_to_disk wrote, or a file without hf:")
        raise DataError(f"data '{path}' cannot be had through datasets: {type(error).__name__}: {error}. {hint}"
                        ) from error
    if isinstance(found, dict):
        if (split or "train") not in found:
            raise DataError(f"data '{path}' has no split '{split or 'train'}'; it has {listing(found)}. Name one, e.g. "
                            f"{HUB}{name}@{next(iter(found))}.")
        found = found[split or "train"]
    fingerprint = hashlib.sha256(f"{name} {split} {len(found)} {found._fingerprint}".encode()).hexdigest()
    schema = found.with_format("arrow")[:0].schema.remove_metadata()
    table = cached_table(cache_dir / f"rows-{fingerprint[:32]}.arrow", lambda: (schema, (
        batch for part in found.with_format("arrow").iter(BATCH_ROWS) for batch in part.cast(schema).to_batches())),
                         progress, f"reading {path}", len(found))
    return _File(path, fingerprint, tuple(table.column_names), table)


def _find(path: str) -> list[Path]:
    """A file, the data files of a folder, or those that a pattern matches, by name.

    Raises:
        DataError: there are none, or they are of several kinds.
    """
    file = expanded(path)
    if file.is_file():
        return [file]
    pattern = glob.escape(str(file)) + "/**/*" if file.is_dir() else str(file)
    there = sorted(Path(p) for p in glob.glob(pattern, recursive=True) if Path(p).is_file())
    found = {p: kind for p in there if not p.name.startswith((".", "_")) and (kind := file_kind(p))}
    if len(set(found.values())) > 1:
        raise DataError(f"data path '{path}' holds {' and '.join(sorted(set(found.values())))} files; name those of "
                        f"one kind, e.g. '{path.rstrip('/')}/*{next(iter(found.values()))}'.")
    if found:
        return list(found)
    if there or file.is_dir():
        raise DataError(f"data path '{path}' (looked at {file.absolute()}) holds no {listing(CONVERTERS)} file; it "
                        f"holds {listing(p.name for p in there) or 'nothing'}.")
    raise DataError(f"there is no data file '{path}' (looked at {file.absolute()}).{did_you_mean_file(file)}")
