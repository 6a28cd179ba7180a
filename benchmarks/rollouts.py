"""Rollout backends on the same prompts in one run, and whole trainings with each of them."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import WORDS
from rlx.logs import library_log
from rlx.models import load_causal_lm, pick_device, pick_dtype
from rlx.ranks import start_distributed
from rlx.registry import Registry
from rlx_sdk import Request, RolloutContext, Sampling

QWEN_HALF_B = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
               "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
               "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None}
"""Qwen2.5-0.5B's shape."""


def write_half_b(folder: Path, tokenizer_of: str) -> str:
    """A model of Qwen2.5-0.5B's shape with random weights, and another's tokenizer."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**QWEN_HALF_B)).to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_of).save_pretrained(folder)
    return str(folder)


def measure(model: str, names: list[str], prompts: int, tokens: int, options: dict[str, Any],
            group: int = 1) -> Iterator[dict[str, Any]]:
    """Each backend: seconds of a sync, tokens a second of three generations; of vllm, also the bare engine's."""
    start_distributed()
    device = pick_device()
    dtype = pick_dtype("auto", device)
    policy = load_causal_lm(model, dtype).to(device).eval()
    vocabulary = min(policy.config.vocab_size, 40_000)
    requests = [Request([(17 * i + 31 * j) % vocabulary for j in range(64 + i % 64)], Sampling(max_tokens=tokens),
                        group, i * group) for i in range(prompts)]
    context = RolloutContext(policy, model, (), 0, device, str(dtype).removeprefix("torch."), 128 + tokens)
    for name in names:
        entry = Registry.discover().get("rollout", name)
        backend = entry.call("build", entry.call("config")(**options.get(name, {})), context)
        yield {"backend": name, **_measured(backend, policy, requests)}
        backend.close()


def _measured(backend: Any, policy: Any, requests: list[Request]) -> dict[str, Any]:
    def sync() -> None:
        backend.sync(iter(policy.named_parameters()), 0)

    def generate() -> int:
        return sum(len(g.tokens) for _, group in backend.generate(requests) for g in group)

    found: dict[str, Any] = {"start_s": round(_seconds(sync), 2),
                             "sync_s": [round(_seconds(sync), 4) for _ in range(5)],
                             "tokens_per_s": [_speed(generate) for _ in range(3)]}
    if hasattr(getattr(backend, "_engine", None), "_llm"):
        found |= _bare(backend, requests)
    if torch.cuda.is_available():
        held = torch.cuda.mem_get_info()[0]
        found["release_s"] = round(_seconds(backend.release), 4)
        found["released_gib"] = round((torch.cuda.mem_get_info()[0] - held) / 2**30, 2)
    return found


def _bare(backend: Any, requests: list[Request]) -> dict[str, Any]:
    """The same engine, asked as its own manual says, without what rlx has put into it and without seeds."""
    from rlx_plugins.vllm_engine import sampling_params

    llm, settings = backend._engine._llm, [sampling_params(r, []) for r in requests]
    llm.collective_rpc(_undone)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    for name in ("allocate_slots", "cache_blocks"):
        vars(scheduler.kv_cache_manager).pop(name, None)
    for name in ("schedule", "update_from_output"):
        vars(scheduler).pop(name, None)
    for chosen in settings:
        chosen.seed, chosen.logprobs = None, 0
    prompts = [{"prompt_token_ids": list(r.tokens)} for r in requests]

    def generate() -> int:
        return sum(len(one.token_ids) for out in llm.generate(prompts, settings, use_tqdm=False) for one in out.outputs)

    speeds = []
    for _ in range(2):
        backend._engine.forget_prompts()
        speeds.append(_speed(generate))
    return {"bare_tokens_per_s": speeds}


def _undone(worker: Any) -> None:
    """Give vLLM its own sampler again."""
    step = getattr(worker.model_runner.sampler, "topk_topp_sampler", None)
    if step is not None and hasattr(step.forward, "_plain"):
        step.forward = step.forward._plain


def _seconds(what: Callable[[], Any]) -> float:
    _wait()
    begin = time.perf_counter()
    what()
    _wait()
    return time.perf_counter() - begin


def _speed(count: Callable[[], int]) -> int:
    found: list[int] = []
    seconds = _seconds(lambda: found.append(count()))
    return round(found[0] / seconds)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def parity(model: str, backends: list[str], seeds: int, settings: list[str], options: dict[str, Any],
           at_once: int) -> dict[str, Any]:
    """PPO with each backend and several seeds: rewards of the last ten steps, and how far they are apart."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "prompts.jsonl"
        data.write_text("".join(json.dumps({"instruction": f"Tell me about the {WORDS[i % len(WORDS)]} and the "
                                                           f"{WORDS[i // len(WORDS) % len(WORDS)]}."}) + "\n"
                                for i in range(len(WORDS) ** 2)), encoding="utf-8")

        def train(name: str, seed: int) -> int:
            own = [f"run.seed={seed}", f"run.dir={folder}", "run.save_every=null",
                   f"rollout.options={json.dumps(options.get(name, {}))}"]
            command = ["--algo", "ppo", "--rollout", name, "--model", model, "--data", str(data), "--name",
                       f"{name}-{seed}", "--json", *(part for s in (*own, *settings) for part in ("--set", s))]
            done = subprocess.run([sys.executable, "-m", "rlx", "train", *command], check=False,
                                  stdout=subprocess.DEVNULL)
            shutil.rmtree(Path(folder) / f"{name}-{seed}" / "checkpoints", ignore_errors=True)  # all would fill a disk
            return done.returncode

        with ThreadPoolExecutor(at_once) as pool:
            begun = [pool.submit(train, name, seed) for name in backends for seed in range(seeds)]
        codes = [one.result() for one in begun]
        found: dict[str, Any] = {"exit_codes": codes, "settings": settings}
        for name in backends:
            runs = [[json.loads(line) for line in (Path(folder) / f"{name}-{seed}" / "metrics.jsonl").read_text()
                     .splitlines() if "reward/mean" in line] for seed in range(seeds)]
            ends = [statistics.fmean(line["reward/mean"] for line in run[-10:]) for run in runs]
            found[name] = {"first": [run[0]["reward/mean"] for run in runs], "last_ten": ends,
                           "mean": statistics.fmean(ends), "error": statistics.stdev(ends) / math.sqrt(seeds),
                           "step_s": statistics.median(line["time/step"] for run in runs for line in run[1:]),
                           "logprob_diff": [max(line.get("rollout/logprob_diff", 0) for line in run) for run in runs],
                           "sync_s": statistics.median(line["time/sync"] for run in runs for line in run[1:])}
        one, two = (found[name] for name in (backends * 2)[:2])
        error = math.hypot(one["error"], two["error"])
        return found | {"difference_in_standard_errors": abs(one["mean"] - two["mean"]) / error if error else math.nan}


def quiet() -> contextlib.AbstractContextManager[Any]:
    """Libraries talk into nothing."""
    return library_log(None)
