"""A reward in a process of its own: one that dies or gets stuck costs its samples, not the run."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rlx_sdk import RewardContext, RewardError, Sample
from rlx_sdk.wire import dump_samples, read_score

_STARTING = 600.0
"""Seconds a process has to build its reward."""


class IsolatedReward:
    """Sends samples to a process that finds the reward by its name, and waits ``timeout`` seconds for the scores."""

    def __init__(self, name: str, options: dict[str, Any], context: RewardContext, timeout: float) -> None:
        """Start the process.

        Raises:
            RewardError: the reward could not be built there.
        """
        self._hello = json.dumps({"name": name, "options": options, "context": asdict(context), "path": sys.path})
        self._name, self._timeout, self._read = name, timeout, b""
        self._process = self._start()

    def score(self, samples: Sequence[Sample]) -> list[Any]:
        """The scores.

        Raises:
            TimeoutError: they took too long; the process was killed, and its stack is in the run's log.
            RuntimeError: the process ended.
        """
        if self._process.poll() is not None:
            self._process = self._start()
        answer = self._ask(dump_samples(samples), self._timeout)
        if "raised" in answer:
            raise RuntimeError(answer["raised"])
        return [read_score(score) for score in answer["scores"]]

    def close(self) -> None:
        """End the process, which closes its reward."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _start(self) -> subprocess.Popen[bytes]:
        stderr = sys.stderr.fileno() if _is_file(sys.stderr) else None
        self._process = subprocess.Popen([sys.executable, "-P", "-m", "rlx.worker"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=stderr, bufsize=0)
        self._read = b""
        answer = self._ask(self._hello, _STARTING)
        if "raised" in answer:
            self.close()
            raise RewardError(f"reward '{self._name}' could not be built in its process: {answer['raised']}")
        return self._process

    def _ask(self, line: str, timeout: float) -> dict[str, Any]:
        process, end = self._process, time.monotonic() + timeout
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # its end is found below
            data = memoryview(line.encode() + b"\n")
            while data:
                data = data[process.stdin.write(data):]
        while b"\n" not in self._read:
            left = end - time.monotonic()
            ready = select.select([process.stdout], [], [], max(left, 0))[0]
            if not ready:
                self._kill()
                raise TimeoutError(f"no answer within {timeout:g} s; its process was killed (its stack is in the log)")
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                code = process.wait()
                self._forget()
                what = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                raise RuntimeError(f"its process ended ({what})")
            self._read += part
        first, _, self._read = self._read.partition(b"\n")
        return json.loads(first)  # type: ignore[no-any-return]

    def _kill(self) -> None:
        """Have it write down where it is stuck, then end it."""
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
        self._process.kill()
        self._process.wait()
        self._forget()

    def _forget(self) -> None:
        """Close the pipes of a process that has ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


def _is_file(stream: Any) -> bool:
    try:
        return stream.fileno() >= 0  # type: ignore[no-any-return]
    except (AttributeError, OSError, ValueError):
        return False
