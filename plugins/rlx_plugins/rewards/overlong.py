"""DAPO's soft penalty of long completions (arXiv 2503.14476, eq. 13), for any algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from rlx_sdk import Config, Sample, reward


class Options(Config):
    """Where it begins and ends."""

    limit: int = Field(ge=1)
    """Tokens from which the penalty is whole, as a rule rollout.max_completion; ``--reward overlong:LIMIT`` sets it."""
    margin: int | None = Field(None, ge=1)
    """Tokens before the limit over which it grows; default: a fifth of the limit."""
    penalty: float = Field(1.0, ge=0)
    """The whole penalty."""

    @field_validator("limit", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return int(value) if isinstance(value, str) and value.isdigit() else value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.margin is not None and self.margin > self.limit:
            raise ValueError(f"margin {self.margin} is above limit {self.limit}: every completion would be punished")
        return self


@reward("overlong", config=Options, argument="limit")
def overlong(samples: Sequence[Sample], options: Options) -> list[float | None]:
    """0, falling to −1 over the last tokens before a limit, overlong:LIMIT."""
    margin = options.margin or max(1, options.limit // 5)
    free = options.limit - margin
    return [None if sample.tokens is None else
            options.penalty * min(0.0, max(-1.0, (free - sample.tokens) / margin)) for sample in samples]


build = overlong.build
