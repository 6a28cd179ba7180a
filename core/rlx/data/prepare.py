"""Rows become token ids, once: every row is read, rendered, measured and checked before a model is loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rlx.data.files import BATCH_ROWS, Rows, cached_table
from rlx.data.layouts import Example, RowProblem, missing_columns, read_example
from rlx.data.tokenizer import Tokenizer
from rlx.spec import Overlong
from rlx.text import count, listing
from rlx_sdk import DataError, DataKind

FORMAT = 1
"""Raised when prepared files of earlier versions cannot be used any more."""
_IDS = pa.list_(pa.int32())
_ANSWERS: Mapping[DataKind, tuple[str, ...]] = {
    "rollouts": (), "demonstrations": ("completion",), "pairs": ("chosen", "rejected")}
_SHOWN = 3


@dataclass(frozen=True)
class Limits:
    """What a row may be, in tokens, and what happens to longer ones.

    Attributes:
        prompt: of the prompt; None for no limit.
        total: of prompt and answer together; None for no limit.
        overlong: ``error`` refuses the file, ``drop`` leaves the row out and counts it.
    """

    prompt: int | None = None
    total: int | None = None
    overlong: Overlong = "error"


@dataclass(frozen=True)
class Prepared:
    """Rows as token ids, memory-mapped.

    Attributes:
        rows: the file they came from.
        columns: the names of `rlx.data.layouts` by the file's own names.
        kind: of data.
        table: ``row`` (index in the file), ``prompt`` and one column an answer, each a list of ids.
        dropped: rows left out because they were too long.
        key: of file, tokenizer, limits and columns together, and of the part of the rows.
    """

    rows: Rows
    columns: Mapping[str, str]
    kind: DataKind
    table: pa.Table
    dropped: int
    key: str

    def __len__(self) -> int:
        """The number of usable rows."""
        return int(self.table.num_rows)

    def ids(self, index: int, column: str) -> list[int]:
        """Token ids of one part of a row."""
        ids: list[int] = self.table.column(column)[index].as_py()
        return ids

    def row_index(self, index: int) -> int:
        """The row's place in the file, from 0."""
        return int(self.table.column("row")[index].as_py())

    def example(self, index: int) -> Example:
        """The row as text, read again from the file."""
        return read_example(_renamed(self.rows[self.row_index(index)], self.columns), self.kind)

    def split(self, held_out: int) -> tuple[Prepared, Prepared]:
        """All but the last rows, and the last rows."""
        cut = len(self) - held_out
        if cut < 1:
            raise DataError(f"data.eval: {held_out} rows are to be held out of '{self.rows.file}', which has "
                            f"{count(len(self), 'usable row')}.")
        parts = (self.table.slice(0, cut), self.table.slice(cut))
        first, last = (replace(self, table=table, key=f"{self.key}[{name}{cut}]")
                       for table, name in zip(parts, (":", "-"), strict=True))
        return first, last


def prepare_rows(rows: Rows, kind: DataKind, tokenizer: Tokenizer, limits: Limits, columns: Mapping[str, str],
                 cache_dir: Path) -> Prepared:
    """Read, render and measure every row, once for a given file, tokenizer and limits.

    Raises:
        DataError: columns are missing, a row is unusable or too long (the first ones are named), or none is left.
    """
    theirs = {v: k for k, v in columns.items()}
    problem = missing_columns([theirs.get(c, c) for c in rows.columns], kind)
    if problem:
        raise DataError(f"data file '{rows.file}' {problem}")
    state = [FORMAT, rows.fingerprint, tokenizer.fingerprint, kind, asdict(limits), sorted(columns.items())]
    key = hashlib.sha256(json.dumps(state).encode()).hexdigest()[:32]
    scan = _Scan(rows, kind, tokenizer, limits, theirs)
    table = cached_table(cache_dir / f"tokens-{key}.arrow", lambda: (scan.schema, scan.batches()))
    if not table.num_rows:
        raise DataError(f"data file '{rows.file}': all {count(len(rows), 'row')} are over the limits and were dropped. "
                        "Raise data.max_prompt or data.max_length.")
    return Prepared(rows, theirs, kind, table, len(rows) - table.num_rows, key)


