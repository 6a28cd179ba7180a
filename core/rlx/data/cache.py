"""Arrow files made once, written aside, and mapped into memory."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from rlx_sdk import DataError

BATCH_ROWS = 1024
T = TypeVar("T")
Batches = tuple[pa.Schema, Iterator[pa.RecordBatch]]


def cached_table(cached: Path, make: Callable[[], Batches]) -> pa.Table:
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


def with_progress(items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    """The items, and on a terminal a bar while they pass."""
    terminal = sys.__stderr__  # sys.stderr goes to a file while other libraries talk
    if terminal is None or not terminal.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, what, total, console=Console(file=terminal), transient=True)
