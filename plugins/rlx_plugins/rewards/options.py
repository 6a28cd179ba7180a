"""Options of rewards whose code is heavy, apart from it: reading options must not load torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlx_sdk import Config


class HFOptions(Config):
    """A reward model and how it runs."""

    path: str = Field(min_length=1)
    """HF folder or hub name of a sequence-classification model with one label; ``--reward hf:PATH`` sets it."""
    batch_tokens: int = Field(16_384, ge=1)
    """Tokens scored side by side, padding included."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of its weights; auto is bfloat16 on a GPU and float32 on a CPU."""
    offload: bool = False
    """Keep the model in the CPU's memory while it does not score."""
    max_length: int | None = Field(None, ge=1)
    """Tokens a conversation may have, or the model abstains; default: the model's context."""
    chat_template: str | None = None
    """A Jinja template instead of the model's own."""
    trust_remote_code: bool = False
    """Run Python code from the model's folder."""
