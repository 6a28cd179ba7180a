"""Speed: ``python -m benchmarks ppo`` is a fixed PPO job by phase, ``engine`` runs algorithms by ZeRO stage.

``memory`` sets the estimate of `rlx check` beside the measured peak; ``determinism`` compares two runs bit for bit.

``dpo --peer trl`` and ``grpo --peer trl`` set rlx beside TRL on one job.
``scaling`` runs one job on one rank and on several, by ZeRO stage; ``paper`` calculates what larger machines would do.
``rewards`` measures listing plugins, rules and services, ``data`` the preparation of files; ``growth`` what a token
costs with more rows and longer completions, and a plugin with more of them.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

import rlx

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

JOB: dict[str, Any] = {
    "algo": "ppo", "reward": "polite_length",
    "rollout": {"max_completion": 64},
    "train": {"batch_size": 32, "minibatches": 2, "update_epochs": 2, "micro_tokens": 4096},
}


@app.callback()
def _benchmarks() -> None:
    """Speed of rlx."""


@app.command()
def ppo(steps: Annotated[int, typer.Option(help="Steps measured, after one of warm-up.")] = 5,
        out: Annotated[Path | None, typer.Option("--json", help="Also write them to this file.")] = None) -> None:
    """Seconds a step, tokens a second, peak memory, time by phase."""
    with tempfile.TemporaryDirectory() as folder:
        job = {**JOB, "train": {**JOB["train"], "steps": steps + 1}}
        result = rlx.train(**job, run={"dir": folder}, quiet=True)
        lines = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if "time/step" in line][1:]
    middle = {key: statistics.median(line[key] for line in measured)
              for key in measured[0] if key.startswith(("time/", "speed/"))}
    phases = [key for key in middle if key.startswith("time/") and key.count("/") == 1 and key != "time/step"]
    outside = statistics.median(1 - sum(line[key] for key in phases) / line["time/step"] for line in measured)
    figures = {"job": JOB, "machine": {"cpu": platform.machine(), "cores": os.cpu_count()}, "versions": _versions(),
               "median": middle, "outside_phases": outside, "memory_peak_gb": _peak(lines)}
    for key, value in middle.items():
        share = f"  {value / middle['time/step']:6.1%}" if key.startswith("time/") else ""
        typer.echo(f"{key:<32} {value:10.3f}{share}")
    typer.echo(f"{'outside named phases':<32} {figures['outside_phases']:10.1%}")
    typer.echo(f"{'memory/peak_gb':<32} {figures['memory_peak_gb']:10.3f}")
    if out is not None:
        out.write_text(json.dumps(figures, indent=1), encoding="utf-8")


@app.command()
def engine(model: Annotated[str, typer.Option(help="HF folder; of a large job its tokenizer alone.")],
           large: Annotated[bool, typer.Option(help="Random weights of Qwen2.5-7B's shape.")] = False,
           steps: Annotated[int, typer.Option(help="Steps measured, after one of warm-up.")] = 3,
           batch: Annotated[int, typer.Option(help="Rows a step.")] = 32,
           words: Annotated[int, typer.Option(help="Words of an answer.")] = 800,
           out: Annotated[Path | None, typer.Option("--json", help="Also write them to this file.")] = None) -> None:
    """PPO, DPO and SFT by ZeRO stage, offload and more: tokens a second and peak memory."""
    from benchmarks.engine import measure

    found = []
    for job in measure(model, large, steps, batch, words):
        typer.echo(json.dumps(job))
        found.append(job)
        if out is not None:
            out.write_text(json.dumps({"versions": _versions(), "jobs": found}, indent=1), encoding="utf-8")


@app.command()
def memory(model: Annotated[str, typer.Option(help="HF folder; of the 0.5B shape its tokenizer alone.")],
           half_b: Annotated[bool, typer.Option(help="Also random weights of Qwen2.5-0.5B's shape.")] = True,
           jobs: Annotated[str, typer.Option(help="Names, with commas; default: all.")] = "",
           steps: Annotated[int, typer.Option(help="Steps of each.")] = 2,
           batch: Annotated[int, typer.Option(help="Rows a step.")] = 32,
           words: Annotated[int, typer.Option(help="Words of an answer.")] = 800,
           micro_tokens: Annotated[int, typer.Option(help="Tokens of a pass.")] = 16384,
           at_once: Annotated[int, typer.Option(help="Processes side by side.")] = 1,
           out: Annotated[Path | None, typer.Option("--json", help="Also write them to this file.")] = None) -> None:
    """The memory estimate beside the measured peak, by algorithm, precision and recomputation."""
    from benchmarks.memory import JOBS, measure
    from benchmarks.rollouts import write_half_b

    found = []
    with tempfile.TemporaryDirectory() as folder:
        models = {"given": model, **({"0.5B": write_half_b(Path(folder), model)} if half_b else {})}
        for one in measure(models, jobs.split(",") if jobs else list(JOBS), steps, batch, words, micro_tokens, at_once):
            typer.echo(json.dumps(one))
            found.append(one)
            if out is not None:
                out.write_text(json.dumps({"versions": _versions(), "jobs": found}, indent=1), encoding="utf-8")


@app.command()
def determinism(model: Annotated[str, typer.Option(help="HF folder.")],
                algos: Annotated[str, typer.Option(help="Names, with commas.")] = "sft,dpo,grpo,ppo",
                settings: Annotated[list[str] | None, typer.Option("--set", help="Settings of all runs.")] = None,
                out: Annotated[Path | None, typer.Option("--json", help="Also write them here.")] = None) -> None:
    """Two runs of each algorithm with engine.deterministic, and two without: whether they are the same bit for bit."""
    from benchmarks.determinism import compare

    found = []
    for one in compare(model, algos.split(","), settings or []):
        typer.echo(json.dumps(one))
        found.append(one)
        if out is not None:
            out.write_text(json.dumps({"versions": _versions(), "runs": found}, indent=1), encoding="utf-8")


@app.command()
def rollouts(model: Annotated[str, typer.Option(help="HF folder; of the 0.5B shape its tokenizer alone.")],
             half_b: Annotated[bool, typer.Option(help="Random weights of Qwen2.5-0.5B's shape.")] = False,
             backends: Annotated[str, typer.Option(help="Names, with commas.")] = "hf,vllm",
             prompts: Annotated[int, typer.Option(help="Prompts of 64 to 127 tokens.")] = 256,
             group: Annotated[int, typer.Option(help="Completions a prompt.")] = 1,
             tokens: Annotated[int, typer.Option(help="New tokens of each.")] = 256,
             options: Annotated[str, typer.Option(help="Backends' options, as JSON by name.")] = "{}",
             out: Annotated[Path | None, typer.Option("--json", help="Also write them to this file.")] = None) -> None:
    """Rollout backends: sync, tokens a second beside the bare engine's, memory given back."""
    from benchmarks.rollouts import measure, quiet, write_half_b

    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = write_half_b(Path(folder), model) if half_b else model
        with quiet():
            for one in measure(path, backends.split(","), prompts, tokens, json.loads(options), group):
                found.append(one)
    for one in found:
        typer.echo(json.dumps(one))
    if out is not None:
        out.write_text(json.dumps({"versions": _versions(), "backends": found}, indent=1), encoding="utf-8")


