"""One job on rlx and on TRL: the same model, rows, order and optimizer, each side in a process of its own.

TRL is no dependency of rlx: ``pip install --no-deps trl==1.16.*`` beside it.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import rlx
from benchmarks.engine import Silent
from rlx.batching import pad_sequences
from rlx.build import build
from rlx.inputs import read_inputs
from rlx.logs import library_log
from rlx.plan import resolve
from rlx.ranks import start_distributed
from rlx.registry import Registry
from rlx.sources import Collected, Source, Timer
from rlx_sdk import Rollouts

QUICK = Path(rlx.__file__).parent / "quickstart"
OPTIMIZER = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "grad_clip": 1.0}
BETA, KL, GROUP, COMPLETION = 0.1, 0.04, 4, 24


def compare(algo: str, steps: int, batch: int) -> dict[str, Any]:
    """What both sides measured, and how far they are apart."""
    with tempfile.TemporaryDirectory() as folder:
        sides = ["trl", "rlx"] if algo == "grpo" else ["rows", "trl", "trl_precomputed", "rlx"]
        found = {side: _run(algo, side, steps, batch, Path(folder)) for side in sides}
    ours, theirs = found["rlx"], found["trl"]
    apart = {key: max(abs(a - b) for a, b in zip(ours[key], theirs[key], strict=True))
             for key in ("loss", "advantages") if key in ours}
    return {"job": {"algo": algo, "steps": steps, "batch": batch, "dtype": "float32", **OPTIMIZER}, "apart": apart,
            "loss_fell": theirs["loss"][0] - theirs["loss"][-1], **found}


def _run(algo: str, side: str, steps: int, batch: int, folder: Path) -> dict[str, Any]:
    out = folder / f"{side}.json"
    command = [sys.executable, "-m", "benchmarks.peers", algo, side, str(steps), str(batch), str(folder), str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


class Meter:
    """Loss of each update, seconds and CPU seconds of each step, and what memory grew by at most from the beginning."""

    def __init__(self) -> None:
        """Start empty."""
        self.loss: list[float] = []
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    def start(self) -> None:
        """Training begins."""
        self._before = _memory()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forget the peak so far

    def begin(self) -> None:
        """A step begins."""
        self._at, self._cpu_at = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """A step is done."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self._at)
        self.cpu.append(time.process_time() - self._cpu_at)

    def figures(self, **more: Any) -> dict[str, Any]:
        """All of it; the first step, which warms up, is not timed."""
        peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else _memory("VmHWM")
        return {"loss": self.loss, "seconds_a_step": statistics.median(self.seconds[1:] or self.seconds),
                "cpu_seconds_a_step": statistics.median(self.cpu[1:] or self.cpu), "threads": torch.get_num_threads(),
                "peak_mib": peak, "grew_mib": peak - self._before, **more}


