"""Runs killed with SIGKILL at random moments and resumed until they are done, each against one that was left alone.

    python kills.py FOLDER ALGORITHM KILLS SEED

Processes are forked from this one, which has loaded the libraries and started nothing, so that many fit into a test.
The last line of output counts in which phase they were hit.
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
    number = 0 if phase == "start" else int(WHERE[:8] or 0) + 1
    WHERE[:] = f"{number:8d}{phase:24.24}".encode()


def run(folder: Path, algo: str, name: str) -> None:
    """In a process of its own: say in which phase it is."""
    begin, save = _Recorder.phase, _Recorder.save

    def phase(self: _Recorder, name: str) -> None:
        mark(name)
        begin(self, name)

    def saving(self: _Recorder, trainer: Any) -> None:
        mark("save")
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


def main(folder: Path, algo: str, kills: int, seed: int) -> None:
    draw, hit, runs = random.Random(seed), Counter[str](), 0
    assert os.waitpid(start(folder, algo, "straight"), 0)[1] == 0
    phases, process = int(WHERE[:8]), 1
    while hit.total() < kills or process:
        process = start(folder, algo, f"killed-{runs}")
        target, status = draw.randrange(phases), None
        while status is None:
            if hit.total() < kills and int(WHERE[:8]) >= target:
                time.sleep(draw.uniform(0.0, 0.1))
                os.kill(process, signal.SIGKILL)
            ended, code = os.waitpid(process, 0 if hit.total() >= kills else os.WNOHANG)
            status = code if ended else None
            time.sleep(0.001)
        print(algo, f"killed-{runs}", WHERE[:].decode().strip(), status, flush=True)
        if os.WIFSIGNALED(status):
            hit[WHERE[8:].decode().strip()] += 1
            continue
        assert status == 0, f"killed-{runs} could not be resumed"
        same(folder / f"killed-{runs}", folder / "straight")
        runs, process = runs + 1, 0
    print(json.dumps({"runs": runs, **hit}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