@app.command()
def parity(model: Annotated[str, typer.Option(help="HF folder; of the 0.5B shape its tokenizer alone.")],
           half_b: Annotated[bool, typer.Option(help="Random weights of Qwen2.5-0.5B's shape.")] = False,
           backends: Annotated[str, typer.Option(help="Names, with commas.")] = "hf,vllm",
           seeds: Annotated[int, typer.Option(help="Runs with each.")] = 3,
           at_once: Annotated[int, typer.Option(help="Runs side by side.")] = 1,
           reward: Annotated[str, typer.Option(help="Any reward.")] = "polite_length",
           options: Annotated[str, typer.Option(help="Backends' options, as JSON by name.")] = "{}",
           settings: Annotated[list[str] | None, typer.Option("--set", help="Settings of all runs.")] = None,
           out: Annotated[Path | None, typer.Option("--json", help="Also write them to this file.")] = None) -> None:
    """PPO with each rollout backend: whether the rewards agree."""
    from benchmarks.rollouts import parity, write_half_b

    with tempfile.TemporaryDirectory() as folder:
        path = write_half_b(Path(folder), model) if half_b else model
        found = parity(path, backends.split(","), seeds, [f"rewards=[{{name: {reward}}}]", *(settings or [])],
                       json.loads(options), at_once)
    typer.echo(json.dumps(found, indent=1))
    if out is not None:
        out.write_text(json.dumps({"versions": _versions(), **found}, indent=1), encoding="utf-8")
    if any(found["exit_codes"]):
        raise typer.Exit(1)


