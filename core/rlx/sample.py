"""Completions from any HF model or checkpoint of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlx.checkpoint import complete_checkpoints
from rlx.data import Limits, Tokenizer, load_tokenizer, open_rows, prepare_rows
from rlx.data.layouts import Prompt
from rlx.layers import lookup, read_spec_file
from rlx.logs import library_log
from rlx.models import load_causal_lm, pick_device, pick_dtype
from rlx.registry import Registry
from rlx_sdk import DataError, ModelError, Request, RolloutContext, Sampling


def sample_model(checkpoint: str, prompts: str, *, n: int, limit: int, max_completion: int, seed: int,
                 temperature: float, top_p: float = 1.0, top_k: int | None = None,
                 rollout: str = "hf") -> list[dict[str, Any]]:
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
    """
    path = find_model(checkpoint)
    with library_log(None):
        tokenizer = load_tokenizer(path)
        texts = _prompts(checkpoint, prompts, tokenizer, limit)
        device = pick_device()
        dtype = pick_dtype("auto", device)
        model = load_causal_lm(path, dtype).to(device).eval()
        context = model.config.get_text_config().max_position_embeddings
        encoded = [tokenizer.encode_prompt(text) for text in texts]
        longest = max(map(len, encoded))
        if longest + max_completion > context:
            raise ModelError(f"a prompt of {longest:,} tokens and --max-completion {max_completion:,} do not fit into "
                             f"the model's context of {context:,} tokens")
        entry = Registry.discover().get("rollout", rollout)
        backend = entry.call("build", entry.call("config")(), RolloutContext(
            model, path, tokenizer.stop_token_ids, tokenizer.pad_token_id, device, str(dtype).removeprefix("torch."),
            context, tokens=len(texts) * n * max_completion))
        sampling = Sampling(temperature, top_p, max_completion, top_k)
        requests = [Request(tokens, sampling, n, seed * 1_000_003 + i) for i, tokens in enumerate(encoded)]
        backend.sync(iter(model.named_parameters()), 0)
        done = dict(backend.generate(requests))
        backend.close()
    return [{"prompt": t if isinstance(t, str) else str(t[-1]["content"]), "completion": tokenizer.decode(g.tokens),
             "length": len(g.tokens), "finish_reason": g.finish_reason}
            for i, t in enumerate(texts) for g in done[i]]


def _prompts(checkpoint: str, prompts: str, tokenizer: Tokenizer, limit: int) -> list[Prompt]:
    """Prompts of a file, its columns named as in the run that is sampled; or the text itself."""
    if not prompts.strip():
        raise DataError("--prompts is empty; give a file, or one prompt as text")
    if not Path(prompts).exists() and (" " in prompts or not Path(prompts).suffix):
        return [[{"role": "user", "content": prompts}]]
    spec = Path(checkpoint) / "spec.yaml"
    data = lookup(read_spec_file(spec), "data") if spec.is_file() else {}
    cache = Path(data.get("cache", "~/.cache/rlx")).expanduser()
    prepared = prepare_rows(open_rows(prompts, cache), "rollouts", tokenizer, Limits(), data.get("columns", {}), cache)
    return [prepared.example(i).prompt for i in range(min(limit, len(prepared)))]


def find_model(checkpoint: str) -> str:
    """The HF folder that a run, a checkpoint or a model path means.

    Raises:
        ModelError: a run without a complete checkpoint.
    """
    path = Path(checkpoint).expanduser()
    if (path / "checkpoints").is_dir():
        there = complete_checkpoints(path / "checkpoints")
        if not there:
            raise ModelError(f"the run '{path}' has no complete checkpoint yet")
        path = there[-1]
    return str(path / "actor") if (path / "actor").is_dir() else checkpoint
