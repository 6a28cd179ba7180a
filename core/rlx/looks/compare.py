"""Two models on the same prompts, seeds and sampling, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlx.data import Tokenizer
from rlx.data.cache import Progress, unseen
from rlx.inputs import reward_panel
from rlx.layers import Tree
from rlx.logs import library_log
from rlx.looks.stats import difference, win_rate
from rlx.plan import resolve_rewards
from rlx.registry import Registry
from rlx.rewards import Judged, as_sample
from rlx.sample import OpenModel, Prompt, run_spec
from rlx_sdk import Generation, RewardContext, Sampling

SIDES = ("base", "tuned")


def compare(base: str, tuned: str, prompts: str, *, rewards: list[Tree], n: int, limit: int, max_completion: int,
            seed: int, temperature: float, top_p: float = 1.0, top_k: int | None = None,
            rollout: str = "hf", progress: Progress = unseen) -> dict[str, Any]:
    """Sample both models and measure them.

    Args:
        base: a run (its newest checkpoint), a checkpoint, or any HF folder, hub name or .gguf file.
        tuned: another.
        prompts: a data file, or one prompt as text.
        rewards: as in a spec; without any, those of the run that ``tuned`` or ``base`` is.
        n: completions a prompt.
        limit: prompts at most.
        max_completion: tokens a completion may have.
        seed: decides the samples, the same for both.
        temperature: of sampling; 0 takes the likeliest token each time.
        top_p: sample from the smallest set of tokens with this much probability.
        top_k: sample from this many tokens, the likeliest ones.
        rollout: backend that samples.
        progress: of reading a large file.

    Returns:
        ``prompts``, each with the completions of both; ``summary`` of each side; ``win_rate``, ``difference`` (of the
        reward) and ``kl``, or None and why in ``notes``. JSON-able.

    Raises:
        InputError: a model, the prompts or a reward cannot be used.
    """
    spec = run_spec(tuned) or run_spec(base)
    registry = Registry.discover()
    chosen, specs = resolve_rewards(registry, rewards or (spec or {}).get("rewards", []))
    sampling = Sampling(temperature, top_p, max_completion, top_k)
    with library_log(None):
        models = [OpenModel(base), OpenModel(tuned)]
        asked = [model.prompts(prompts, limit, spec, progress) for model in models]
        panel = reward_panel(chosen, specs, RewardContext(models[0].device, seed))
        try:
            done, judged = [], []
            for model, of_model in zip(models, asked, strict=True):
                done.append(model.complete(of_model, sampling, n, seed, rollout))
                judged.append(panel.score(
                    [as_sample(p.example, model.tokenizer.decode(g.tokens), g.finish_reason, len(g.tokens))
                     for p, group in zip(of_model, done[-1], strict=True) for g in group],
                    [f"prompt {i + 1}" for i in range(len(of_model)) for _ in range(n)]))
        finally:
            panel.close()
        notes = [] if chosen else ["no reward was given and neither model is a run with one, so nothing says which "
                                   "completion is better; give --reward NAME"]
        kl, why = _kl(models[0], models[1], asked, done[1])
    lines = [_lines(m.tokenizer, d, j, n) for m, d, j in zip(models, done, judged, strict=True)]
    texts = [as_sample(p.example, "", "stop").prompt for p in asked[1]]
    rows = [{"prompt": text, "base": b, "tuned": t} for text, b, t in zip(texts, *lines, strict=True)]
    means = [(_reward(row["base"]), _reward(row["tuned"])) for row in rows]
    pairs = [(b, t) for b, t in means if b is not None and t is not None]
    return {"base": base, "tuned": tuned, "prompts": rows,
            "sampling": {"temperature": temperature, "top_p": top_p, "top_k": top_k, "max_completion": max_completion,
                         "n": n, "seed": seed},
            "summary": {side: _summary([line for row in rows for line in row[side]]) for side in SIDES},
            "win_rate": win_rate(pairs), "difference": difference(pairs), "kl": kl, "notes": notes + why}


@torch.no_grad()
def _kl(base: OpenModel, tuned: OpenModel, asked: Sequence[Sequence[Prompt]],
        done: Sequence[Sequence[Generation]]) -> tuple[dict[str, float] | None, list[str]]:
    """KL(tuned‖base) in nats over the whole vocabulary, along what tuned wrote; None and why where there is none."""
    if base.tokenizer.hf.get_vocab() != tuned.tokenizer.hf.get_vocab():
        return None, ["the models have other vocabularies, so there is no KL between them"]
    if any(list(b.tokens) != list(t.tokens) for b, t in zip(*asked, strict=True)):
        return None, ["the models' chat templates make other tokens of the same prompt, so there is no KL between them"]
    vocabulary, total, tokens, completions = len(tuned.tokenizer.hf), 0.0, 0, 0
    for prompt, group in zip(asked[1], done, strict=True):
        for generation in group:
            ours, theirs = (_distributions(model, prompt.tokens, generation.tokens, vocabulary)
                            for model in (tuned, base))
            total += float((ours.exp() * (ours - theirs)).sum())
            tokens, completions = tokens + len(generation.tokens), completions + 1
    return {"token": total / max(tokens, 1), "completion": total / completions}, []


def _distributions(model: OpenModel, prompt: Sequence[int], completion: Sequence[int],
                   vocabulary: int) -> torch.Tensor:
    """``[T, V]`` float32 logprobs of all that could have stood in place of each token of the completion.

    Weights may be padded beyond the vocabulary; that part is left out.
    """
    ids = torch.tensor([[*prompt, *completion]], device=model.device)
    logits = model.hf(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1, :vocabulary]
    logprobs: torch.Tensor = logits.float().log_softmax(-1)
    return logprobs


def _lines(tokenizer: Tokenizer, done: Sequence[Sequence[Generation]], judged: Judged,
           n: int) -> list[list[dict[str, Any]]]:
    return [[{"completion": tokenizer.decode(g.tokens), "length": len(g.tokens), "finish_reason": g.finish_reason,
              "reward": judged.rewards[i * n + k] if judged.judged[i * n + k] else None,
              "rewards": {name: scores[i * n + k] for name, scores in judged.by_provider.items()}}
             for k, g in enumerate(group)] for i, group in enumerate(done)]


def _reward(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Of a prompt: the mean over its completions."""
    return _mean([line["reward"] for line in lines])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _summary(lines: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    return {"reward": _mean([line["reward"] for line in lines]),
            **{f"reward/{name}": _mean([line["rewards"][name] for line in lines]) for name in lines[0]["rewards"]},
            "length in tokens": _mean([line["length"] for line in lines]),
            "cut at the limit": _mean([line["finish_reason"] == "length" for line in lines]),
            "distinct": len({line["completion"] for line in lines}) / len(lines)}