Peer = Annotated[str, typer.Option(help="What to compare with: trl (pip install --no-deps trl==1.16.*).")]
Steps = Annotated[int, typer.Option(help="Steps of both sides.")]
Out = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]


@app.command()
def dpo(peer: Peer, steps: Steps = 10, batch: Annotated[int, typer.Option(help="Pairs a step.")] = 16,
        out: Out = None) -> None:
    """Losses, seconds a step and peak memory of rlx and of TRL's DPOTrainer on the same pairs."""
    _beside("dpo", peer, steps, batch, out)


@app.command()
def grpo(peer: Peer, steps: Steps = 5, batch: Annotated[int, typer.Option(help="Prompts a step.")] = 4,
         out: Out = None) -> None:
    """Advantages and losses of rlx and of TRL's GRPOTrainer on what that samples with HF generate."""
    _beside("grpo", peer, steps, batch, out)


@app.command()
def speed(algo: Annotated[str, typer.Argument(help="ppo, grpo, dpo or sft.")],
          model: Annotated[str, typer.Option(help="HF folder, for its tokenizer; default: the bundled one.")] = "",
          shape: Annotated[str, typer.Option(help="llama_6m, half_b, 7b; 7b:14 has 14 layers.")] = "llama_6m",
          peer: Annotated[str, typer.Option(help="trl, or nothing.")] = "trl",
          batch: Annotated[int, typer.Option(help="Prompts, pairs or rows a step.")] = 32,
          tokens: Annotated[int, typer.Option(help="New ones a completion, or of an answer.")] = 64,
          group: Annotated[int, typer.Option(help="Completions a prompt.")] = 1,
          rollout: Annotated[str, typer.Option(help="hf or vllm.")] = "hf",
          micro: Annotated[int, typer.Option(help="Rows a pass of TRL's.")] = 16,
          recompute: Annotated[bool, typer.Option(help="TRL recomputes activations, as by default.")] = False,
          idle: Annotated[bool, typer.Option(help="Also rlx's idle time on the GPU, by phase.")] = False,
          steps: Steps = 3,
          settings: Annotated[str, typer.Option(help="Of rlx's spec, as JSON by dotted name.")] = "{}",
          out: Out = None) -> None:
    """A step of rlx and one of TRL's on the same job: seconds, tokens, memory by phase."""
    from benchmarks.peers import QUICK
    from benchmarks.speed import Job, compare

    job = Job(algo, shape, batch, tokens, group, steps, rollout, micro, recompute, idle, json.loads(settings))
    found = {**compare(job, model or str(QUICK / "rlx-tiny"), peer == "trl"), "versions": _versions()}
    typer.echo(json.dumps(found, indent=1))
    if out is not None:
        out.write_text(json.dumps(found, indent=1), encoding="utf-8")


