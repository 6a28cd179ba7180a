"""The table of samples: what the policy wrote, and what was made of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlx.ranks import Ranks
from rlx_sdk import Sequences

_TYPES = {"step": pa.int64(), "split": pa.string(), "sample": pa.int64(), "row": pa.int64(), "prompt": pa.string(),
          "completion": pa.string(), "length": pa.int64(), "finish_reason": pa.string()}
"""All other columns are float64, so that the files of a run have the same ones and are read together."""


def explain(samples: Sequence[dict[str, Any]], made: Iterable[Sequences], ranks: Ranks) -> None:
    """Write into the table what the algorithm made of each completion; of those it left out, nothing.

    ``advantage`` and ``logprob_diff`` (of the policy from the sampler, absolute) are means over its tokens.
    """
    found: dict[int, dict[str, float]] = {}
    for seqs in made:
        if len(seqs) == 0 or "sample" not in seqs.per_token:
            continue
        seqs = seqs.to("cpu")
        known = dict(seqs.per_token)
        if {"old_logprobs", "rollout_logprobs"} <= known.keys():
            known["logprob_diff"] = (known["old_logprobs"] - known["rollout_logprobs"]).abs()
        for name, tensor in (("advantage", "advantages"), ("logprob_diff", "logprob_diff")):
            if tensor in known:
                means = (known[tensor] * seqs.mask).sum(1) / seqs.mask.sum(1).clamp(min=1)
                for sample, mean in zip(known["sample"][:, 0].tolist(), means.tolist(), strict=True):
                    found.setdefault(sample, {})[name] = mean
    of_all = {sample: facts for part in ranks.gather(found) for sample, facts in part.items()}
    for line in samples:
        line |= of_all.get(line["sample"], {})


def write_samples(folder: Path, step: int, samples: Sequence[dict[str, Any]], split: str) -> None:
    """One parquet file; whoever looks meanwhile sees it whole or not at all."""
    lines = [{"step": step, "split": split, **sample} for sample in samples]
    schema = pa.schema([(name, _TYPES.get(name, pa.float64())) for name in lines[0]])
    aside = folder / f".{split}"
    pq.write_table(pa.Table.from_pylist(lines, schema), aside, compression="zstd")
    aside.replace(folder / f"{'step' if split == 'train' else split}_{step:06d}.parquet")


def first_samples(folder: Path, split: str) -> list[dict[str, Any]]:
    """The lines of the first file of a kind, if there is one."""
    files = sorted(folder.glob(f"{split}_*.parquet"))
    lines: list[dict[str, Any]] = pq.ParquetFile(files[0]).read().to_pylist() if files else []
    return lines
