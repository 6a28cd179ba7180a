"""What other libraries say goes to the run's log, not between the user and the numbers, even on a terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
from tqdm import tqdm

SAID = ("transformers", "deepspeed", "vllm", "a root handler", "warnings", "a progress bar", "print", "stderr")


@contextlib.contextmanager
def screen(terminal: bool) -> Iterator[list[bytes]]:
    """Standard output and error as a user has them; when it is over, what came there."""
    theirs, ours = os.openpty() if terminal else os.pipe()
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.extend(iter(lambda: _read(theirs), b"")))
    reader.start()
    with os.fdopen(ours, "w", encoding="utf-8") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        yield seen
    reader.join()
    os.close(theirs)


def _read(file: int) -> bytes:
    try:
        return os.read(file, 65536)
    except OSError:  # so a terminal says that the other side is closed
        return b""


@contextlib.contextmanager
def handlers() -> Iterator[None]:
    """Those that libraries made when they were imported, before there was a run: vLLM's, and that of basicConfig."""
    with contextlib.ExitStack() as stack:
        for name, stream in (("vllm", sys.stdout), (None, sys.stderr)):
            handler = logging.StreamHandler(stream)
            logging.getLogger(name).addHandler(handler)
            stack.callback(logging.getLogger(name).removeHandler, handler)
        yield


@pytest.mark.parametrize("terminal", [True, False])
def test_the_chatter_of_libraries_is_in_the_log_and_not_on_the_screen(train, terminal):
    def loud(samples):
        from deepspeed.utils import logger
        from transformers.utils import logging as transformers_logging

        transformers_logging.get_logger("transformers.loud").warning("said by transformers")
        logger.warning("said by deepspeed")
        logging.getLogger("vllm.engine").warning("said by vllm")
        logging.getLogger("other").warning("said by a root handler")
        warnings.warn("said by warnings", stacklevel=1)
        list(tqdm([1, 2], desc="said by a progress bar"))
        print("said by print")
        print("said by stderr", file=sys.stderr)
        return [0.5] * len(samples)

    with screen(terminal) as seen, handlers():
        result = train("grpo", reward=loud, train={"steps": 2, "batch_size": 4}, data={"eval": 0}, quiet=False,
                       rollout={"max_completion": 4, "group_size": 2})
    shown, log = b"".join(seen).decode(), (result.run / "libraries.log").read_text()
    assert "step 2" in shown
    assert ("\x1b" in shown) == terminal
    assert [who for who in SAID if f"said by {who}" not in log] == []
    assert "said by" not in shown