@app.command()
def scaling(model: Annotated[str, typer.Option(help="HF folder; of a shape its tokenizer. Default: the bundled.")] = "",
            shape: Annotated[str, typer.Option(help="Random weights: llama_6m, half_b, 7b; 7b:14 has 14 layers.")] = "",
            algos: Annotated[str, typer.Option(help="Names, with commas.")] = "sft,dpo,grpo,ppo",
            stages: Annotated[str, typer.Option(help="ZeRO stages, with commas.")] = "1,2,3",
            ranks: Annotated[str, typer.Option(help="Numbers of ranks; others stand beside the first.")] = "1,2",
            batch: Annotated[int, typer.Option(help="Prompts, pairs or rows a step.")] = 32,
            tokens: Annotated[int, typer.Option(help="New ones a completion, or of an answer.")] = 64,
            group: Annotated[int, typer.Option(help="Completions a prompt.")] = 2,
            rollout: Annotated[str, typer.Option(help="hf, vllm or vllm_server.")] = "hf", steps: Steps = 3,
            noise: Annotated[bool, typer.Option(help="Also the first again, in passes of half the tokens.")] = False,
            grow: Annotated[bool, typer.Option(help="The batch times the ranks: for speed; no numbers.")] = False,
            settings: Annotated[str, typer.Option(help="Of the spec, as JSON by dotted name.")] = "{}",
            out: Annotated[Path | None, typer.Option(
                "--json", help="Also write them here, after each run; runs that are in it are not made again.")] = None,
            ) -> None:
    """One job on one rank and on several, by ZeRO stage: the same numbers, how much faster, how much memory."""
    from benchmarks.peers import QUICK
    from benchmarks.scaling import compare, measure, model_of, table
    from benchmarks.speed import Job

    job = Job("", shape, batch, tokens, group, steps, rollout, settings=json.loads(settings))
    given = {"model": model, "grow": grow, **vars(job)}
    known: dict[str, Any] = {"job": given, "runs": []}
    if out is not None and out.is_file():
        known = json.loads(out.read_text(encoding="utf-8"))
    if known["job"] != given:
        raise typer.BadParameter(f"'{out}' has runs of another job: {known['job']}; name another file")
    runs = known["runs"]
    with tempfile.TemporaryDirectory() as folder:
        where = model_of(shape, model or str(QUICK / "rlx-tiny"), out.absolute().parent if out else Path(folder))
        for one in measure(job, where, algos.split(","), [int(stage) for stage in stages.split(",")],
                           [int(number) for number in ranks.split(",")], noise, grow, runs):
            runs.append(one)
            figures = {"job": given, "versions": _versions(), "compared": compare(runs), "runs": runs}
            if out is not None:
                out.write_text(json.dumps(figures, indent=1), encoding="utf-8")
            typer.echo(table(compare(runs)[-1:]).splitlines()[-1])
    typer.echo(table(compare(runs)))


@app.command()
def paper(shape: Annotated[str, typer.Option(help="0.5B or 7B.")] = "7B") -> None:
    """Memory and seconds of steps on 1 to 32 H200s, calculated: nothing runs."""
    from benchmarks.paper import SHAPES, table

    for one in table(SHAPES[shape]):
        typer.echo("| " + " | ".join(str(value) for value in one.values()) + " |")


@app.command()
def check(keep: Annotated[bool, typer.Option(help="Keep today's ratios as what later ones are compared with.")] = False,
          ) -> None:
    """Whether a step has become slower, against plain work in the same process; exit code 1 if so."""
    from benchmarks.check import KEPT, ratios, slower

    found = ratios()
    typer.echo(json.dumps(found))
    if keep:
        KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if worse := slower(found):
        typer.echo(f"slower than kept: {worse}")
        raise typer.Exit(1)


def _beside(algo: str, peer: str, steps: int, batch: int, out: Path | None) -> None:
    from benchmarks.peers import compare

    if peer != "trl":
        raise typer.BadParameter(f"--peer {peer}: only trl is known")
    found = {**compare(algo, steps, batch), "versions": _versions()}
    for name, apart in found["apart"].items():
        typer.echo(f"{name}: at most {apart:.1e} apart")
    typer.echo(f"loss: fell by {found['loss_fell']:.3f} with TRL")
    for side in ("rlx", "trl", "trl_precomputed"):
        if side in found and algo == "dpo":  # of GRPO the two sides do different parts of the work
            figures = found[side]
            typer.echo(f"{side:<16} {figures['seconds_a_step']:8.3f} s a step (CPU {figures['cpu_seconds_a_step']:.3f} "
                       f"on {figures['threads']} threads) {figures['grew_mib']:8.0f} MiB more at "
                       f"its peak than before training ({figures['peak_mib']:.0f} in all)")
    if out is not None:
        out.write_text(json.dumps(found, indent=1), encoding="utf-8")


