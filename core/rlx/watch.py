"""A run from outside: signals that ask it to end, and a clock that notices when it no longer moves."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from rlx.launch import STARTED, die

SIGNALS = (signal.SIGTERM, signal.SIGINT)
MOMENT = 3.0
"""Seconds in which other ranks, stuck as well, write down their stacks before the first one's end ends them."""


class StopSignals(contextlib.AbstractContextManager["StopSignals"]):
    """While entered, SIGTERM and Ctrl-C are only noted; the second one acts as ever.

    Attributes:
        asked: the signal that came, if one did.
    """

    def __init__(self, speaks: bool) -> None:
        """Args: speaks: say what happens now."""
        self.asked: signal.Signals | None = None
        self._speaks, self._before = speaks, dict[signal.Signals, Any]()

    def __enter__(self) -> StopSignals:
        """Only the main thread may listen; elsewhere signals stay what they are."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        """As before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number)
        self.__exit__()
        # Not by way of the screen, which may be in the middle of a line; nor before the error of a rank that died.
        if self._speaks and STARTED not in os.environ:
            with contextlib.suppress(OSError):  # the terminal may be gone
                os.write(2, f"\n{self.asked.name}: this step is finished and saved, then the run ends; once more ends "
                            "it at once\n".encode())


class Watchdog(contextlib.AbstractContextManager["Watchdog"]):
    """Ends this process, with the stacks of its threads in a file, when no phase of a step has begun for too long."""

    def __init__(self, limit: float, folder: Path, rank: int) -> None:
        """Args: limit: seconds; folder: of the run, for ``stacks.<rank>.txt``; rank: of this process."""
        self._limit, self._file, self._rank = limit, folder / f"stacks.{rank}.txt", rank
        self._over = threading.Event()
        self.beat("the start")

    def beat(self, phase: str) -> None:
        """Something has begun."""
        self._last = time.monotonic(), phase

    def __enter__(self) -> Watchdog:
        """Begin to watch."""
        self.beat("the start")
        threading.Thread(target=self._watch, name="rlx-watchdog", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        """Watch no more."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(max(0.05, self._last[0] + self._limit - time.monotonic())):
            since, phase = self._last
            if time.monotonic() - since >= self._limit:
                self._end(phase)

    def _end(self, phase: str) -> None:
        with contextlib.suppress(OSError), self._file.open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        self._over.wait(MOMENT)
        die(f"nothing moved for {self._limit:g} seconds in {phase}; each rank's stack is in '"
            f"{self._file.with_name('stacks.*.txt')}'. run.stuck_after sets how long is waited.",
            f"rank {self._rank}: ")
