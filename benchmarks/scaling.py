"""One job on one rank and on several, each started by ``rlx train --gpus N``: same numbers, how much faster, how big.

The batch is the same for every number of ranks, so losses and metrics must be, too: to rounding in float32, which also
keeps what is sampled the same, and to the noise of other matrix shapes in bfloat16. That noise is measured by the run
``noise``: one rank again, in passes of half the tokens. What sampling takes hardly depends on the rows while there are
few of them: how speed grows with the GPUs is seen with ``grow``, where the batch does too, and only speed is compared.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.speed import Job, spec_of, write_rows
from rlx.layers import to_yaml

CLOCKS = ("time/", "speed/", "memory/", "lr/")
"""Metrics that are not the same twice, or that the spec says."""
HEAD = ("algo", "ZeRO", "ranks", "step s", "update", "rollout", "GiB", "loss apart", "metrics apart")
WARMUP = 2


def measure(job: Job, model: str, algos: Sequence[str], stages: Sequence[int], ranks: Sequence[int], noise: bool,
            grow: bool, known: Sequence[Mapping[str, Any]] = ()) -> Iterator[dict[str, Any]]:
    """Every algorithm in every ZeRO stage on every number of ranks; of what is known already, nothing again."""
    done = {(one["algo"], one["zero_stage"], one["ranks"], one["noise"]) for one in known}
    for algo in algos:
        for stage in stages:
            runs = [(number, False) for number in ranks] + ([(ranks[0], True)] if noise else [])
            for number, apart in runs:
                if (algo, stage, number, apart) in done:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    batch = job.batch * number if grow else job.batch
                    found = _run(replace(job, algo=algo, batch=batch), model, stage, number, apart, Path(folder))
                yield {"algo": algo, "zero_stage": stage, "ranks": number, "noise": apart, "batch": batch, **found}


def _run(job: Job, model: str, stage: int, ranks: int, noise: bool, folder: Path) -> dict[str, Any]:
    """One run by the command; its metrics by step, and medians of seconds and speeds after the warm-up."""
    write_rows(folder / "rows.jsonl", job)
    spec = spec_of(job, model, folder)
    spec["run"] |= {"name": "run", "save_every": None}
    spec.setdefault("engine", {})["zero_stage"] = stage
    if noise:
        spec["train"]["micro_tokens"] = spec["train"].get("micro_tokens", 8192) // 2
    spec["train"]["steps"] += 1  # it is ended in its last step: a checkpoint of 7B alone would take minutes
    (folder / "spec.yaml").write_text(to_yaml(spec), encoding="utf-8")
    command = [sys.executable, "-m", "rlx", "train", str(folder / "spec.yaml"), "--gpus", str(ranks)]
    begin, log = time.monotonic(), folder / "log"
    with log.open("wb") as stream:
        process = psutil.Popen(command, stdout=stream, stderr=stream, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        lines, held = _follow(process, folder / "run" / "metrics.jsonl", job.steps + WARMUP)
    seconds = round(time.monotonic() - begin, 1)
    if len(lines) < job.steps + WARMUP:
        return {"failed": log.read_text(encoding="utf-8", errors="replace")[-2000:], "seconds_in_all": seconds}
    timed = {key: round(statistics.median(line[key] for line in lines[WARMUP:]), 4)
             for key in lines[-1] if key.startswith(("time/", "speed/"))}
    on_gpu = [line["memory/peak_gb"] for line in lines if "memory/peak_gb" in line]
    steps = [{key: value for key, value in line.items() if not key.startswith(CLOCKS)} for line in lines]
    return {"median": timed, "memory_gib": round(max(on_gpu, default=held / 2**30), 3), "seconds_in_all": seconds,
            "steps": steps}


def _follow(process: psutil.Popen, metrics: Path, steps: int) -> tuple[list[dict[str, Any]], int]:
    """Metrics of so many steps, after which it is ended; bytes of the largest of its processes, at the most."""
    most, lines = 0, list[dict[str, Any]]()
    while process.poll() is None and len(lines) < steps:
        time.sleep(0.2)
        with suppress(psutil.Error):
            most = max([most, *(one.memory_info().rss for one in _tree(process))])
        text = metrics.read_text(encoding="utf-8") if metrics.is_file() else ""
        lines = [json.loads(line) for line in text.splitlines() if "time/step" in line and line.endswith("}")]
    for one in _tree(process):
        with suppress(psutil.Error):
            one.kill()
    process.wait()
    return lines[:steps], most


def _tree(process: psutil.Popen) -> list[psutil.Process]:
    try:
        return [*process.children(recursive=True), process]
    except psutil.Error:
        return []


def compare(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each run beside the first of its algorithm and stage: speeds over its speeds, and how far metrics are apart.

    Of two numbers a and b that is ``|a − b| / max(1, |a|, |b|)``, at the most over all steps.
    """
    found = []
    for one in runs:
        first = next(run for run in runs if (run["algo"], run["zero_stage"]) == (one["algo"], one["zero_stage"]))
        line: dict[str, Any] = {key: one[key] for key in ("algo", "zero_stage", "ranks", "noise")}
        if "failed" in one:
            found.append({**line, "failed": one["failed"].strip().splitlines()[-1:]})
            continue
        line |= {"step_s": one["median"]["time/step"], "memory_gib": one["memory_gib"]}
        if one is not first and "failed" not in first:
            ours, theirs = one["median"], first["median"]
            line |= {name: round(ours[key] / theirs[key], 3) for name, key in (
                ("update", "speed/trained_tokens_per_s"), ("rollout", "speed/generated_tokens_per_s"))
                if key in ours and key in theirs}
            if one["batch"] == first["batch"]:
                apart = _apart(first["steps"], one["steps"])
                line["loss_apart"] = max(value for name, value in apart.items() if name.startswith("loss/"))
                line["most_apart"] = max(apart.items(), key=lambda item: item[1])
                line["apart"] = apart
        found.append(line)
    return found


def _apart(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    assert len(one) == len(other)
    found: dict[str, float] = {}
    for a, b in zip(one, other, strict=True):
        for name in a.keys() | b.keys():
            x, y = a.get(name), b.get(name)
            away = float("inf") if x is None or y is None else abs(x - y) / max(1.0, abs(x), abs(y))
            found[name] = max(found.get(name, 0.0), 0.0 if x is y is None else away)
    return found


def table(compared: Sequence[Mapping[str, Any]]) -> str:
    """For people: of the first run of each job what it took, of the others also how they differ from it."""
    lines: list[Sequence[str]] = [HEAD]
    for one in compared:
        row = [one["algo"], str(one["zero_stage"]), f"{one['ranks']}{' noise' if one['noise'] else ''}"]
        if "failed" in one:
            lines.append([*row, "failed: " + " ".join(one["failed"])])
            continue
        row += [f"{one['step_s']:.3f}", *(f"{one[key]:.2f} x" if key in one else "" for key in ("update", "rollout"))]
        row.append(f"{one['memory_gib']:.2f}")
        if "apart" in one:
            row += [f"{one['loss_apart']:.1e}", f"{one['most_apart'][1]:.1e} ({one['most_apart'][0]})"]
        lines.append(row)
    return "\n".join("  ".join(f"{cell:<10}" for cell in line).rstrip() for line in lines)


def model_of(shape: str, given: str, keep: Path) -> str:
    """The folder that is given, or random weights of a shape with its tokenizer, made once in a folder that is kept."""
    from benchmarks.speed import write_model

    if not shape:
        return given
    folder = keep / shape
    if not (folder / "config.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        write_model(folder, shape, given)
    return str(folder)