@app.command()
def rewards(out: Annotated[Path | None, typer.Option("--json", help="Also write them to this file.")] = None) -> None:
    """Listing 20 packages; 10,000 samples through three rules; an HTTP reward at 64 in flight beside bare httpx."""
    from benchmarks.rewards import http, listing, rules

    found = {}
    for work in (listing, rules, http):
        found[work.__name__] = work()
        typer.echo(json.dumps({work.__name__: found[work.__name__]}))
    if out is not None:
        out.write_text(json.dumps({"versions": _versions(), **found}, indent=1), encoding="utf-8")


@app.command()
def data(rows: Annotated[int, typer.Option(help="Rows of each layout.")] = 32_000, out: Out = None) -> None:
    """Prompts, pairs, demonstrations and chats of about 360 words: from a jsonl file to token ids on disk."""
    from benchmarks.data import measure

    found = []
    for one in measure(rows):
        found.append(one)
        typer.echo(json.dumps(one))
    if out is not None:
        figures = {"machine": {"cpu": platform.machine(), "cores": os.cpu_count()}, "versions": _versions()}
        out.write_text(json.dumps({**figures, "layouts": found}, indent=1), encoding="utf-8")


@app.command()
def growth(model: Annotated[str, typer.Option(help="HF folder, for its tokenizer; default: the bundled one.")] = "",
           shape: Annotated[str, typer.Option(help="llama_6m or half_b.")] = "llama_6m",
           rows: Annotated[str, typer.Option(help="Of SFT's files, with commas; nothing leaves them out.")] =
           "1000,8000,32000",
           tokens: Annotated[str, typer.Option(help="Of a completion; the same.")] = "128,512,2048,4096",
           plugins: Annotated[str, typer.Option(help="Packages with a plugin each; the same.")] = "10,50,200",
           out: Out = None) -> None:
    """What a token costs with more rows and longer completions, and a plugin with more of them."""
    from benchmarks import growth
    from benchmarks.peers import QUICK
    from benchmarks.speed import write_model
    from rlx.logs import library_log
    from rlx.ranks import start_distributed

    sizes = {"rows": rows, "completions": tokens, "plugins": plugins}
    wanted = {name: [int(size) for size in text.split(",") if size] for name, text in sizes.items()}
    machine = {"cpu": platform.machine(), "cores": os.cpu_count()}
    figures: dict[str, Any] = {"shape": shape, "machine": machine, "versions": _versions()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with library_log(None):
            ranks = start_distributed()
            longest = max([4096, *wanted["completions"]]) + 1024
            path = write_model(folder / "model", shape, model or str(QUICK / "rlx-tiny"),
                               max_position_embeddings=longest)
        for part, found in (("rows", growth.rows(wanted["rows"], path, shape, folder, ranks)),
                            ("completions", growth.completions(wanted["completions"], path, shape, folder, ranks)),
                            ("plugins", growth.plugins(wanted["plugins"]))):
            figures[part] = []
            for one in found if wanted[part] else ():
                figures[part].append(one)
                typer.echo(json.dumps({key: float(f"{value:.4g}") if isinstance(value, float) else value
                                       for key, value in one.items()}))
                if out is not None:
                    out.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def _peak(lines: list[dict[str, float]]) -> float:
    """Of the GPU, or of this process on a CPU, GiB."""
    gpu = [line["memory/peak_gb"] for line in lines if "memory/peak_gb" in line]
    return max(gpu) if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _versions() -> dict[str, str]:
    from rlx.runs import versions

    return versions()


app()
