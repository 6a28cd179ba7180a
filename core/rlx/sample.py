"""Completions from any HF model or checkpoint of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlx.checkpoint import complete_checkpoints
from rlx.data import Limits, load_tokenizer, open_rows, prepare_rows
from rlx.logs import library_log
from rlx.models import load_causal_lm, pick_device, pick_dtype
from rlx.registry import Registry
from rlx_sdk import ModelError, Request, RolloutContext, Sampling


def sample_model(checkpoint: str, prompts: str, *, n: int, limit: int, max_completion: int, temperature: float,
                 seed: int, rollout: str = "hf") -> list[dict[str, Any]]:
    """Sample ``n`` completions of each of the first ``limit`` prompts.

    Args:
        checkpoint: a run (its newest checkpoint), a checkpoint, or any HF folder, hub name or .gguf file.
        prompts: a parquet or jsonl file, or one prompt as text, put through the chat template.
        n: completions a prompt.
        limit: prompts at most.
        max_completion: tokens a completion may have.
        temperature: of sampling.
        seed: decides the samples.
        rollout: backend that samples.
    """
    path = find_model(checkpoint)
    with library_log(None):
        tokenizer = load_tokenizer(path)
        if prompts.endswith((".parquet", ".jsonl")):
            cache = Path("~/.cache/rlx").expanduser()
            prepared = prepare_rows(open_rows(prompts, cache), "rollouts", tokenizer, Limits(), {}, cache)
            texts = [prepared.example(i).prompt for i in range(min(limit, len(prepared)))]
        else:
            texts = [[{"role": "user", "content": prompts}]]
        device = pick_device()
        dtype = pick_dtype("auto", device)
        model = load_causal_lm(path, dtype).to(device).eval()
        entry = Registry.discover().get("rollout", rollout)
        backend = entry.call("build", entry.call("config")(), RolloutContext(
            model, path, tokenizer.stop_token_ids, tokenizer.pad_token_id, device, str(dtype).removeprefix("torch."),
            model.config.get_text_config().max_position_embeddings))
        sampling = Sampling(temperature=temperature, max_tokens=max_completion)
        requests = [Request(tokenizer.encode_prompt(t), sampling, n, seed * 1_000_003 + i) for i, t in enumerate(texts)]
        backend.sync(iter(model.named_parameters()), 0)
        done = dict(backend.generate(requests))
    return [{"prompt": t if isinstance(t, str) else str(t[-1]["content"]), "completion": tokenizer.decode(g.tokens),
             "length": len(g.tokens), "finish_reason": g.finish_reason}
            for i, t in enumerate(texts) for g in done[i]]


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
