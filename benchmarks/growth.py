"""What grows with size: a token by the rows of a file and by the length of completions, and a plugin by their number.

All models and files of one call are made in one process, the small ones first, so that later figures have no start of
torch or of a GPU in them.
"""

from __future__ import annotations

import gc
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.data import Peak, anonymous, write
from benchmarks.engine import Silent
from benchmarks.rewards import cpu_seconds, installed
from benchmarks.speed import Job, spec_of, write_rows
from rlx.build import build
from rlx.inputs import Inputs, read_inputs
from rlx.plan import Plan, resolve
from rlx.preflight import with_passes
from rlx.ranks import Ranks
from rlx.registry import Registry
from rlx.trainer import Trainer
from rlx_plugins.hf_rollout import _keys_in_place

BATCHES = {"llama_6m": (8, 2, 2), "half_b": (16, 4, 8)}
"""By shape: rows of a step of SFT; prompts of one of GRPO, and completions of each."""
STEPS, WARM = 6, 64
"""Of SFT; and the rows of a first file, for nothing."""
NO_TOKEN = 1 << 30
"""Is never sampled."""
DISCOVER = """
import time
from rlx.registry import Registry
begin = time.process_time()
found = Registry.discover()
print(time.process_time() - begin, "bench_0" in [one.name for one in found.entries("reward")])
"""


def rows(numbers: Sequence[int], model: str, shape: str, folder: Path, ranks: Ranks) -> Iterator[dict[str, Any]]:
    """SFT on files of so many rows of 360 words: seconds a token of preparing and of a step, and memory, MiB."""
    for number in (WARM, *numbers):
        file = folder / f"{number}.jsonl"
        write(file, "demonstrations", number)
        spec = {"algo": {"name": "sft"}, "model": {"path": model}, "run": {"dir": str(folder)},
                "data": {"path": str(file), "cache": str(folder / "cache"), "eval": 0},
                "train": {"steps": STEPS, "batch_size": BATCHES[shape][0]}}
        plan, before, peak = resolve(Registry.discover(), spec), anonymous(), Peak()
        inputs, first = _timed(lambda plan=plan: read_inputs(plan))
        grew = peak.stop() - before
        _, cached = _timed(lambda plan=plan: read_inputs(plan))
        tokens = inputs.train.mean_tokens * number
        trainer, started = _timed(lambda plan=plan, inputs=inputs: _trainer(plan, inputs, ranks))
        before, peak = anonymous(), Peak()
        for _ in range(STEPS):
            trainer.train_step()
        held = peak.stop() - before
        lines = trainer.recorder.metrics[1:]  # type: ignore[attr-defined]
        step = statistics.median(line["time/step"] / line["update/tokens"] for line in lines)
        if number != WARM:
            yield {"rows": number, "tokens": round(tokens), "prepare_us": 1e6 * first / tokens, "cached_s": cached,
                   "cached_us": 1e6 * cached / tokens, "prepare_mib": grew, "start_s": started, "step_us": 1e6 * step,
                   "step_mib": held, **_on_gpu(lines)}
        _end(trainer)


def completions(lengths: Sequence[int], model: str, shape: str, folder: Path, ranks: Ranks) -> Iterator[dict[str, Any]]:
    """GRPO with a KL and hf, where no completion ends before its length: microseconds a token by phase.

    Of prepare and update all tokens count, the prompts' too. Attention's part is that of a profile of one row of the
    length, forward and backward, and of decoding steps in the middle of it; by its operations, at the mean over a row.
    """
    _, prompts, group = BATCHES[shape]
    side_by_side = {"rollout.options.batch_tokens": prompts * group * 2 * max(lengths)}  # else long ones take turns
    job = Job("grpo", shape, prompts, 64, group, 1, settings=side_by_side)
    write_rows(folder / "rows.jsonl", job)
    for i, length in enumerate((min(lengths), *lengths)):  # once for nothing
        plan = resolve(Registry.discover(), spec_of(replace(job, tokens=length), model, folder))
        trainer = _trainer(plan, read_inputs(plan), ranks)
        backend = trainer.source._backend  # type: ignore[attr-defined]
        backend._context = replace(backend._context, stop_token_ids=(NO_TOKEN,))
        trainer._sync()
        trainer.train_step()
        if i:
            sampled = prompts * group
            yield {"completion": length, **_by_phase(trainer, sampled, length), **_shares(trainer, sampled, length)}
        _end(trainer)


