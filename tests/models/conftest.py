"""Tiny models with random weights, large enough that no two tokens are alike to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from rlx.models import Scorer
from rlx_sdk import Sequences

CASES = Path(__file__).parents[1] / "cases" / "math"
VOCAB = 64


def config(**options: Any) -> LlamaConfig:
    settings: dict[str, Any] = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 64, "initializer_range": 0.3,
        "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    return LlamaConfig(**{**settings, **options})


@pytest.fixture
def llama() -> Callable[..., Any]:
    """Makes a small Llama; the seed decides its weights."""

    def make(seed: int = 0, **options: Any) -> Any:
        torch.manual_seed(seed)
        return LlamaForCausalLM(config(**options)).eval()

    return make


@pytest.fixture
def scorer() -> Callable[..., Scorer]:
    """Makes a small value model whose head is not zero."""

    def make(seed: int = 1) -> Scorer:
        torch.manual_seed(seed)
        return Scorer(LlamaForSequenceClassification(config(num_labels=1)).eval())

    return make


@pytest.fixture
def sequences() -> Callable[..., Sequences]:
    """Makes random sequences of these (prompt, completion) lengths; padding holds random tokens too."""

    def make(lengths: Sequence[tuple[int, int]], seed: int = 0) -> Sequences:
        length = torch.tensor([prompt + completion for prompt, completion in lengths])
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(VOCAB, (len(lengths), int(length.max())), generator=generator)
        prompts = torch.tensor([prompt for prompt, _ in lengths])[:, None]
        positions = torch.arange(tokens.shape[1])
        return Sequences(tokens, length, (positions >= prompts) & (positions < length[:, None]))

    return make


@pytest.fixture
def case() -> Callable[[str], Any]:
    """A recorded case by its name."""
    return lambda name: json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
