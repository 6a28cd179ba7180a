"""Around a stranger's code: its time, what it prints, and the random generators it may draw from."""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
import threading
import traceback
from collections.abc import Iterator

from rlx.launch import die
from rlx_sdk import RewardError

GRACE = 10.0
"""Seconds that code which is stuck below Python gets to return, before the process ends."""


class TimeUp(BaseException):
    """Raised inside code that took too long; no ``except Exception`` there holds it up."""


@contextlib.contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """End a block on this thread that takes longer, and say where it was stuck.

    Code below Python cannot be interrupted: after `GRACE` more seconds the process then ends with that message.

    Raises:
        RewardError: the block took too long.
    """
    thread, over, lock, told = threading.get_ident(), threading.Event(), threading.Lock(), [""]

    def watch() -> None:
        if over.wait(seconds):
            return
        with lock:
            if over.is_set():
                return
            told[0] = f"{what} did not return within {seconds:g} s. It was here:\n{_stack(thread)}"
            _raise_in(thread, TimeUp)
        if not over.wait(GRACE):
            die(told[0])

    threading.Thread(target=watch, name="rlx-watchdog", daemon=True).start()
    try:
        yield
    except TimeUp:
        raise RewardError(f"{told[0]}Raise its timeout; or set isolate: process for it, and on_error then says what "
                          "becomes of the sample.") from None
    finally:
        with lock:
            over.set()
            _raise_in(thread, None)


def _stack(thread: int) -> str:
    """The innermost frames of a thread."""
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)[-6:]) if frame else ""


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise in a thread at its next instruction; None takes back what was not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error) if error else None)


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Leave Python's, numpy's and torch's global random generators as they were."""
    import numpy as np
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
