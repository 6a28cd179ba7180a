"""Completions from any HF model or checkpoint of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rlx.checkpoint import complete_checkpoints
from rlx.data import Example, Limits, Rows, Tokenizer, load_tokenizer, open_rows, prepare_rows
from rlx.data.cache import Progress, unseen
from rlx.data.layouts import MAP
from rlx.layers import Tree, read_spec_file
from rlx.logs import library_log
from rlx.machine import expanded
from rlx.models import load_causal_lm, pick_device, pick_dtype
from rlx.registry import Registry
from rlx.rewards import as_sample
from rlx_sdk import DataError, Generation, ModelError, Request, RolloutContext, Sampling


@dataclass(frozen=True)
class Prompt:
    """One prompt: as it was read, and as token ids."""

    example: Example
    tokens: Sequence[int]


class OpenModel:
    """A model to sample from: of a run (its newest checkpoint), a checkpoint, or any HF folder, hub name or .gguf."""

    def __init__(self, given: str) -> None:
        """Find it and load its tokenizer."""
        self.given, self.path = given, find_model(given)
        self.tokenizer: Tokenizer = load_tokenizer(self.path)
        self.device = pick_device()
        self.dtype = pick_dtype("auto", self.device)

    @cached_property
    def hf(self) -> Any:
        """The HF model, loaded when it is first asked for."""
        return load_causal_lm(self.path, self.dtype).to(self.device).eval()

    def prompts(self, prompts: str, limit: int, spec: Tree | None = None, progress: Progress = unseen) -> list[Prompt]:
        """The first prompts of a file, its columns named as in a run's spec; or the text itself.

        Raises:
            DataError: there is none, or the file cannot be read.
        """
        if not prompts.strip():
            raise DataError("--prompts is empty; give a file, or one prompt as text")
        if not Path(prompts).exists() and (" " in prompts or not Path(prompts).suffix):
            example = Example([{"role": "user", "content": prompts}])
            return [Prompt(example, self.tokenizer.encode_prompt(example.prompt))]
        data = (spec or {}).get("data", {})
        cache = expanded(data.get("cache", "~/.cache/rlx"))
        rows = first_rows(open_rows(prompts, cache, progress), limit)
        try:
            prepared = prepare_rows(rows, "rollouts", self.tokenizer, Limits(), data.get("columns", {}), cache)
        except DataError as error:  # here there are no settings to map columns with
            said, hint, _ = str(error).partition(MAP)
            raise DataError(f"{said} Rename one of them to prompt." if hint else said) from error
        return [Prompt(prepared.example(i), prepared.ids(i, "prompt")) for i in range(len(prepared))]

    def complete(self, prompts: Sequence[Prompt], sampling: Sampling, n: int, seed: int,
                 rollout: str = "hf") -> list[list[Generation]]:
        """``n`` completions of each prompt.

        Raises:
            ModelError: prompt and completion do not fit into the model's context.
        """
        context = self.hf.config.get_text_config().max_position_embeddings
        longest = max(len(prompt.tokens) for prompt in prompts)
        if longest + sampling.max_tokens > context:
            raise ModelError(f"a prompt of {longest:,} tokens and --max-completion {sampling.max_tokens:,} do not fit "
                             f"into the model's context of {context:,} tokens")
        entry = Registry.discover().get("rollout", rollout)
        backend = entry.call("build", entry.call("config")(), RolloutContext(
            self.hf, self.path, self.tokenizer.stop_token_ids, self.tokenizer.pad_token_id, self.device,
            str(self.dtype).removeprefix("torch."), context, tokens=len(prompts) * n * sampling.max_tokens))
        backend.sync(iter(self.hf.named_parameters()), 0)
        done = dict(backend.generate([Request(prompt.tokens, sampling, n, seed * 1_000_003 + i)
                                      for i, prompt in enumerate(prompts)]))
        backend.close()
        return [done[i] for i in range(len(prompts))]


def first_rows(rows: Rows, n: int) -> Rows:
    """The first rows alone, of however large a file."""
    files = [replace(file, table=file.table.slice(0, max(0, n - start)))
             for file, start in zip(rows.files, (0, *rows.ends), strict=False)]
    return replace(rows, files=tuple(files), fingerprint=f"{rows.fingerprint}[:{n}]")


def sample_model(checkpoint: str, prompts: str, *, n: int, limit: int, max_completion: int, seed: int,
                 temperature: float, top_p: float = 1.0, top_k: int | None = None,
                 rollout: str = "hf", progress: Progress = unseen) -> list[dict[str, Any]]:
    """Sample ``n`` completions of each of the first ``limit`` prompts.

    Args:
        checkpoint: a run (its newest checkpoint), a checkpoint, or any HF folder, hub name or .gguf file.
        prompts: a parquet or jsonl file, or one prompt as text, put through the chat template.
        n: completions a prompt.
        limit: prompts at most.
        max_completion: tokens a completion may have.
        seed: decides the samples.
        temperature: of sampling; 0 takes the likeliest token each time.
        top_p: sample from the smallest set of tokens with this much probability.
        top_k: sample from this many tokens, the likeliest ones.
        rollout: backend that samples.
        progress: of reading a large file.
    """
    with library_log(None):
        model = OpenModel(checkpoint)
        asked = model.prompts(prompts, limit, run_spec(checkpoint), progress)
        done = model.complete(asked, Sampling(temperature, top_p, max_completion, top_k), n, seed, rollout)
    samples = [(as_sample(prompt.example, model.tokenizer.decode(g.tokens), g.finish_reason), g)
               for prompt, group in zip(asked, done, strict=True) for g in group]
    return [{"prompt": s.prompt, "completion": s.completion, "length": len(g.tokens),
             "finish_reason": s.finish_reason} for s, g in samples]


def run_spec(given: str) -> Tree | None:
    """The spec of a run; None of anything else."""
    spec = expanded(given) / "spec.yaml"
    return read_spec_file(spec) if spec.is_file() else None


def began_from(run: str) -> str:
    """The model that a run trained.

    Raises:
        ModelError: it is no run.
    """
    spec = run_spec(run)
    if spec is None:
        raise ModelError(f"'{run}' is no run, so nothing says which model it began from: name two models")
    return str(spec["model"]["path"])


def find_model(checkpoint: str) -> str:
    """The HF folder that a run, a checkpoint or a model path means.

    Raises:
        ModelError: a run without a complete checkpoint.
    """
    path = expanded(checkpoint)
    if (path / "checkpoints").is_dir():
        there = complete_checkpoints(path / "checkpoints")
        if not there:
            raise ModelError(f"the run '{path}' has no complete checkpoint yet")
        path = there[-1]
    return str(path / "actor") if (path / "actor").is_dir() else checkpoint
