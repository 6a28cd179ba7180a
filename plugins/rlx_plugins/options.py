"""Options of the rollout backends, apart from their code: reading options must not load torch."""

from __future__ import annotations

from pydantic import Field

from rlx_sdk import Config


class HFOptions(Config):
    """Memory against speed."""

    batch_tokens: int = Field(65_536, ge=1)
    """Tokens generated side by side: rows times the longest prompt and completion. The KV cache grows with it."""
