"""Runs killed with SIGKILL at random moments and resumed until they are done, each against one that was left alone.

    python kills.py FOLDER ALGORITHM KILLS SEED

Processes are forked from this one, which has loaded the libraries and started nothing, so that many fit into a test.
Every phase of a run (start, rollout, update, save ...) is as likely to be hit, and within it every moment. The last
line of output counts in which phases they were hit, and the steps that were made again.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import deepspeed  # noqa: F401 - loaded once, before the forks
import transformers.models.llama.modeling_llama  # noqa: F401

import rlx.build
import rlx.rollouts  # noqa: F401
from rlx.api import train
from rlx.checkpoint import complete_checkpoints
from rlx.run import _Recorder

STEPS = 4
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"reward": "polite_length", "rollout": {"max_completion": 6}},
    "grpo": {"reward": "polite_length", "rollout": {"max_completion": 6, "group_size": 2}},
    "dpo": {},
    "sft": {},
}
WHERE = mmap.mmap(-1, 32)
"""For the parent: how many phases the process at work has begun, and which it is in."""


def mark(phase: str) -> None:
    number = 0 if phase == "start" else int(WHERE[:8]) + 1
    WHERE[:] = f"{number:8d}{phase:24.24}".encode()


def run(folder: Path, algo: str, name: str) -> None:
    """In a process of its own: say in which phase it is, and write down when it began."""
    begun = (folder / f"{name}.phases").open("a", buffering=1)

    def mark(phase: str) -> None:
        globals()["mark"](phase)
        begun.write(f"{time.monotonic()}\n")

    begun.write(f"{time.monotonic()}\n")
    begin, save = _Recorder.phase, _Recorder.save

    def phase(self: _Recorder, name: str) -> None:
        mark(name)
        begin(self, name)

    def saving(self: _Recorder, trainer: Any) -> None:
        save(self, trainer)
        mark("between")

    _Recorder.phase, _Recorder.save = phase, saving  # type: ignore[method-assign]
    shape = {"steps": STEPS, "batch_size": 4, "minibatches": 2, "update_epochs": 1}
    train(algo, quiet=True, data={"eval": 0}, train=shape,
          run={"dir": str(folder), "name": name, "resume": "auto", "save_every": 1, "keep": 2}, **SETTINGS[algo])


def start(*arguments: Any) -> int:
    mark("start")
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        run(*arguments)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def numbers(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "speed/", "memory/"))}
            for line in lines]


def same(one: Path, other: Path) -> None:
    assert numbers(one) == numbers(other), f"metrics of {one}"
    folders = [run / "checkpoints" / f"global_step_{STEPS}" for run in (one, other)]
    files = sorted(file.relative_to(folders[0]) for file in folders[0].rglob("*.safetensors"))
    assert len(files) >= 2
    for file in files:
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes(), file


def lost(run: Path) -> int:
    """Steps that were done and are no part of the newest checkpoint."""
    metrics, done = run / "metrics.jsonl", complete_checkpoints(run / "checkpoints")
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    saved = max((int(c.name.removeprefix("global_step_")) for c in done), default=0)
    return max(0, max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0) - saved)


def struck(process: int, target: int, delay: float) -> bool:
    """Kill a process so long after it began its phase ``target``; whether it was still there."""
    while int(WHERE[:8]) < target:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return False
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(process, signal.SIGKILL)
    return True


def main(folder: Path, algo: str, kills: int, seed: int) -> None:
    draw, hit, runs, again, unfinished = random.Random(seed), Counter[str](), 0, 0, False
    assert os.waitpid(start(folder, algo, "straight"), 0)[1] == 0
    begun = [float(line) for line in (folder / "straight.phases").read_text().splitlines()]
    while hit.total() < kills or unfinished:
        name = f"killed-{runs}"
        process, target = start(folder, algo, name), draw.randrange(len(begun) - 1)
        if hit.total() < kills:
            struck(process, target, draw.uniform(0, begun[target + 1] - begun[target]))
        status = os.waitpid(process, 0)[1]
        print(algo, name, WHERE[:].decode().strip(), status, flush=True)
        unfinished = os.WIFSIGNALED(status)
        if unfinished:
            hit[WHERE[8:].decode().strip()] += 1
            again += lost(folder / name)
        else:
            assert status == 0, f"{name} could not be resumed"
            same(folder / name, folder / "straight")
            runs += 1
    print(json.dumps({"runs": runs, "steps made again": again, "hit": hit}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
