"""A step of rlx beside one of TRL's: the same model, batch, lengths and device, each side in a process of its own.

Speed does not depend on what the weights are, so they are random. TRL 1.16 has no PPOTrainer any more; 1.12 has, and is
looked for in the folder that the environment variable ``TRL_PPO`` names.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import QWEN_7B, WORDS, Silent
from benchmarks.rollouts import QWEN_HALF_B
from rlx.build import build
from rlx.inputs import read_inputs
from rlx.logs import library_log
from rlx.plan import resolve
from rlx.preflight import with_passes
from rlx.ranks import start_distributed
from rlx.registry import Registry

LLAMA_6M = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 8,
            "num_key_value_heads": 4, "max_position_embeddings": 1024, "tie_word_embeddings": True}


@dataclass(frozen=True)
class Job:
    """One comparison.

    Attributes:
        algo: ``ppo``, ``grpo``, ``dpo`` or ``sft``.
        shape: of the model; ``7b:14`` is Qwen2.5-7B's with 14 of its 28 layers.
        batch: prompts, pairs or rows a step.
        tokens: new ones a completion, or of an answer.
        group: completions a prompt.
        steps: measured, after two of warm-up.
        rollout: backend.
        micro: rows a pass of TRL's.
        recompute: TRL recomputes activations, as it does by default.
        idle: of one more step of rlx's, how much of each phase the GPU had nothing to do.
        settings: of rlx's spec, beside the job's own.
    """

    algo: str
    shape: str
    batch: int
    tokens: int
    group: int = 1
    steps: int = 3
    rollout: str = "hf"
    micro: int = 16
    recompute: bool = False
    idle: bool = False
    settings: dict[str, Any] | None = None


def write_model(folder: Path, shape: str, tokenizer_of: str, **more: Any) -> str:
    """Random weights of a shape, and a tokenizer whose padding is a token of its own, as TRL needs it.

    What is given besides goes into the config.
    """
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of)
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(3)
    torch.manual_seed(0)
    if shape == "llama_6m":
        model: Any = LlamaForCausalLM(LlamaConfig(**{**LLAMA_6M, **more}, vocab_size=len(tokenizer),
                                                    bos_token_id=None))
    else:
        name, _, layers = shape.partition(":")
        given = {"half_b": QWEN_HALF_B, "7b": QWEN_7B}[name] | ({"num_hidden_layers": int(layers)} if layers else {})
        torch.set_default_dtype(torch.bfloat16)  # 7B in float32 would take 30 GB for a moment
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = Qwen2ForCausalLM(Qwen2Config(**{**given, **more}))
        torch.set_default_dtype(torch.float32)
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_rows(file: Path, job: Job) -> None:
    """Prompts of 40 to 80 words, or pairs and answers of about the job's tokens."""
    draw = random.Random(0)

    def text(least: int, most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))

    few, many = (job.tokens * 5 // 8, job.tokens) if job.algo in ("dpo", "sft") else (1, 1)
    with file.open("w", encoding="utf-8") as out:
        for _ in range(job.batch * (job.steps + 2)):
            row = {"prompt": text(40, 80) if job.algo != "dpo" else text(30, 50), "completion": text(few, many),
                   "chosen": text(few, many), "rejected": text(few, many)}
            out.write(json.dumps(row) + "\n")


class Watch:
    """Seconds and the GPU's memory by phase, in use and of tensors at the most; `figures` are medians over the steps.

    Torch keeps what a phase has allocated at its peak until somebody asks for it: at the phase's end all of it is seen.
    """

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self.memory: dict[str, int] = defaultdict(int)
        self.tensors: dict[str, int] = defaultdict(int)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.phase = "start"

    def begin(self, phase: str) -> None:
        """The phase before has ended."""
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            self.memory[self.phase] = max(self.memory[self.phase], total - free)
            self.tensors[self.phase] = max(self.tensors[self.phase], torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
        self.phase = phase

    @contextmanager
    def __call__(self, phase: str, timed: str | None = None) -> Iterator[None]:
        """A phase, which may lie within another."""
        before, begin = self.phase, time.perf_counter()
        self.begin(phase)
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.seconds[timed or phase].append(time.perf_counter() - begin)
            self.begin(before)

    def figures(self, **more: Any) -> dict[str, Any]:
        """All but the first two of each phase."""
        middle = {name: round(statistics.median(found[2:] or found), 4) for name, found in self.seconds.items()}
        gib = {"memory_gib": self.memory, "tensors_gib": self.tensors}
        return {"seconds": middle, **{name: {k: round(v / 2**30, 2) for k, v in found.items()}
                                      for name, found in gib.items()}, **more}


class Recorder(Silent):
    """Tells the watch which phase it is."""

    def __init__(self, watch: Watch) -> None:
        """Keep it."""
        super().__init__()
        self.watch, self.phases = watch, list[tuple[str, int]]()

    def phase(self, name: str) -> None:
        """What uses the optimizer's memory is one phase to the watch."""
        self.phases.append((name, time.time_ns()))
        self.watch.begin("generate" if name in ("rollout", "sync", "reward") else "train")


def spec_of(job: Job, model: str, folder: Path) -> dict[str, Any]:
    """The job as rlx takes it; its rows lie in the folder."""
    sampled = job.algo in ("ppo", "grpo")
    spec: dict[str, Any] = {
        "algo": {"name": job.algo}, "model": {"path": model},
        "data": {"path": str(folder / "rows.jsonl"), "cache": str(folder / "cache")},
        "run": {"dir": str(folder)}, "train": {"steps": job.steps + 2, "batch_size": job.batch}}
    if sampled:
        spec["algo"]["kl"], spec["run"]["sample_every"] = {"coef": 0.04}, None
        spec["rewards"] = [{"name": "polite_length"}]
        spec["rollout"] = {"name": job.rollout, "max_completion": job.tokens, "group_size": job.group}
    for path, value in (job.settings or {}).items():
        part = spec
        *way, last = path.split(".")
        for name in way:
            part = part.setdefault(name, {})
        part[last] = value
    return spec


def rlx_side(job: Job, model: str, folder: Path) -> dict[str, Any]:
    """Steps of rlx."""
    watch, steps = Watch(), job.steps + 2
    plan = resolve(Registry.discover(), spec_of(job, model, folder))
    inputs, ranks = read_inputs(plan), start_distributed()
    plan = with_passes(plan, inputs, ranks.world)
    recorder = Recorder(watch)
    trainer = build(plan, inputs, ranks, recorder)
    trainer._sync()
    for _ in range(steps):
        with watch("train", "step"):
            trainer.train_step()
    more = {"idle": idle(trainer.train_step, recorder)} if job.idle else {}
    trainer.source.close()
    lines = trainer.recorder.metrics[2:]  # type: ignore[attr-defined]
    parts = {key: round(statistics.median(line[key] for line in lines), 4)
             for key in lines[0] if key.startswith(("time/", "speed/", "update/tokens"))}
    weights = sum(p.numel() for p in trainer.engines["policy"].module.parameters())
    return watch.figures(phases=parts, weights=weights, **more)


def idle(step: Callable[[], Any], recorder: Recorder) -> dict[str, Any]:
    """Seconds of each phase of a step, by the profiler: all, and those in which nothing ran on the GPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        recorder.phases = [("outside", time.time_ns())]
        step()
        torch.cuda.synchronize()
        ends = [at for _, at in recorder.phases[1:]] + [time.time_ns()]
    work = sorted((event.start_ns(), event.end_ns()) for event in profiler.profiler.kineto_results.events()
                  if event.device_type() != torch.autograd.DeviceType.CPU)
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for (name, begin), end in zip(recorder.phases, ends, strict=True):
        busy, at = 0, begin
        for start, stop in work:
            start, stop = max(start, at), min(stop, end)
            if stop > start:
                busy, at = busy + stop - start, stop
        found[name][0] += end - begin
        found[name][1] += end - begin - busy
    return {name: {"seconds": round(all_of_it / 1e9, 4), "idle": round(without / 1e9, 4)}
            for name, (all_of_it, without) in found.items()}


def _callback(watch: Watch) -> Any:
    from transformers import TrainerCallback

    class Timed(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.step = watch("train", "step")
            self.step.__enter__()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.step.__exit__(None, None, None)

    return Timed()


def _args(job: Job, folder: Path, rows: int) -> dict[str, Any]:
    gpu = torch.cuda.is_available()
    return {"output_dir": str(folder / "trl"), "per_device_train_batch_size": min(rows, job.micro),
            "gradient_accumulation_steps": max(1, rows // job.micro), "learning_rate": 1e-6, "bf16": gpu,
            "gradient_checkpointing": job.recompute, "report_to": [], "save_strategy": "no", "logging_strategy": "no",
            "disable_tqdm": True, "use_cpu": not gpu}


def _loaded(model: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), AutoTokenizer.from_pretrained(model)


def trl_dpo(job: Job, model: str, folder: Path) -> dict[str, Any]:
    """DPOTrainer, which computes the reference in each step; ``precomputed`` once before, as rlx does."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    data = Dataset.from_list([{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in rows])
    watch, (policy, tokenizer) = Watch(), _loaded(model)
    args = DPOConfig(**_args(job, folder, job.batch), max_steps=job.steps + 2, max_length=None,
                     precompute_ref_log_probs=job.rollout == "precomputed")
    DPOTrainer(model=policy, args=args, train_dataset=data, processing_class=tokenizer,
               callbacks=[_callback(watch)]).train()
    return watch.figures()


def trl_grpo(job: Job, model: str, folder: Path) -> dict[str, Any]:
    """GRPOTrainer with HF generate, or vLLM in its process."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{"prompt": json.loads(line)["prompt"]} for line in lines]
    watch = Watch()

    class Timed(GRPOTrainer):  # type: ignore[misc]
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            with watch("generate"):
                return super()._generate(*args, **kwargs)

    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3,
            "vllm_max_model_length": 512} if job.rollout == "vllm" else {}
    policy, tokenizer = _loaded(model)
    args = GRPOConfig(**_args(job, folder, job.batch * job.group), max_steps=job.steps + 2, beta=0.04,
                      num_generations=job.group, max_completion_length=job.tokens, loss_type="grpo", **vllm)
    Timed(model=policy, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
          reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
          callbacks=[_callback(watch)]).train()
    return watch.figures()


def trl_ppo(job: Job, model: str, folder: Path) -> dict[str, Any]:
    """PPOTrainer of TRL 1.12; its reward must be a model, so it is one of a single layer."""
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForSequenceClassification
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    policy, tokenizer = _loaded(model)
    tokenizer.padding_side = "left"
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    rows = Dataset.from_list([{"input_ids": tokenizer(json.loads(line)["prompt"])["input_ids"]} for line in lines])
    config = AutoConfig.from_pretrained(model, num_labels=1)
    critic = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    reward, watch = AutoModelForSequenceClassification.from_config(config), Watch()
    given = _args(job, folder, job.batch)
    args = PPOConfig(**given, num_ppo_epochs=1, num_mini_batches=1, num_sample_generations=0,
                     total_episodes=job.batch * (job.steps + 2), response_length=job.tokens, stop_token=None,
                     local_rollout_forward_batch_size=job.micro * 2, kl_coef=0.04)
    ends: list[float] = []

    class Timed(PPOTrainer):  # type: ignore[misc]
        def log(self, *args: Any, **kwargs: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    trainer = Timed(args=args, processing_class=tokenizer, model=policy, ref_model=_loaded(model)[0],
                    reward_model=reward, value_model=critic, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    watch.seconds["step"] = [end - begin for begin, end in pairwise(ends)]
    return watch.figures()


def peak_flops() -> float:
    """Of a large product in bfloat16, as this card does it."""
    one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(5):
        one @ one
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(50):
        one @ one
    torch.cuda.synchronize()
    return 50 * 2 * 8192**3 / (time.perf_counter() - begin)


SIDES: dict[str, Callable[[Job, str, Path], dict[str, Any]]] = {
    "rlx": rlx_side, "trl_dpo": trl_dpo, "trl_grpo": trl_grpo, "trl_ppo": trl_ppo}


def compare(job: Job, tokenizer_of: str, peer: bool) -> dict[str, Any]:
    """What each side measured, and tokens a second of rlx over those of TRL."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_model(folder / "model", job.shape, tokenizer_of)
        write_rows(folder / "rows.jsonl", job)
        found = {"rlx": _run("rlx", job, model, folder)}
        if peer:
            found["trl"] = _run(f"trl_{job.algo}", job, model, folder)
            if job.algo == "dpo":
                found["trl_precomputed"] = _run("trl_dpo", replace(job, rollout="precomputed"), model, folder)
    speedup = {f"over_{side}": round(found[side]["seconds"]["step"] / found["rlx"]["seconds"]["step"], 2)
               for side in found if side != "rlx" and "seconds" in found[side] and "seconds" in found["rlx"]}
    return {"job": asdict(job), **speedup, **found}


def _run(side: str, job: Job, model: str, folder: Path) -> dict[str, Any]:
    out, env = folder / f"{side}.json", {**os.environ, "HF_HUB_OFFLINE": "1"}
    if side == "trl_ppo" and "TRL_PPO" in env:
        env["PYTHONPATH"] = os.pathsep.join([env["TRL_PPO"], env.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-m", "benchmarks.speed", side, json.dumps(asdict(job)), model, str(folder),
                           str(out)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not out.exists():
        return {"failed": done.stdout[-3000:]}
    measured: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    if side == "rlx" and torch.cuda.is_available():
        rate = measured["phases"]["update/tokens"] / measured["phases"]["time/update"]
        measured["mfu"] = round(6 * measured["weights"] * rate / peak_flops(), 3)
    return measured


if __name__ == "__main__":
    with library_log(None):
        result = SIDES[sys.argv[1]](Job(**json.loads(sys.argv[2])), sys.argv[3], Path(sys.argv[4]))
    Path(sys.argv[5]).write_text(json.dumps(result), encoding="utf-8")
