"""Options of the rollout backends, apart from their code: reading options must not load torch."""

from __future__ import annotations

from pydantic import Field

from rlx_sdk import Config


class HFOptions(Config):
    """Memory against speed."""

    batch_tokens: int = Field(65_536, ge=1)
    """Tokens generated side by side: rows times the longest prompt and completion. The KV cache grows with it."""


class VLLMOptions(Config):
    """Memory and start-up."""

    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Part of the GPU's memory that vLLM takes while it samples; null: most of what the models leave free."""
    enforce_eager: bool | None = None
    """Start at once, without compiling and capturing CUDA graphs; null: on a CPU only. Long runs win the time back."""
