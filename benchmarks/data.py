"""Data files of each layout prepared in a fresh process: seconds, CPU time, and what memory grew by at most."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rlx
from rlx.data import Limits, load_tokenizer, open_rows, prepare_rows

MODEL = Path(rlx.__file__).parent / "quickstart" / "rlx-tiny"
WORDS = ("thank you for the note about our plan and please tell them that we can meet on Monday at the old house to "
         "read what was said of the price of bread, fish and paper in the town near the sea").split()


def _text(made: random.Random, words: int) -> str:
    return " ".join(made.choices(WORDS, k=words)) + "."


def _turns(made: random.Random, *words: int) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": _text(made, n)} for i, n in enumerate(words)]


LAYOUTS: dict[str, tuple[str, Callable[[random.Random], dict[str, Any]]]] = {
    "prompts": ("rollouts", lambda r: {"prompt": _turns(r, 120), "ground_truth": "7"}),
    "pairs": ("pairs", lambda r: {"prompt": _text(r, 120), "chosen": _turns(r, 1, 120)[1:],
                                  "rejected": _turns(r, 1, 120)[1:]}),
    "demonstrations": ("demonstrations", lambda r: {"instruction": _text(r, 120), "output": _text(r, 240)}),
    "chats": ("demonstrations", lambda r: {"messages": _turns(r, 60, 60, 60, 60, 60, 60)}),
}
"""Kind of data, and a row of about 360 words (of prompts, 120)."""


def measure(rows: int) -> Iterator[dict[str, Any]]:
    """Every layout as jsonl, at a quarter of the rows and at all, so that memory can be compared."""
    for layout in LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            for n in (rows // 4, rows):
                write(Path(folder) / f"{n}.jsonl", layout, n)
                command = [sys.executable, "-m", "benchmarks.data", layout, f"{folder}/{n}.jsonl", folder]
                yield json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def write(file: Path, layout: str, rows: int) -> None:
    """A file of a layout; the same each time."""
    made = random.Random(0)
    with file.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(LAYOUTS[layout][1](made)) + "\n" for _ in range(rows))


def prepare(layout: str, file: str, folder: str) -> dict[str, Any]:
    """One file, from its text to a table of token ids."""
    tokenizer, before = load_tokenizer(str(MODEL)), anonymous()
    peak = Peak()
    began, cpu = time.perf_counter(), time.process_time()
    found = prepare_rows(open_rows(file, Path(folder)), LAYOUTS[layout][0], tokenizer,  # type: ignore[arg-type]
                         Limits(), {}, Path(folder))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    tokens = sum(len(found.table.column(part).combine_chunks().values) for part in ("prompt", "completion", "chosen",
                 "rejected") if part in found.table.column_names)
    return {"layout": layout, "rows": len(found), "tokens": tokens, "seconds": seconds, "cpu_seconds": cpu,
            "grew_mib": peak.stop() - before}


class Peak:
    """The most anonymous memory, looked at twenty times a second: pages of mapped files can be had back any time."""

    def __init__(self) -> None:
        """Begin to look."""
        self._most, self._done = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(0.05):
            self._most = max(self._most, anonymous())

    def stop(self) -> float:
        """MiB."""
        self._done.set()
        self._thread.join()
        return self._most


def anonymous() -> float:
    """Memory of this process that no file backs, MiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("RssAnon:")[1].split()[0]) / 2**10


if __name__ == "__main__":
    sys.stdout.write(json.dumps(prepare(*sys.argv[1:])))
