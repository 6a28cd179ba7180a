"""One file that shows one or more runs: curves, distributions, samples before and after, warnings, spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlx.looks.described import described
from rlx.looks.page import need, number, write_page
from rlx.looks.stats import verdict
from rlx.looks.warn import Watch
from rlx.runs import RunFolder
from rlx.text import listing
from rlx_sdk import CheckpointError

SHOWN = 200
"""Pairs of samples in the page at most."""
BINS, COLUMNS = 24, 60
"""Of a distribution over time: bins of its values, and steps at most."""
FIRST = ("eval/reward/mean", "reward/mean", "eval/pass@1", "rewards/accuracy", "length/mean", "kl/mean", "loss/policy",
         "policy/entropy", "policy/clip_fraction", "grad_norm/policy", "speed/generated_tokens_per_s",
         "speed/trained_tokens_per_s", "memory/peak_gb")
"""Curves that are shown at once, as far as the runs have them; all others are behind a click."""


@dataclass(frozen=True)
class Story:
    """What a run's folder tells, JSON-able but for ``path``.

    Attributes:
        path: of the run.
        train: lines of metrics.jsonl of steps of training.
        held_out: those of evaluations, each name with ``eval/``.
        spec: text of spec.yaml.
        versions: that ran.
        warnings: in words, each with its step.
        distributions: by name, ``x`` steps, ``y`` bins and ``z`` shares of the step's completions.
        samples: prompts with a completion before and after.
        between: what before and after are.
        verdict: whether held-out rewards moved, in a sentence.
    """

    path: Path
    train: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    spec: str
    versions: list[str]
    warnings: list[str]
    distributions: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    between: str = ""
    verdict: str | None = None

    @property
    def names(self) -> list[str]:
        """Of all its metrics."""
        return list(dict.fromkeys(name for line in (*self.train, *self.held_out) for name in line if name != "step"))


def write_report(runs: Sequence[Path], page: Path) -> None:
    """Write the page of one or more runs.

    Raises:
        CheckpointError: one of them is no run, or has no metrics yet.
        InputError: a package is missing, or the page cannot be written.
    """
    need("plotly")
    from plotly.offline import get_plotlyjs

    stories = [read_story(run) for run in runs]
    labels = _labels(runs)
    names = list(dict.fromkeys(name for story in stories for name in story.names))
    curves = [name for name in FIRST if name in names]
    rest = sorted(name for name in names if name not in FIRST and not name.startswith("time/"))
    about = {name: one for name in (*curves, *rest) if (one := described(name))}
    data = [{"label": label, "train": _columns(s.train), "held_out": _columns(s.held_out),
             "distributions": s.distributions} for label, s in zip(labels, stories, strict=True)]
    write_page("report.html.j2", page, stories=list(zip(labels, stories, strict=True)), data=data, curves=curves,
               rest=rest, about=about, plotly=get_plotlyjs(),
               ends=[(label, list(_ends(s))) for label, s in zip(labels, stories, strict=True)])


def read_story(run: Path) -> Story:
    """Read a run's folder.

    Raises:
        CheckpointError: it is no run, or has no metrics yet.
    """
    spec = run / "spec.yaml"
    if not spec.is_file():
        raise CheckpointError(f"'{run}' is not a run folder: it has no spec.yaml")
    folder = RunFolder(run)
    train, held_out = folder.metrics(), folder.metrics(training=False)
    if not train and not held_out:
        raise CheckpointError(f"the run '{run}' has no metrics yet")
    watch = Watch()
    warnings = [f"step {line['step']}: {said}" for line in train for said in watch.step(line)]
    text = spec.read_text(encoding="utf-8")
    versions = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    return Story(run, train, held_out, text, versions, warnings, *_samples(run / "samples"))


def _samples(folder: Path) -> tuple[dict[str, dict[str, list[Any]]], list[dict[str, Any]], str, str | None]:
    """Distributions of the step's completions over time; completions before and after; and whether they got better."""
    import pandas as pd
    import pyarrow.parquet as pq

    files = {kind: sorted(folder.glob(f"{kind}_*.parquet")) for kind in ("step", "eval")}
    found: dict[str, dict[str, list[Any]]] = {}
    stride = -(-len(files["step"]) // COLUMNS) or 1
    steps = [pd.read_parquet(file) for file in files["step"][::stride]]
    for name in ("reward", "length"):
        columns = [(int(file.stem.rpartition("_")[2]), table[name].dropna().to_numpy(float))
                   for file, table in zip(files["step"][::stride], steps, strict=True)]
        if any(len(values) for _, values in columns):
            found[name] = _distribution(columns)
    kind = "eval" if len(files["eval"]) > 1 else "step"
    if len(files[kind]) < 2:
        return found, [], "", None
    ends = [int(file.stem.rpartition("_")[2]) for file in (files[kind][0], files[kind][-1])]
    what = "the same held-out prompts" if kind == "eval" else "prompts of training, not the same ones"
    before, after = (pq.ParquetFile(files[kind][i]).read().to_pylist() for i in (0, -1))
    pairs = [{"before": b, "after": a, "same": b["prompt"] == a["prompt"]}
             for b, a in zip(before[:SHOWN], after[:SHOWN], strict=False)]
    return (found, pairs, f"{what}, after step {ends[0]} and after step {ends[1]}",
            verdict(before, after) if kind == "eval" else None)


def _distribution(columns: Sequence[tuple[int, Any]]) -> dict[str, list[Any]]:
    """Shares of each step's values in common bins."""
    import numpy as np

    every = np.concatenate([values for _, values in columns])
    edges = np.linspace(every.min(), every.max() if every.max() > every.min() else every.min() + 1, BINS + 1)
    shares = [np.histogram(values, edges)[0] / max(len(values), 1) for _, values in columns]
    return {"x": [step for step, _ in columns], "y": ((edges[1:] + edges[:-1]) / 2).tolist(),
            "z": np.stack(shares, 1).tolist()}


def _columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [line.get(name) for line in lines] for name in names}


def _ends(story: Story) -> list[tuple[str, str, str]]:
    """What matters most, at the start and at the end: means of the first and the last tenth of the steps."""
    found = []
    for name in FIRST[:8]:
        lines = story.held_out if name.startswith("eval/") else story.train
        values = [line[name] for line in lines if line.get(name) is not None]
        part = 1 if name.startswith("eval/") else max(1, len(values) // 10)
        if values:
            found.append((name, number(sum(values[:part]) / part), number(sum(values[-part:]) / part)))
    return found


def _labels(runs: Sequence[Path]) -> list[str]:
    """Folder names, or whole paths where these are the same."""
    names = [run.absolute().name for run in runs]
    if len({run.absolute() for run in runs}) < len(runs):
        raise CheckpointError(f"a run is given twice: {listing(runs)}")
    return names if len(set(names)) == len(names) else [str(run) for run in runs]
