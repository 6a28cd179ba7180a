"""The other side of `rlx.isolate`: ``python -m rlx.worker`` builds one reward and scores the samples it reads."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
from typing import IO

from rlx.launch import Place


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Build the reward that the first line names; then answer every line of samples with one of scores."""
    from rlx.functions import find_reward
    from rlx.registry import Registry
    from rlx_sdk import RewardContext
    from rlx_sdk.errors import cause
    from rlx_sdk.scores import Caller, check_scores
    from rlx_sdk.wire import dump_scores, load_samples

    def answer(text: str) -> None:
        answers.write(text.encode() + b"\n")
        answers.flush()

    caller = Caller()
    try:
        hello = json.loads(requests.readline())
        sys.path[:] = hello["path"]
        entry, _ = find_reward(Registry.discover(), hello["name"])
        options = entry.call("config").model_validate_json(json.dumps(hello["options"]))
        reward = entry.call("build", options, RewardContext(**hello["context"]))
        answer("{}")
    except Exception as error:
        answer(json.dumps({"raised": f"{type(error).__name__}: {error}"}))
        return
    for line in requests:
        samples = load_samples(line)
        try:
            answer(dump_scores(check_scores(caller(reward, samples), len(samples))))
        except Exception as error:
            answer(json.dumps({"raised": cause(error)}))
    reward.close()


def main() -> None:
    """Answers have a channel of their own: what the reward prints goes to standard error, with stacks when asked."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    faulthandler.register(signal.SIGUSR1)
    for name in Place(0, 2).environment():  # it is no rank, and what the reward uses must not take it for one
        os.environ.pop(name, None)
    if sys.platform == "linux":  # PR_SET_PDEATHSIG: also when it is stuck and the run was killed
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when it ends
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
