"""``metrics.jsonl`` in the run's folder: one line a step and one an evaluation, keys as in docs/metrics.md.

What a resumed run does again takes the place of what was there. A line that cannot be written, say on a full disk,
comes with the next one that can.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rlx_sdk import Config, TrackerContext


class JsonlTracker:
    """The file of one run."""

    def __init__(self, options: Config, context: TrackerContext) -> None:
        """Forget the lines of later steps, and half a line of a killed run."""
        self._file, self._unwritten = context.run_dir / "metrics.jsonl", list[str]()
        if self._file.exists():
            last = -1 if context.resumed is None else context.resumed
            lines = self._file.read_text(encoding="utf-8").splitlines(keepends=True)
            aside = self._file.with_name(".metrics.jsonl")
            aside.write_text("".join(line for line in lines if _step(line) <= last), encoding="utf-8")
            aside.replace(self._file)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One line; what is not a finite number is null."""
        known = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._unwritten.append(json.dumps({"step": step, **known}, allow_nan=False) + "\n")
        self._write()

    def samples(self, step: int, table: Sequence[Mapping[str, Any]], split: str) -> None:
        """They are in ``samples/`` already."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the file is there."""
        return {}

    def finish(self) -> None:
        """Write what could not be written."""
        self._write()

    def _write(self) -> None:
        if not self._unwritten:
            return
        size = self._file.stat().st_size if self._file.exists() else 0
        try:
            with self._file.open("a", encoding="utf-8") as stream:
                stream.writelines(self._unwritten)
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(self._file, size)
            raise
        self._unwritten.clear()


def _step(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