def plugins(numbers: Sequence[int], runs: int = 5) -> Iterator[dict[str, Any]]:
    """CPU milliseconds a plugin, of finding so many packages with one each and of ``rlx plugins``.

    It is what each costs after the first, with which pydantic is loaded.
    """
    alone: tuple[float, float] | None = None
    for number in (1, *numbers):
        with installed(number) as env:
            found = [_found(env, number) for _ in range(runs + 1)][1:]  # the first compiles
        discover, listing = (min(times) for times in zip(*found, strict=True))
        alone = alone or (discover, listing)
        each = {name: 1e3 * (now - then) / (number - 1) for name, now, then in zip(
            ("discover_ms", "list_ms"), (discover, listing), alone, strict=True)} if number > 1 else {}
        yield {"packages": number, "discover_s": discover, "list_s": listing, **each}


def _found(env: dict[str, str], number: int) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", DISCOVER], env=env, capture_output=True, text=True, check=True)
    seconds, there = done.stdout.split()
    assert there == "True"
    return float(seconds), cpu_seconds([sys.executable, "-m", "rlx", "plugins"], env, f"bench_{number - 1}")


def _trainer(plan: Plan, inputs: Inputs, ranks: Ranks) -> Trainer:
    return build(with_passes(plan, inputs, ranks.world), inputs, ranks, _Recorder())


class _Recorder(Silent):
    """Phases are nothing to it."""

    def phase(self, name: str) -> None:
        """One begins."""


def _by_phase(trainer: Trainer, sampled: int, length: int) -> dict[str, Any]:
    line = trainer.recorder.metrics[-1]  # type: ignore[attr-defined]
    assert line["length/mean"] == length, line["length/mean"]
    trained, named = line["update/tokens"], ("rollout", "prepare", "update")
    rest = line["time/step"] - sum(line[f"time/{name}"] for name in named)
    return {"tokens": trained, "step_s": line["time/step"], "rollout_us": 1e6 * line["time/rollout"] / sampled / length,
            **{f"{name}_us": 1e6 * line[f"time/{name}"] / trained for name in named[1:]},
            "rest_us": 1e6 * rest / sampled / length, **_on_gpu([line])}


def _shares(trainer: Trainer, sampled: int, length: int) -> dict[str, float]:
    """Attention's part of a trained and of a sampled token."""
    module, config = trainer.engines["policy"].module, trainer.engines["policy"].module.model.config
    weights = sum(weight.numel() for name, weight in module.named_parameters()
                  if config.tie_word_embeddings or "embed_tokens" not in name)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * size * length / 2
    tokens = torch.randint(100, 1000, (sampled, length), device=trainer.engines["policy"].device)
    return {"train_attention": _profiled(lambda: _train(module, tokens[:1])),
            "train_attention_flops": attention / (attention + 2 * weights),
            "decode_attention": _decoding(module.model, tokens[:, :length // 2])}


def _train(module: Any, tokens: torch.Tensor) -> None:
    logprobs, _ = module(tokens, torch.ones_like(tokens, dtype=torch.bool), entropy=False)
    torch.autograd.grad(logprobs.sum(), list(module.parameters()), allow_unused=True)


@torch.no_grad()
def _decoding(model: Any, tokens: torch.Tensor) -> float:
    """Attention's part of some steps after so many tokens."""
    mask = torch.ones(tokens.shape[0], tokens.shape[1] + 4, dtype=torch.long, device=tokens.device)
    mask[0, 0] = 0
    cache, width = None, tokens.shape[1]
    for start in range(0, width, 512):
        part = tokens[:, start:start + 512]
        cache = model(part, attention_mask=mask[:, :start + part.shape[1]], past_key_values=cache, use_cache=True,
                      logits_to_keep=1).past_key_values

    def steps() -> None:
        for i in range(1, 5):
            model(tokens[:, :1], attention_mask=mask[:, :width + i], past_key_values=cache, use_cache=True)

    with _keys_in_place():
        return _profiled(steps)


def _profiled(work: Callable[[], None]) -> float:
    """Attention's part of the time, of kernels on a GPU."""
    gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]) as profiler:
        work()
        if gpu:
            torch.cuda.synchronize()
    events = [event for event in profiler.key_averages() if event.device_type == DeviceType.CPU]  # not kernels again
    of = "device" if gpu else "cpu"
    mine = sum(getattr(event, f"{of}_time_total") for event in events
               if re.match("aten::_scaled_dot_product_", event.key))
    return float(mine / sum(getattr(event, f"self_{of}_time_total") for event in events))


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    found = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found, time.perf_counter() - begin


def _on_gpu(lines: Sequence[Any]) -> dict[str, float]:
    return {"gpu_gib": max(line["memory/peak_gb"] for line in lines)} if "memory/peak_gb" in lines[0] else {}


def _end(trainer: Trainer) -> None:
    trainer.source.close()
    for engine in trainer.engines.values():
        engine._deepspeed.destroy()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
