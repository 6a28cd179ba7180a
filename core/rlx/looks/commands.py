"""The commands that show: sample, compare, report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlx.terminal import errors, print_json

RewardFlag = Annotated[list[str] | None, typer.Option("--reward", help="As rlx train takes it; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, all else on standard error.")]
Prompts = Annotated[str, typer.Option(help="A file with prompts, or one prompt as text.")]
Several = Annotated[int, typer.Option("--n", help="Completions a prompt.", min=1)]
Limit = Annotated[int, typer.Option(help="Prompts at most.", min=1)]
MaxCompletion = Annotated[int, typer.Option(help="Tokens a completion may have.", min=1)]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token each time.", min=0)]
TopP = Annotated[float, typer.Option(help="Sample from the smallest set with this much probability.", min=1e-3, max=1)]
TopK = Annotated[int | None, typer.Option(help="Sample from this many tokens.", min=1)]
Seed = Annotated[int, typer.Option(help="Decides the samples.", min=0)]
Html = Annotated[Path | None, typer.Option(help="Write a page to this file too.", dir_okay=False)]


def sample(checkpoint: Annotated[str, typer.Argument(help="A run, a checkpoint, or an HF folder.")], prompts: Prompts,
           n: Several = 1, limit: Limit = 8, max_completion: MaxCompletion = 256, temperature: Temperature = 1.0,
           top_p: TopP = 1.0, top_k: TopK = None, seed: Seed = 0, json: Json = False) -> None:
    """Sample completions from a checkpoint or any HF model."""
    with errors():
        from rlx.data.cache import unseen
        from rlx.sample import sample_model
        from rlx.view import View

        found = sample_model(checkpoint, prompts, n=n, limit=limit, max_completion=max_completion,
                             temperature=temperature, top_p=top_p, top_k=top_k, seed=seed,
                             progress=unseen if json else View(sys.stderr).progress)
        if json:
            print_json(found)
            return
        for one in found:
            typer.echo(f"> {one['prompt']}\n{one['completion']}\n")


def compare(prompts: Prompts, base: Annotated[str, typer.Argument(help="A run, a checkpoint, or an HF model.")],
            tuned: Annotated[str | None, typer.Argument(
                help="Another; without it the first is a run, compared with the model that it began from.")] = None,
            reward: RewardFlag = None, n: Several = 1, limit: Limit = 32, max_completion: MaxCompletion = 256,
            temperature: Temperature = 1.0, top_p: TopP = 1.0, top_k: TopK = None, seed: Seed = 0, html: Html = None,
            json: Json = False) -> None:
    """Compare two models on the same prompts, seeds and sampling. Rewards: --reward, or the run's own."""
    with errors():
        from rich.console import Console

        from rlx.data.cache import unseen
        from rlx.layers import named_weight
        from rlx.looks.compare import compare as compare_models
        from rlx.looks.page import need, write_page
        from rlx.looks.show import print_comparison, sentences
        from rlx.sample import began_from
        from rlx.view import View

        if tuned is None:
            base, tuned = began_from(base), base
        if html:
            need("jinja2")
        found = compare_models(base, tuned, prompts, rewards=[named_weight(text) for text in reward or ()], n=n,
                               limit=limit, max_completion=max_completion, temperature=temperature, top_p=top_p,
                               top_k=top_k, seed=seed, progress=unseen if json else View(sys.stderr).progress)
        if html:
            write_page("compare.html.j2", html, sentences=list(sentences(found)), **found)
        print_json(found) if json else print_comparison(found, Console(highlight=False))
        if html:
            typer.echo(f"page {html}", err=json)


def report(runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
           out: Annotated[Path | None, typer.Option(help="The page; default: report.html in the first run.")] = None,
           ) -> None:
    """Write one page that shows one or more runs: curves, samples before and after, warnings, spec."""
    with errors():
        from rlx.looks.report import write_report

        page = out or runs[0] / "report.html"
        write_report(runs, page)
        typer.echo(f"page {page}")
