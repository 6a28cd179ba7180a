"""The base of every plugin's options."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Options of a plugin: unknown names and wrong types are errors, and nothing changes after the start.

    Give every field a default and a ``Field(description=…)``: ``rlx show NAME`` prints both.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False,
                              use_attribute_docstrings=True)
