"""Arrow files made once, written aside, and mapped into memory."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from rlx_sdk import DataError

BATCH_ROWS = 1024
T = TypeVar("T")
Batches = tuple[pa.Schema, Iterable[pa.RecordBatch]]
Progress = Callable[[Iterable[Any], str, int | None], Iterable[Any]]
"""Shows how far batches of `BATCH_ROWS` rows are while they pass: what is done, and how many rows in all, if known."""


def unseen(batches: Iterable[T], what: str, rows: int | None = None) -> Iterable[T]:
    """Shows nothing."""
    return batches


def cached_table(cached: Path, make: Callable[[], Batches], progress: Progress = unseen, what: str = "",
                 rows: int | None = None) -> pa.Table:
    """The memory-mapped Arrow file at ``cached``, made first if it is not there or was cut off.

    Written aside and renamed, so that a killed or a second process never leaves or reads half a file. One that another
    machine has finished first stays: on a shared disk, a file that is read must not be replaced.

    Raises:
        DataError: the folder cannot be written.
    """
    with contextlib.suppress(OSError, pa.ArrowInvalid):
        return _mapped(cached)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=cached.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                schema, batches = make()
                with pa.ipc.new_file(stream, schema) as writer:
                    for batch in progress(batches, what, rows):
                        writer.write_batch(batch)
            return _settle(aside, cached)
        finally:
            Path(aside).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"the cache folder '{cached.parent}' cannot be written: {error.strerror}. Set data.cache to "
                        "another.") from error


def _settle(aside: str, cached: Path) -> pa.Table:
    with contextlib.suppress(OSError):  # there is one, or this disk knows no links
        os.link(aside, cached)
    with contextlib.suppress(OSError, pa.ArrowInvalid):
        return _mapped(cached)
    os.replace(aside, cached)
    return _mapped(cached)


def _mapped(cached: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(cached))).read_all()
