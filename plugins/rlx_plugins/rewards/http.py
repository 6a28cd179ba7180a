"""A reward that is a service: samples go out as JSON, scores come back (`rlx_sdk.wire` is the contract)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from rlx_plugins.rewards.client import Client, ServiceError, ServiceOptions
from rlx_sdk import RewardContext, Sample
from rlx_sdk.scores import ScoreError
from rlx_sdk.wire import dump_samples, read_score


class HttpOptions(ServiceOptions):
    """Where the service is, and how it is asked."""

    url: str
    """Of the service; ``--reward http://…`` sets it."""
    batch: int = Field(8, ge=1)
    """Samples in one request at most."""


class HttpReward:
    """Asks for the scores of some samples a request; what goes wrong is the failure of those samples alone."""

    is_async = True

    def __init__(self, options: HttpOptions, context: RewardContext, **client: Any) -> None:
        """Nothing is asked yet."""
        self._options, self._client = options, Client(options, context.trial, **client)

    async def score(self, samples: Sequence[Sample]) -> list[Any]:
        """The scores, all requests side by side."""
        size = self._options.batch
        parts = [samples[i:i + size] for i in range(0, len(samples), size)]
        return [score for scores in await asyncio.gather(*map(self._ask, parts)) for score in scores]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def _ask(self, samples: Sequence[Sample]) -> list[Any]:
        try:
            scores = self._scores(await self._client.post(self._options.url, dump_samples(samples)), len(samples))
        except ServiceError as error:
            return [ScoreError(str(error))] * len(samples)
        return [read_score(score) for score in scores]

    def _scores(self, answer: bytes, wanted: int) -> list[Any]:
        try:
            scores = json.loads(answer)["scores"]
        except (ValueError, KeyError, TypeError) as error:
            raise ServiceError(f'{self._options.url} answered {answer[:80]!r}; {{"scores": […]}} is wanted') from error
        if not isinstance(scores, list) or len(scores) != wanted:
            got = f"{len(scores)} scores" if isinstance(scores, list) else f"{scores!r:.60}"
            raise ServiceError(f"{self._options.url} answered {got} for {wanted} samples")
        return scores