def _renamed(row: dict[str, Any], theirs: Mapping[str, str]) -> dict[str, Any]:
    """With rlx's names; a column mapped to a name takes the place of one that has it."""
    mapped = {ours: row[name] for name, ours in theirs.items() if name in row}
    return {**{k: v for k, v in row.items() if k not in theirs}, **mapped}


class _Scan:
    """One pass over the rows; problems are collected, so that the message can name several."""

    def __init__(self, rows: Rows, kind: DataKind, tokenizer: Tokenizer, limits: Limits,
                 columns: Mapping[str, str]) -> None:
        self.rows, self.kind, self.tokenizer, self.limits, self.columns = rows, kind, tokenizer, limits, columns
        self.answers = _ANSWERS[kind]
        self.schema = pa.schema([("row", pa.int64()), ("prompt", _IDS), *((a, _IDS) for a in self.answers)])
        self.unseen = set(columns)
        self.problems: list[str] = []
        self.overlong: list[str] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches of usable rows; raises at the end if a row was not."""
        for start in range(0, len(self.rows), BATCH_ROWS):
            found = [r for i in range(start, min(start + BATCH_ROWS, len(self.rows))) if (r := self._row(i))]
            yield pa.RecordBatch.from_pylist(found, schema=self.schema)
        if self.unseen:
            raise DataError(f"data file '{self.rows.file}' has no column {listing(sorted(self.unseen))}, which "
                            f"data.columns names; it has {listing(self.rows.columns, 20)}.")
        if self.problems:
            raise DataError(self._message("cannot be used", self.problems, ""))
        if self.overlong and self.limits.overlong == "error":
            raise DataError(self._message("too long", self.overlong,
                                          "\nRaise the limit, or leave such rows out with data.overlong=drop."))

    def _row(self, index: int) -> dict[str, Any] | None:
        try:
            row = self.rows[index]
            self.unseen.difference_update(row)
            example = read_example(_renamed(row, self.columns), self.kind)
            prompt = self.tokenizer.encode_prompt(example.prompt)
            answers = {name: self.tokenizer.encode_answer(example.prompt, text)
                       for name, text in zip(self.answers, example.answers, strict=True)}
        except RowProblem as problem:
            self.problems.append(f"row {index + 1}: {problem}")
            return None
        too_long = self._too_long(prompt, answers)
        if too_long:
            self.overlong.append(f"row {index + 1}: {too_long}")
            return None
        return {"row": index, "prompt": prompt, **answers}

    def _too_long(self, prompt: list[int], answers: Mapping[str, list[int]]) -> str | None:
        limits = self.limits
        if limits.prompt is not None and len(prompt) > limits.prompt:
            return f"the prompt has {len(prompt):,} tokens, the limit (data.max_prompt) is {limits.prompt:,}"
        longest = max((len(ids) for ids in answers.values()), default=0)
        if limits.total is not None and len(prompt) + longest > limits.total:
            return (f"prompt and answer have {len(prompt):,} + {longest:,} tokens, the limit (data.max_length) is "
                    f"{limits.total:,}")
        return None

    def _message(self, what: str, found: list[str], fix: str) -> str:
        more = f"\n  … and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
        shown = "\n  ".join(found[:_SHOWN])
        return f"data file '{self.rows.file}': {count(len(found), 'row')} {what}\n  {shown}{more}{fix}"


def describe(prepared: Prepared) -> str:
    """One line for the log: file, rows, columns, lengths, what was dropped."""
    lengths = pc.min_max(pc.list_value_length(prepared.table.column("prompt"))).as_py()
    span = f", prompts of {lengths['min']} to {lengths['max']} tokens"
    dropped = f", {count(prepared.dropped, 'row')} dropped as too long" if prepared.dropped else ""
    return f"{prepared.rows.file}: {count(len(prepared), 'row')} ({listing(prepared.rows.columns)}){span}{dropped}"
