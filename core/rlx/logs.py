"""Other libraries' chatter goes to a file of the run, not between the user and the numbers."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

NOISY = ("rlx", "DeepSpeed", "deepspeed", "transformers", "torch", "py.warnings")


class Forgiving:
    """A stream whose text may be lost, to a full disk or a terminal that is gone; no run ends by that."""

    def __init__(self, stream: TextIO) -> None:
        """Write to a stream."""
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """As the stream's, but for what writes."""
        found = getattr(self._stream, name)

        def tried(*args: Any) -> Any:
            with contextlib.suppress(OSError):
                return found(*args)

        return tried if name in ("write", "writelines", "flush", "close") else found


@contextlib.contextmanager
def library_log(path: Path | None) -> Iterator[None]:
    """Send logging, warnings and prints to ``path``, or nowhere for None, until the block ends.

    What plugins print lands there too; rlx itself writes to streams it took before.
    """
    with contextlib.ExitStack() as stack:
        stream: Any = Forgiving(open(path or os.devnull, "a", encoding="utf-8", buffering=1))
        stack.callback(stream.close)
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        for theirs in _handlers_of({sys.stdout, sys.stderr}):
            stack.callback(theirs.setStream, theirs.setStream(stream))
        stack.enter_context(contextlib.redirect_stdout(stream))
        stack.enter_context(contextlib.redirect_stderr(stream))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")
        import deepspeed  # noqa: F401 - it speaks when it is imported
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        logging.captureWarnings(True)
        stack.callback(logging.captureWarnings, False)
        for name in NOISY:
            stack.enter_context(_only(logging.getLogger(name), handler))
        yield


def _handlers_of(streams: set[Any]) -> set[logging.StreamHandler[Any]]:
    """Those that write there: a library, or a plugin's basicConfig, may have made them before there was a run."""
    loggers = (logging.getLogger(), *logging.getLogger().manager.loggerDict.values())
    return {handler for logger in loggers for handler in getattr(logger, "handlers", ())
            if isinstance(handler, logging.StreamHandler) and vars(handler).get("stream") in streams}


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """Drop what compilers and C libraries write to file descriptor 2, past Python's ``sys.stderr``."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def _only(logger: logging.Logger, handler: logging.Handler) -> Iterator[None]:
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before
