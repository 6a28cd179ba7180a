"""Options of the rollout backends, apart from their code: reading options must not load torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlx_sdk import Config


class HFOptions(Config):
    """Memory against speed."""

    batch_tokens: int = Field(131_072, ge=1)
    """Tokens generated side by side: rows times the longest prompt and completion. The KV cache grows with it."""
    enforce_eager: bool = False
    """On a GPU too, use HF's ``generate`` as it is, without CUDA graphs."""


class VLLMOptions(Config):
    """Memory and start-up."""

    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Part of the GPU's memory that vLLM takes while it samples; null: as much as a step's completions need, at most
    most of what the models leave free."""
    kv_cache_gib: float | None = Field(None, gt=0)
    """GiB of KV cache, kept while training too: for a GPU that several processes share."""
    enforce_eager: bool | None = None
    """Start at once, without compiling and capturing CUDA graphs; null: on a CPU, and for runs too short to win the
    minute back."""

    @model_validator(mode="after")
    def _one_says(self) -> Self:
        if self.gpu_memory_utilization is not None and self.kv_cache_gib is not None:
            raise ValueError("gpu_memory_utilization and kv_cache_gib both say how much memory to take; give one")
        return self


class VLLMServerOptions(Config):
    """Which servers, and how long to wait for them."""

    urls: tuple[str, ...] = ()
    """Running servers, each started by ``python -m rlx_plugins.vllm_serve`` on one GPU; default: rlx starts some."""
    gpus: tuple[int, ...] = ()
    """GPUs to start a server on each, as the trainer counts those it sees; it trains on the first, name others. Without
    a GPU one is started."""
    port: int = Field(8765, ge=1024, lt=65_000)
    """Of the first server that rlx starts; the others have the next ones."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Part of the GPU's memory that a server of rlx's takes; default: vLLM's."""
    enforce_eager: bool = False
    """Servers of rlx's start at once, without compiling and capturing CUDA graphs, as on a CPU always."""
    transfer: Literal["nccl", "gloo"] | None = None
    """How weights travel; default: nccl between GPUs, which must be different ones, else gloo through the CPU."""
    timeout: float = Field(120.0, gt=0)
    """Seconds that an update of the weights may take."""
    start_timeout: float = Field(600.0, gt=0)
    """Seconds to wait for servers that do not answer yet."""
