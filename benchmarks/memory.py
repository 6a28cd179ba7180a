"""The memory estimate of `rlx check` against the peak of a few steps: each job in a process of its own.

Jobs run on the model folder that is given and on Qwen2.5-0.5B's shape with random weights and that model's tokenizer
(`benchmarks.rollouts.write_half_b`). Of any other shape that exists as a config alone, write a folder in the same way:
``Qwen2ForCausalLM(Qwen2Config(**numbers)).to(torch.bfloat16).save_pretrained(folder)`` and a tokenizer whose ids all
lie below ``vocab_size`` beside it; for a large one make the weights on the GPU (`benchmarks.engine.write_large`). What
the estimate reads are ``config.json`` and the sizes in the safetensors' headers.

On a GPU the peak is what torch's allocator counts; on a CPU it is counted by `Live`, tensor by tensor, so that the
arithmetic can be tried without a GPU (with a small model: attention is computed otherwise there).
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.engine import Silent, write_pairs
from rlx.build import build
from rlx.inputs import read_inputs
from rlx.logs import library_log
from rlx.memory import GIB
from rlx.plan import resolve
from rlx.preflight import estimate_memory
from rlx.ranks import start_distributed
from rlx.registry import Registry

RECOMPUTED = {"engine": {"activation_checkpointing": True}}
JOBS: dict[str, dict[str, Any]] = {
    "sft": {},
    "sft recomputed": RECOMPUTED,
    "sft float32": {"engine": {"dtype": "float32"}},
    "ppo": {},
    "ppo recomputed": RECOMPUTED,
    "grpo": {},
    "dpo": {"model": {"reference": {"cache": False}}},
    "sft float32 recomputed": {"engine": {"dtype": "float32", "activation_checkpointing": True}},
    "ppo float32": {"engine": {"dtype": "float32"}},
    "sft zero 2": {"engine": {"zero_stage": 2}},
    "sft zero 3": {"engine": {"zero_stage": 3}},
    "sft lora": {"model": {"lora": {"rank": 16}}},
    "sft packed": {"train": {"packing": True}},
    "reward_model": {},
}
"""Settings by name; a name begins with the algorithm."""
SAMPLED: dict[str, Any] = {"rewards": [{"name": "polite_length"}], "rollout": {"name": "hf", "max_completion": 256}}
OWN: dict[str, dict[str, Any]] = {"ppo": SAMPLED, "grpo": {**SAMPLED, "train": {"batch_size": 8}}}
"""What an algorithm needs besides."""


class Live(TorchDispatchMode):
    """Bytes of the tensors that are alive on the CPU, at the most, by phase; not of those that were there before."""

    def __init__(self) -> None:
        """Note what is there."""
        super().__init__()
        self.peaks: Counter[str] = Counter()
        self._now, self._phase, self._sizes = 0, "", dict[int, int]()
        self._before = {tensor.untyped_storage()._cdata for tensor in _tensors()}

    def begin(self, phase: str) -> None:
        """Tensors that operations did not make, such as those read from files, are found now."""
        self._phase = phase
        for tensor in _tensors():
            self._add(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it made."""
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor)
        return made

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if tensor.device.type == "cpu" and key not in self._sizes and key not in self._before:
            self._sizes[key] = storage.nbytes()
            self._now += storage.nbytes()
            weakref.finalize(storage, self._gone, key)
        self.peaks[self._phase] = max(self.peaks[self._phase], self._now)

    def _gone(self, key: int) -> None:
        self._now -= self._sizes.pop(key)


class Allocator:
    """The same of torch's allocator on a GPU."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.peaks: Counter[str] = Counter()
        self._phase = ""

    def begin(self, phase: str) -> None:
        """Keep the peak of the phase before."""
        self.peaks[self._phase] = max(self.peaks[self._phase], torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        self._phase = phase

    def __enter__(self) -> Allocator:
        """Nothing to do."""
        return self

    def __exit__(self, *error: object) -> None:
        """Keep the last peak."""
        self.begin("")


class Recorder(Silent):
    """Tells the meter which phase begins."""

    def __init__(self, meter: Live | Allocator) -> None:
        """Keep it."""
        super().__init__()
        self.phase = meter.begin  # type: ignore[method-assign]

    def skipped(self, step: int, role: Any, rows: Any) -> None:
        """Random weights may overflow; memory is the same."""

    def chosen(self, step: int, samples: Any) -> None:
        """Nothing is shown."""

    def stop_asked(self) -> bool:
        """Never."""
        return False


def compare(spec: dict[str, Any], steps: int) -> dict[str, Any]:
    """Train some steps: what was estimated, by part, and what was taken, by phase, GiB."""
    with library_log(None):
        ranks = start_distributed()
        plan = resolve(Registry.discover(), spec)
        inputs = read_inputs(plan)
        meter = Allocator() if torch.cuda.is_available() else Live()
        with meter:
            meter.begin("build")
            trainer = build(plan, inputs, ranks, Recorder(meter))
            meter.begin("sync")
            trainer._sync()
            for _ in range(steps):
                trainer.train_step()
        trainer.source.close()
        for engine in trainer.engines.values():
            engine._deepspeed.destroy()
    found, peak = estimate_memory(plan, inputs, ranks.world), max(meter.peaks.values())
    assert found is not None
    reserved = {"reserved_gib": torch.cuda.max_memory_reserved() / GIB} if torch.cuda.is_available() else {}
    return {"estimate_gib": found.peak / GIB, "peak_gib": peak / GIB, "ratio": found.peak / peak, **reserved,
            "phase": found.phase, "parts": {name: size / GIB for name, size in found.parts.items()},
            "phases": {name: size / GIB for name, size in meter.peaks.items() if name}}


def spec_of(name: str, model: str, folder: Path, batch: int, words: int, micro_tokens: int,
            steps: int) -> dict[str, Any]:
    """The spec of a job, with its data written into the folder."""
    algo, more = name.split()[0], JOBS[name]
    data = folder / "rows.jsonl"
    write_pairs(data, batch * steps, words)
    train = {"steps": steps, "batch_size": batch, "micro_tokens": micro_tokens}
    own = OWN.get(algo, {})
    return {**own, "algo": {"name": algo}, "data": {"path": str(data), "cache": str(folder)},
            "run": {"dir": str(folder)}, "model": {"path": model, **more.get("model", {})},
            "train": {**train, **own.get("train", {}), **more.get("train", {})},
            "engine": {"dtype": "bfloat16", **more.get("engine", {})}}


def measure(models: dict[str, str], jobs: list[str], steps: int, batch: int, words: int, micro_tokens: int,
            at_once: int) -> Iterator[dict[str, Any]]:
    """Every job on every model; what one process leaves behind, or takes beside another, is no part of its figures."""

    def job(model: str, name: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            spec = spec_of(name, models[model], Path(folder), batch, words, micro_tokens, steps)
            done = subprocess.run([sys.executable, "-m", "benchmarks.memory", json.dumps(spec), str(steps)],
                                  capture_output=True, text=True, check=False)
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {
            "failed": done.stderr.strip().splitlines()[-1:]}
        return {"model": model, "job": name, **_rounded(found)}

    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(lambda pair: job(*pair), [(model, name) for name in jobs for model in models])


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def _tensors() -> Iterator[torch.Tensor]:
    gc.collect()
    yield from (found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)
                and found.layout == torch.strided and found.device.type == "cpu")


if __name__ == "__main__":
    print(json.dumps(compare(json.loads(sys.argv[1]), int(sys.argv[2]))))
