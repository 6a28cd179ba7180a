"""Rows become token ids, once: every row is read, rendered, measured and checked before a model is loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlx.data.cache import BATCH_ROWS, Progress, cached_table, unseen
from rlx.data.files import Rows
from rlx.data.layouts import KNOWN, Example, missing_columns, read_example
from rlx.data.limits import Limits, cut_to_fit
from rlx.data.messages import RowProblem
from rlx.data.tokenizer import Encoded, Notice, Tokenizer
from rlx.text import count, listing
from rlx_sdk import DataError, DataKind

FORMAT = 5
"""Raised when prepared files of earlier versions cannot be used any more."""
_IDS = pa.list_(pa.int32())
_ANSWERS: Mapping[str, tuple[str, ...]] = {
    "rollouts": (), "demonstrations": ("completion",), "pairs": ("chosen", "rejected"), "labelled": ("completion",)}
_SHOWN = 3
_NOTICES = {
    Notice.LOST: "text that the chat template leaves out of what the model sees",
    Notice.FOREIGN: "markers of another model's chat template, plain text to this tokenizer",
    Notice.EQUAL: "equal answers on both sides, from which nothing is learned",
    Notice.EMPTY: "only empty messages in the prompt",
    Notice.SPECIAL: "the tokenizer's special tokens inside a message",
    Notice.REWRITTEN: "answers that the chat template would change; they are trained as written",
    Notice.CUT: "been cut to the limits",
    Notice.FIXED: "earlier turns that the chat template writes otherwise once the conversation goes on; of these rows "
                  "such turns are not learned",
    Notice.HIDDEN: "a column system, input, history or tools that the model is not shown; a prompt of plain text takes "
                   "them as an instruction (data.columns.instruction=prompt)",
}


@dataclass(frozen=True)
class Prepared:
    """Rows as token ids, memory-mapped.

    Attributes:
        rows: the file they came from.
        columns: the names of `rlx.data.layouts` by the file's own names.
        kind: of data.
        table: ``row`` (index in the file), ``prompt`` and one column an answer, each a list of ids; of labelled data
            also ``label``, of demonstrations ``turns``: begin and end of each earlier turn to learn; of pairs
            ``margin``.
        dropped: rows left out because they were too long, or nothing would be left of a part of them if cut.
        key: of file, tokenizer, limits and columns together, and of the part of the rows.
        notices: rows of the file, from 0, by what is to be known of them.
        shares: rows of each source in a pass, where sources have weights.
    """

    rows: Rows
    columns: Mapping[str, str]
    kind: DataKind
    table: pa.Table
    dropped: int
    key: str
    notices: Mapping[Notice, Sequence[int]] = field(default_factory=dict)
    shares: tuple[int, ...] = ()

    def __len__(self) -> int:
        """The number of usable rows; with weights, of a pass over them."""
        return int(self.table.num_rows)

    @property
    def mean_tokens(self) -> float:
        """Of a row, all its parts together."""
        parts = [column for column in self.table.columns if pa.types.is_list(column.type)
                 and pa.types.is_integer(column.type.value_type)]
        return sum(pc.sum(pc.list_value_length(part)).as_py() or 0 for part in parts) / len(self)

    def ids(self, index: int, column: str) -> list[int]:
        """Token ids of one part of a row."""
        ids: list[int] = self.table.column(column)[index].as_py()
        return ids

    def row_index(self, index: int) -> int:
        """The row's place in the file, from 0."""
        return int(self.table.column("row")[index].as_py())

    def place(self, index: int) -> str:
        """The row's file, of several, and number there, for messages."""
        return self.rows.place(self.row_index(index))

    def example(self, index: int) -> Example:
        """The row as text, read again from the file."""
        return read_example(renamed(self.rows[self.row_index(index)], self.columns), self.kind)

    def split(self, held_out: int) -> tuple[Prepared, Prepared]:
        """All but the last rows, and the last rows."""
        if self.shares:
            raise DataError(f"data.eval: of sources with weights no rows can be held out; name a file instead of "
                            f"{held_out}.")
        cut = len(self) - held_out
        if not 0 < cut < len(self):
            raise DataError(f"data.eval: {held_out} rows are to be held out of '{self.rows.file}', which has "
                            f"{count(len(self), 'usable row')}.")
        return (replace(self, table=self.table.slice(0, cut), key=f"{self.key}[:{cut}]"),
                replace(self, table=self.table.slice(cut), key=f"{self.key}[-{cut}]"))


