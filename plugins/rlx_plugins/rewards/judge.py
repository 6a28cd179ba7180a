"""A language model behind an OpenAI-compatible API scores completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from rlx_plugins.rewards.client import Client, ServiceError, ServiceOptions
from rlx_plugins.rewards.exact_match import compiled, last_match
from rlx_sdk import RewardContext, Sample
from rlx_sdk.scores import ScoreError

TEMPLATE = """\
Judge an answer to a question.

Question:
{prompt}

Answer:
{completion}

How good is the answer, from 0 (useless) to 10 (could not be better)? Think first, then end with: Score: NUMBER"""


class JudgeOptions(ServiceOptions):
    """Which model judges, what it is asked, and how its answer is read."""

    model: str
    """Its name at the service; ``--reward judge:MODEL`` sets it."""
    url: str = "http://localhost:8000/v1"
    """Of the service, up to and with /v1."""
    template: str = TEMPLATE
    """What it is asked: {prompt}, {completion} and the data's columns, such as {ground_truth}, are filled in."""
    system: str | None = None
    """A system message before it."""
    pattern: str = r"[Ss]core:?[\s*]*(-?\d+(?:\.\d+)?)"
    """The number in the last match of this in its answer is the score."""
    low: float = 0.0
    """This score becomes 0,"""
    high: float = 10.0
    """and this one 1; a score outside is a failure."""
    temperature: float = Field(0.0, ge=0)
    """Of its sampling."""
    max_tokens: int = Field(512, ge=1)
    """Of its answer."""
    key_variable: str | None = "OPENAI_API_KEY"
    """Environment variable with the key, if the service wants one; the key itself is never written down."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        compiled(value)
        return value

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        return self


class JudgeReward:
    """One request a completion."""

    is_async = True

    def __init__(self, options: JudgeOptions, context: RewardContext, **client: Any) -> None:
        """Nothing is asked yet."""
        self._options, self._client = options, Client(options, context.trial, **client)

    async def score(self, samples: Sequence[Sample]) -> list[Any]:
        """The judge's scores, all requests side by side."""
        return list(await asyncio.gather(*map(self._ask, samples)))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def _ask(self, sample: Sample) -> float | Exception:
        options = self._options
        try:
            filled = {**sample.row, "prompt": sample.prompt, "completion": sample.completion}
            question = options.template.format_map(filled)
        except (KeyError, IndexError, AttributeError, ValueError) as error:
            return ScoreError(f"its template cannot be filled in: {type(error).__name__}: {error}")
        messages = [{"role": "user", "content": question}]
        if options.system is not None:
            messages.insert(0, {"role": "system", "content": options.system})
        body = json.dumps({"model": options.model, "messages": messages, "temperature": options.temperature,
                           "max_tokens": options.max_tokens})
        url = f"{options.url.rstrip('/')}/chat/completions"
        try:
            answer = await self._client.post(url, body)
            return self._read(json.loads(answer)["choices"][0]["message"]["content"] or "")
        except ServiceError as error:
            return ScoreError(str(error))
        except (ValueError, LookupError, TypeError) as error:
            return ScoreError(f"{url} answered {answer[:80]!r}, which is no chat completion: {error!r:.80}")

    def _read(self, text: str) -> float | Exception:
        found = last_match(self._options.pattern, text)
        if found is None:
            return ScoreError(f"the judge said {text[-80:]!r}, where {self._options.pattern!r} has no match")
        low, high = self._options.low, self._options.high
        try:
            value = float(found)
        except ValueError:
            return ScoreError(f"the judge's score is {found!r:.40}, which is no number")
        if not low <= value <= high:
            return ScoreError(f"the judge's score {value:g} is not within {low:g} and {high:g}")
        return (value - low) / (high - low)
