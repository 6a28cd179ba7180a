"""``rlx serve-reward``: any installed reward as an HTTP service. `rlx_sdk.wire` is what it reads and writes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rlx.functions import find_reward
from rlx.plan import validated
from rlx.registry import Entry, Registry, stdout_to_stderr
from rlx_sdk import PluginError, Reward, RewardContext, Sample, Score
from rlx_sdk.scores import ScoreError, check_scores
from rlx_sdk.wire import dump_scores, load_samples

MAX_BYTES = 64_000_000
"""Of a request."""


class Service:
    """An ASGI application: POST samples, get scores; GET says what it is.

    A plain reward is called on the event loop's thread, which is the main one, so that signals work; it then answers
    one request at a time. Answers to ``async`` ones overlap.
    """

    def __init__(self, entry: Entry, reward: Reward) -> None:
        """Serve a built reward."""
        self._entry, self._reward = entry, reward

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]],
                       send: Callable[[Any], Awaitable[None]]) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        status, answer = 200, json.dumps({"name": self._entry.name, "package": self._entry.package,
                                          "version": self._entry.version})
        if scope["method"] == "POST":
            try:
                answer = dump_scores(await self._scores(load_samples(await _body(receive))))
            except ValueError as error:
                status, answer = 400, json.dumps({"error": str(error)})
        await send({"type": "http.response.start", "status": status,
                    "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": answer.encode()})

    async def _scores(self, samples: Sequence[Sample]) -> Sequence[Score | Exception | None]:
        """After a call that raised, each sample alone, so that only the bad one fails."""
        try:
            with stdout_to_stderr():
                returned: Any = self._reward.score(samples)
                return check_scores(await returned if inspect.isawaitable(returned) else returned, len(samples))
        except ScoreError as error:
            return [error] * len(samples)
        except Exception as error:  # a stranger's code
            if len(samples) == 1:
                return [error]
            return [score for sample in samples for score in await self._scores([sample])]


async def _body(receive: Callable[[], Awaitable[Any]]) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
        if len(body) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES:,} bytes; send fewer samples a request")
    return body


def service(name: str, options: dict[str, Any], device: str = "cpu") -> Service:
    """The service of the reward of that name.

    Raises:
        PluginError: there is none, or it cannot be built.
        SpecError: its options are wrong.
    """
    entry, own = find_reward(Registry.discover(), name)
    chosen = validated(entry.call("config"), {**options, **own})
    return Service(entry, entry.call("build", chosen, RewardContext(device)))


def serve(name: str, options: dict[str, Any], host: str, port: int, device: str) -> None:
    """Serve until interrupted.

    Raises:
        PluginError: uvicorn is not installed.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise PluginError("serving needs the package 'uvicorn', which is not installed: pip install 'rlx[serve]'"
                          ) from error
    uvicorn.run(service(name, options, device), host=host, port=port, lifespan="off", log_level="warning")