def prepare_rows(rows: Rows, kind: DataKind, tokenizer: Tokenizer, limits: Limits, columns: Mapping[str, str],
                 cache_dir: Path, progress: Progress = unseen) -> Prepared:
    """Read, render and measure every row, once for a given file, tokenizer and limits.

    Raises:
        DataError: columns are missing, a row is unusable or too long (the first ones are named), or none is left.
    """
    theirs = {v: k for k, v in columns.items()}
    check_columns(rows, theirs, kind)
    state = [FORMAT, rows.fingerprint, tokenizer.fingerprint, kind, asdict(limits), sorted(columns.items())]
    key = hashlib.sha256(json.dumps(state).encode()).hexdigest()[:32]
    scan = Scan(rows, kind, tokenizer, limits, theirs, progress)
    table = cached_table(cache_dir / f"tokens-{key}.arrow", lambda: (scan.schema, scan.checked()))
    if not table.num_rows:
        raise DataError(f"data file '{rows.file}': all {count(len(rows), 'row')} are over the limits and were dropped. "
                        "Raise data.max_prompt or data.max_length.")
    shares, key = _shares(rows, table), f"{key}{[weight for _, weight in rows.sources]}"
    return Prepared(rows, theirs, kind, _mixed(table.drop_columns(["notice"]), shares), len(rows) - table.num_rows,
                    key, noticed_in(table, {}), tuple(wanted for _, wanted in shares))


def _shares(rows: Rows, table: pa.Table) -> list[tuple[int, int]]:
    """Usable rows of each source with a weight, and how many of them a pass takes: all, and some again.

    Raises:
        DataError: a source has none.
    """
    if any(weight is None for _, weight in rows.sources):
        return []
    files = list(accumulate(number for number, _ in rows.sources))
    bounds = [0, *np.searchsorted(table.column("row").to_numpy(), [rows.ends[last - 1] for last in files]).tolist()]
    sizes = [end - start for start, end in pairwise(bounds)]
    if 0 in sizes:
        name = rows.files[files[sizes.index(0)] - 1].name
        raise DataError(f"data file '{name}' has a weight but no row that can be used.")
    weights = [float(weight or 0) for _, weight in rows.sources]
    scale = max(n / w for n, w in zip(sizes, weights, strict=True))
    return [(n, max(n, round(w * scale))) for n, w in zip(sizes, weights, strict=True)]


