"""The same run twice, in processes of their own: metrics, weights and moments compared bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.engine import write_pairs

SAMPLED = ["--rollout", "hf", "--reward", "polite_length", "--set", "rollout.max_completion=64"]
CLOCK = ("time/", "speed/", "memory/")


def compare(model: str, algos: list[str], settings: list[str]) -> Iterator[dict[str, Any]]:
    """Each algorithm with and without the setting."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.jsonl"
        write_pairs(data, 64, 200)
        for algo in algos:
            for wanted in (True, False):
                runs = [_run(Path(folder), f"{algo}-{wanted}-{n}", algo, model, data, wanted, settings) for n in (0, 1)]
                if any("failed" in run for run in runs):
                    yield {"algo": algo, "deterministic": wanted, **runs[0]}
                    continue
                apart = sorted(name for name in runs[0]["metrics"][-1]
                               if runs[0]["metrics"][-1][name] != runs[1]["metrics"][-1][name])
                yield {"algo": algo, "deterministic": wanted, "same_files": runs[0]["files"] == runs[1]["files"],
                       "same_metrics": runs[0]["metrics"] == runs[1]["metrics"], "metrics_apart": apart,
                       "step_s": [round(run["step_s"], 3) for run in runs]}


def _run(folder: Path, name: str, algo: str, model: str, data: Path, wanted: bool,
         settings: list[str]) -> dict[str, Any]:
    own = ["train.steps=4", "train.batch_size=16", "train.minibatches=2", f"run.dir={folder}", f"data.cache={folder}",
           "run.sample_every=null" if algo in ("ppo", "grpo") else "data.eval=0",
           f"engine.deterministic={str(wanted).lower()}"]
    sets = [part for setting in (*own, *settings) for part in ("--set", setting)]
    command = ["--algo", algo, "--model", model, "--data", str(data), "--name", name,
               *(SAMPLED if algo in ("ppo", "grpo") else []), *sets]
    done = subprocess.run([sys.executable, "-m", "rlx", "train", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip()[-600:]}
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    files = sorted((folder / name / "checkpoints").rglob("*.safetensors"))
    return {"files": {str(file.relative_to(folder / name)): sha256(file.read_bytes()).digest() for file in files},
            "metrics": [{k: v for k, v in line.items() if not k.startswith(CLOCK)} for line in lines],
            "step_s": lines[-1]["time/step"]}