def _memory(line: str = "VmRSS") -> float:
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated() / 2**20
    status = dict(entry.split(":", 1) for entry in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return int(status[line].split()[0]) / 2**10 if line in status else resource.getrusage(0).ru_maxrss / 2**10


def _trainer(algo: str, steps: int, batch: int, folder: Path, **more: Any) -> Any:
    """Rlx's trainer, and the rows that it reads."""
    plan = resolve(Registry.discover(), {
        "algo": {"name": algo, **more.pop("options", {})}, "model": {"path": str(QUICK / "rlx-tiny")},
        "data": {"path": str(QUICK / "prompts.parquet"), "cache": str(folder / "cache"), "max_prompt": 96},
        "engine": {"dtype": "float32"}, **more,
        "train": {"steps": steps, "batch_size": batch, "micro_tokens": 1 << 20, "optim": {"policy": OPTIMIZER},
                  **more.get("train", {})}})
    inputs = read_inputs(plan)
    return build(plan, inputs, start_distributed(), Silent()), inputs


def rlx_dpo(steps: int, batch: int, folder: Path) -> dict[str, Any]:
    """Steps of rlx; the reference's logprobs are computed before, once a row."""
    trainer, _ = _trainer("dpo", steps, batch, folder, options={"beta": BETA})
    return _measured(trainer, steps)


def _measured(trainer: Any, steps: int) -> dict[str, Any]:
    meter = Meter()
    meter.start()
    for _ in range(steps):
        meter.begin()
        trainer.train_step()
        meter.end()
    meter.loss = [metrics["loss/policy"] for metrics in trainer.recorder.metrics]
    return meter.figures()


def dpo_rows(steps: int, batch: int, folder: Path) -> dict[str, Any]:
    """The rows that rlx reads, in its order, as token ids; kept for TRL."""
    trainer, inputs = _trainer("dpo", steps, batch, folder, options={"beta": BETA})
    places = [place for _ in range(steps) for place in trainer.source._cursor.next()]
    rows = [{f"{name}_ids": inputs.train.ids(row, name) for name in ("prompt", "chosen", "rejected")}
            for _, row in places]
    (folder / "pairs.json").write_text(json.dumps(rows), encoding="utf-8")
    return {"pairs": len(rows), "tokens": sum(len(ids) for row in rows for ids in row.values())}


def _callback(meter: Meter) -> Any:
    from transformers import TrainerCallback

    class Timed(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            meter.start()

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            meter.begin()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            meter.end()

    return Timed()


def _trl_args(folder: Path, steps: int, batch: int) -> dict[str, Any]:
    return {"output_dir": str(folder / "trl"), "max_steps": steps, "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": 1, "learning_rate": OPTIMIZER["lr"], "lr_scheduler_type": "constant",
            "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "max_grad_norm": 1.0, "weight_decay": 0.0,
            "bf16": False, "gradient_checkpointing": False, "report_to": [], "save_strategy": "no",
            "logging_strategy": "no", "disable_tqdm": True, "use_cpu": not torch.cuda.is_available()}


def _loaded() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = str(QUICK / "rlx-tiny")
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), AutoTokenizer.from_pretrained(path)


def trl_dpo(steps: int, batch: int, folder: Path, precompute: bool = False) -> dict[str, Any]:
    """Steps of TRL's DPOTrainer on the same token ids; the reference runs in each step, or before."""
    from datasets import Dataset
    from torch.utils.data import SequentialSampler
    from trl import DPOConfig, DPOTrainer

    meter, rows = Meter(), Dataset.from_list(json.loads((folder / "pairs.json").read_text(encoding="utf-8")))

    class Given(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset

        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return SequentialSampler(rows)

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            found = super().compute_loss(*args, **kwargs)
            meter.loss.append(float(found[0] if isinstance(found, tuple) else found))
            return found

    model, tokenizer = _loaded()
    args = DPOConfig(**_trl_args(folder, steps, batch), beta=BETA, max_length=None, precompute_ref_log_probs=precompute)
    trainer = Given(model=model, args=args, train_dataset=rows, processing_class=tokenizer,
                    callbacks=[_callback(meter)])
    trainer.train()
    return meter.figures()


def trl_grpo(steps: int, batch: int, folder: Path) -> dict[str, Any]:
    """TRL's GRPOTrainer with HF generation, two updates a batch; what it sampled is kept for the other side."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    meter, kept, advantages = Meter(), list[dict[str, Any]](), list[float]()
    rows = [{"prompt": f"{i}. Say hello politely."} for i in range(batch * steps)]

    def polite(completions: list[str], **_: Any) -> list[float]:
        return [len(set(text)) / 10 + text.count("e") for text in completions]

    class Keeps(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            texts = self.processing_class.batch_decode(out["completion_ids"], skip_special_tokens=True)
            kept.append({"prompts": _unpadded(out["prompt_ids"], out["prompt_mask"]),
                         "completions": _unpadded(out["completion_ids"], out["completion_mask"]),
                         "rewards": polite(texts)})
            advantages.extend(out["advantages"].tolist())
            return out

        def _compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super()._compute_loss(*args, **kwargs)
            meter.loss.append(float(loss))
            return loss

    model, tokenizer = _loaded()
    args = GRPOConfig(**_trl_args(folder, 2 * steps, batch * GROUP), beta=KL, loss_type="grpo", num_iterations=2,
                      num_generations=GROUP, max_completion_length=COMPLETION, temperature=1.0, epsilon=0.2,
                      scale_rewards="group", use_bias_correction_kl=False, top_k=0, seed=1)
    Keeps(model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
          reward_funcs=polite, callbacks=[_callback(meter)]).train()
    (folder / "rollouts.json").write_text(json.dumps(kept), encoding="utf-8")
    return meter.figures(advantages=advantages)


def _unpadded(ids: Any, mask: Any) -> list[list[int]]:
    return [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]


class Given(Source):
    """A source that gives kept rollouts."""

    def __init__(self, kept: list[dict[str, Any]], trainer: Any) -> None:
        """Give them one batch a step."""
        self._left, self._trainer = iter(kept), trainer

    @torch.no_grad()
    def collect(self, phase: Timer) -> Collected:
        """The next batch, with the policy's logprobs as the sampler's."""
        one = next(self._left)
        seqs = pad_sequences(one["prompts"], one["completions"], 0)
        seqs = seqs.with_(rollout_logprobs=self._trainer.context.policy.logprobs(seqs))
        n = len(seqs)
        return Collected(Rollouts(seqs, torch.tensor(one["rewards"]), torch.ones(n, dtype=torch.bool),
                                  torch.arange(n) // GROUP, torch.zeros(n, dtype=torch.bool)))

    def evaluate(self, phase: Timer) -> None:
        """There is nothing held out."""


def rlx_grpo(steps: int, batch: int, folder: Path) -> dict[str, Any]:
    """Rlx on what TRL has sampled."""
    kept = json.loads((folder / "rollouts.json").read_text(encoding="utf-8"))
    trainer, _ = _trainer("grpo", steps, batch, folder, options={"kl": {"coef": KL}, "std_eps": 1e-4},
                          rewards=[{"name": "polite_length"}], train={"update_epochs": 2},
                          rollout={"max_completion": COMPLETION, "group_size": GROUP})
    trainer.source.close()
    trainer.source = Given(kept, trainer)
    losses, advantages = list[float](), list[float]()
    prepare, loss = trainer.algorithm.prepare, trainer.algorithm.loss

    def prepared(data: Any, ctx: Any) -> Any:
        made = prepare(data, ctx)
        seqs = made.sequences["completion"]
        advantages.extend(seqs.per_token["advantages"][torch.arange(len(seqs)), seqs.mask.int().argmax(1)].tolist())
        return made

    def measured(role: Any, rows: Any, ctx: Any) -> Any:
        found = loss(role, rows, ctx)
        losses.append(float((found.rows * rows.weight[role]).sum() / rows.weight[role].sum()))
        return found

    trainer.algorithm.prepare, trainer.algorithm.loss = prepared, measured
    return {**_measured(trainer, steps), "loss": losses, "advantages": advantages}


SIDES: dict[tuple[str, str], Callable[[int, int, Path], dict[str, Any]]] = {
    ("dpo", "rows"): dpo_rows, ("dpo", "rlx"): rlx_dpo, ("dpo", "trl"): trl_dpo,
    ("grpo", "trl"): trl_grpo, ("grpo", "rlx"): rlx_grpo,
    ("dpo", "trl_precomputed"): lambda steps, batch, folder: trl_dpo(steps, batch, folder, precompute=True),
}


def main(algo: str, side: str, steps: str, batch: str, folder: str, out: str) -> None:
    """One side of one job."""
    with library_log(None):
        found = SIDES[algo, side](int(steps), int(batch), Path(folder))
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