def _mixed(table: pa.Table, shares: Sequence[tuple[int, int]]) -> pa.Table:
    """Each source's rows as often as wanted; nothing is copied."""
    parts, start = [], 0
    for size, wanted in shares:
        part = table.slice(start, size)
        parts += [part] * (wanted // size) + [part.slice(0, wanted % size)]
        start += size
    return pa.concat_tables(parts) if parts else table


def noticed_in(table: pa.Table | pa.RecordBatch, found: dict[Notice, list[int]]) -> dict[Notice, list[int]]:
    """Adds rows of the file to those found, by what is to be known of them."""
    bits, numbers = table.column("notice").to_numpy(), table.column("row").to_numpy()
    for notice in _NOTICES:
        if (has := (bits & int(notice)) > 0).any():
            found.setdefault(notice, []).extend(numbers[has].tolist())
    return found


def named_by_us(columns: Sequence[str], theirs: Mapping[str, str]) -> list[str]:
    """Rlx's names of the columns; a name of something inside a column stands beside it."""
    return [*(theirs.get(c, c) for c in columns), *(ours for name, ours in theirs.items() if name not in columns)]


def check_columns(rows: Rows, theirs: Mapping[str, str], kind: DataKind) -> None:
    """Whether a file has what a kind of data needs.

    Raises:
        DataError: it has not; or its rows are a list inside of its only object.
    """
    problem = missing_columns(named_by_us(rows.columns, theirs), kind)
    held = rows[0].items() if problem and len(rows) == 1 and not {*KNOWN} & {*rows.columns} else ()
    for key in (k for k, value in held if isinstance(value, list) and value and isinstance(value[0], dict)):
        problem = (f"holds one object, with a list of rows in its key '{key}'. Keep that list alone: python -c "
                   f"\"import json; json.dump(json.load(open('{rows.file}'))['{key}'], open('rows.json', 'w'))\"")
    if problem:
        raise DataError(f"data file '{rows.file}' {problem}")


def renamed(row: dict[str, Any], theirs: Mapping[str, str]) -> dict[str, Any]:
    """With rlx's names; a column mapped to a name takes the place of one that has it; ``a.b`` is b inside a."""
    mapped = {ours: _inside(row, name) for name, ours in theirs.items() if _has(row, name)}
    return {**{k: v for k, v in row.items() if k not in theirs}, **mapped}


def _has(row: Mapping[str, Any], name: str) -> bool:
    outer, dot, inner = name.partition(".")
    return name in row or bool(dot and isinstance(row.get(outer), dict) and _has(row[outer], inner))


def _inside(row: Mapping[str, Any], name: str) -> Any:
    outer, _, inner = name.partition(".")
    return row[name] if name in row else _inside(row[outer], inner)


class Scan:
    """One pass over the rows; problems are collected, so that the message can name several."""

    def __init__(self, rows: Rows, kind: DataKind, tokenizer: Tokenizer, limits: Limits,
                 columns: Mapping[str, str], progress: Progress = unseen) -> None:
        """Look at nothing yet."""
        self._progress = progress
        self.rows, self.kind, self.tokenizer, self.limits, self.columns = rows, kind, tokenizer, limits, columns
        self.answers = _ANSWERS[kind]
        self.schema = pa.schema([("row", pa.int64()), ("prompt", _IDS), *((a, _IDS) for a in self.answers),
                                 *([("label", pa.bool_())] if kind == "labelled" else []),
                                 *([("turns", _IDS)] if kind == "demonstrations" else []),
                                 *([("margin", pa.float32())] if kind == "pairs" else []), ("notice", pa.uint16())])
        self.unseen, self.problems, self.overlong = set(columns), list[str](), list[str]()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches of usable rows."""
        starts = range(0, len(self.rows), BATCH_ROWS)
        for start in self._progress(starts, f"preparing {self.rows.file}", len(self.rows)):
            read = [one for i in range(start, min(start + BATCH_ROWS, len(self.rows))) if (one := self._read(i))]
            encoded = self.tokenizer.encode_many([example for _, example in read])
            found = [row for one, ids in zip(read, encoded, strict=True) if (row := self._row(*one, ids))]
            yield pa.RecordBatch.from_pylist(found, schema=self.schema)

    def checked(self) -> Iterator[pa.RecordBatch]:
        """The same; raises at the end if a row was not usable."""
        yield from self.batches()
        if self.unseen:
            raise DataError(f"data file '{self.rows.file}' has no column {listing(sorted(self.unseen))}, which "
                            f"data.columns names; it has {listing(self.rows.columns, 20)}.")
        if self.problems:
            raise DataError(self._message("cannot be used", self.problems, ""))
        if self.overlong and self.limits.overlong == "error":
            raise DataError(self._message("too long", self.overlong,
                                          "\nRaise the limit, or leave such rows out with data.overlong=drop."))

    def _read(self, index: int) -> tuple[int, Example] | None:
        row = self.rows[index]
        self.unseen -= {name for name in self.unseen if _has(row, name)}
        try:
            return index, read_example(renamed(row, self.columns), self.kind)
        except RowProblem as problem:
            self._say(self.problems, index, problem)
            return None

    def _say(self, found: list[str], index: int, problem: object) -> None:
        """The first ones are said, all are counted."""
        found.append(f"{self.rows.place(index)}: {problem}" if len(found) < _SHOWN else "")

    def _row(self, index: int, example: Example, encoded: Encoded | RowProblem) -> dict[str, Any] | None:
        if isinstance(encoded, RowProblem):
            self._say(self.problems, index, encoded)
            return None
        too_long = self.limits.broken_by(encoded)
        fitted = cut_to_fit(example, encoded, self.tokenizer, self.limits) if too_long else encoded
        if fitted is None:
            self._say(self.overlong, index, too_long)
            return None
        return {"row": index, "prompt": fitted.prompt, **dict(zip(self.answers, fitted.answers, strict=True)),
                "label": example.label, "turns": fitted.turns, "margin": example.margin,
                "notice": int(fitted.notice)}

    def _message(self, what: str, found: list[str], fix: str) -> str:
        shown = "\n  ".join([*found[:_SHOWN], *[f"… and {len(found) - _SHOWN:,} more"] * (len(found) > _SHOWN)])
        return f"data file '{self.rows.file}': {count(len(found), 'row')} {what}\n  {shown}{fix}"


def describe(prepared: Prepared) -> str:
    """A line for the log: file, rows, columns, lengths, what was dropped; and one for each thing to be known."""
    rows, lengths = prepared.rows, pc.min_max(pc.list_value_length(prepared.table.column("prompt"))).as_py()
    line = (f"{rows.file}: {count(len(rows) - prepared.dropped, 'row')} ({listing(rows.columns)}), prompts of "
            f"{lengths['min']} to {lengths['max']} tokens")
    if prepared.dropped:
        gone = np.setdiff1d(np.arange(len(rows)), prepared.table.column("row").to_numpy())
        line += (f", {count(prepared.dropped, 'row')} dropped as too long "
                 f"({listing((rows.place(i) for i in gone.tolist()), _SHOWN)})")
    if prepared.shares:
        line += f"; of the sources a pass takes {listing(f'{n:,}' for n in prepared.shares)} rows"
    return "\n".join([line, *notice_lines(rows, prepared.notices)])


def notice_lines(rows: Rows, notices: Mapping[Notice, Sequence[int]]) -> list[str]:
    """One line for each thing to be known, with the first rows."""
    return [f"{count(len(found), 'row has', 'rows have')} {_NOTICES[notice]} "
            f"({listing((rows.place(i) for i in found), _SHOWN)})" for notice, found in notices.items()]
