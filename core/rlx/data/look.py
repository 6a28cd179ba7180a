"""What is in a data file and how it was understood: ``rlx data``."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from pydantic import ValidationError

from rlx.data.cache import Progress, unseen
from rlx.data.files import open_rows
from rlx.data.layouts import KINDS, missing_columns, understood
from rlx.data.limits import Limits
from rlx.data.load import load_tokenizer
from rlx.data.prepare import Scan, check_columns, named_by_us, notice_lines, noticed_in
from rlx.data.tokenizer import Tokenizer
from rlx.machine import expanded
from rlx.problems import sentences
from rlx.spec import DataSpec
from rlx.text import count
from rlx_sdk import DataKind, SpecError

PERCENTILES = (1, 50, 90, 99, 100)
MARKS = "⟦⟧"
"""Around what is trained."""


def look_at(data: Mapping[str, Any], model: str, kind: str | None, number: int,
            progress: Progress = unseen) -> dict[str, Any]:
    """Read every row, as a training would, and report instead of refusing.

    Args:
        data: the spec's section.
        model: whose tokenizer and chat template are used.
        kind: of data; by default the most that the columns suffice for.
        number: of the row to show, from 1; if it cannot be used, the next one.
        progress: of reading.

    Raises:
        SpecError: a setting is wrong.
        DataError: the data cannot be read, or suffices for no kind.
    """
    spec = _spec(data)
    if kind not in (None, *KINDS):
        raise SpecError([f"--kind {kind}: it is one of {', '.join(KINDS)}"])
    rows, tokenizer = open_rows(spec.path, expanded(spec.cache), progress), load_tokenizer(model)
    if number > len(rows):
        raise SpecError([f"--row {number:,}: '{rows.file}' has {count(len(rows), 'row')}"])
    theirs = {v: k for k, v in spec.columns.items()}
    columns = named_by_us(rows.columns, theirs)
    fits = [k for k in KINDS if missing_columns(columns, k) is None]
    chosen: DataKind = kind or next(iter(fits), "rollouts")  # type: ignore[assignment]
    check_columns(rows, theirs, chosen)
    scan = Scan(rows, chosen, tokenizer, Limits(spec.max_prompt, spec.max_length, spec.overlong), theirs,
                progress)
    found = _Findings(scan, tokenizer, number - 1)
    problems = [*_counted("cannot be used", scan.problems), *_counted("too long", scan.overlong),
                *(f"data.columns names {name}, which no row has" for name in sorted(scan.unseen)),
                *notice_lines(rows, found.notices), *tokenizer.notes]
    return {"data": rows.file, "files": len(rows.files), "rows": len(rows), "usable": found.usable,
            "columns": list(rows.columns), "kind": chosen, "could be": fits,
            "understood": understood(columns, chosen), **found.shown, "lengths": found.percentiles(),
            "duplicates": found.duplicates(), "problems": problems}


def _spec(data: Mapping[str, Any]) -> DataSpec:
    try:
        return DataSpec.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise SpecError(sentences(error, DataSpec, data, "data.")) from error


def _counted(what: str, found: list[str]) -> list[str]:
    return [f"{count(len(found), 'row')} {what}: {'; '.join(found[:3])}{'; …' if len(found) > 3 else ''}"] * bool(found)


class _Findings:
    """Everything that one pass over the rows gives."""

    def __init__(self, scan: Scan, tokenizer: Tokenizer, wanted: int) -> None:
        self.usable, self._hashes = 0, {part: array("q") for part in ("prompts", "rows")}
        self.shown: dict[str, Any] = {}
        self.notices: dict[Any, list[int]] = {}
        self._lengths = {part: array("i") for part in ("prompt", *scan.answers)}
        for batch in scan.batches():
            noticed_in(batch, self.notices)
            for row in batch.to_pylist():
                self._count(row)
                if not self.shown and row["row"] >= wanted:
                    sides = {name: tokenizer.decode(row[name], True) for name in self._lengths}
                    bounds = [0, *(row.get("turns") or ()), len(row["prompt"])]
                    parts = [tokenizer.decode(row["prompt"][a:b], True) for a, b in pairwise(bounds)]
                    sides["prompt"] = "".join(text.join(MARKS) if i % 2 else text for i, text in enumerate(parts))
                    self.shown = {"row": scan.rows.place(row["row"]), "rendered": _marked(sides)}

    def _count(self, row: dict[str, Any]) -> None:
        self.usable += 1
        parts = [tuple(row[part]) for part in self._lengths]
        self._hashes["prompts"].append(hash(parts[0]))
        self._hashes["rows"].append(hash(tuple(parts)))
        for part, lengths in self._lengths.items():
            lengths.append(len(row[part]))

    def duplicates(self) -> dict[str, int]:
        """Prompts, and whole rows, that were there before."""
        return {what: self.usable - len(np.unique(hashes)) for what, hashes in self._hashes.items()}

    def percentiles(self) -> dict[str, dict[str, int]]:
        """Tokens of each part at some percentiles, the last being the longest."""
        return {part: {str(p): int(np.percentile(lengths, p, method="higher")) for p in PERCENTILES}
                for part, lengths in self._lengths.items() if lengths}


def _marked(sides: Mapping[str, str]) -> str:
    prompt, *answers = sides.items()
    marked = [text.join(MARKS) if len(answers) == 1 else f"\n{name}: {text.join(MARKS)}" for name, text in answers]
    return prompt[1] + "".join(marked)


def lines(report: Mapping[str, Any]) -> list[str]:
    """The report for people."""
    files = f" in {report['files']} files" if report["files"] > 1 else ""
    trained = f"   (trained: {MARKS[0]}…{MARKS[1]})" if MARKS[0] in report.get("rendered", "") else ""
    table = [f"  {part:<12}" + "".join(f"{at[str(p)]:>9,}" for p in PERCENTILES)
             for part, at in report["lengths"].items()]
    twice = report["duplicates"]
    return [f"{report['data']}: {count(report['rows'], 'row')}{files}, {report['usable']:,} usable",
            f"columns     {', '.join(report['columns'])}",
            f"understood  as {report['kind']}: {report['understood']}",
            f"could be    {', '.join(report['could be'])}",
            *([f"\n{report['row']}{trained}", report["rendered"], ""] if "row" in report else []),
            f"{'tokens, at %':<14}" + "".join(f"{p:>9}" for p in PERCENTILES), *table,
            f"duplicates  {count(twice['prompts'], 'prompt')}, {count(twice['rows'], 'whole row')}",
            *(f"problem     {problem}" for problem in report["problems"] or ["none found"])]
