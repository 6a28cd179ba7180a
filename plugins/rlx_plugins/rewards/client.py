"""One HTTP client for rewards that are services: bounded concurrency, size and time, retried where that can help."""

from __future__ import annotations

import asyncio
import logging
import os
from urllib.parse import urlsplit

import httpx
from pydantic import Field, field_validator
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from rlx_sdk import Config


class ServiceOptions(Config):
    """How a service is asked."""

    concurrency: int = Field(64, ge=1)
    """Requests in flight at most, for each rank."""
    seconds: float = Field(60.0, gt=0)
    """For one request and its answer."""
    attempts: int = Field(5, ge=1)
    """How often a request is sent at most that gets no answer in time, or the status 500."""
    patience: float = Field(300.0, ge=0)
    """Seconds for which a service is waited for that cannot be reached, or says so (502, 503, 504)."""
    backoff: float = Field(0.5, ge=0)
    """Seconds before the second attempt, up to a random share of them; doubled before each further one, up to 10."""
    max_bytes: int = Field(4_000_000, ge=1)
    """Of an answer."""
    key_variable: str | None = None
    """Environment variable with the key, if the service wants one; the key itself is never written down."""

    @field_validator("url", check_fields=False)
    @classmethod
    def _is_url(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"{value!r} is no URL; write http://HOST:PORT/PATH or https://…")
        if "@" in urlsplit(value).netloc:  # the value is not repeated: it holds a secret
            raise ValueError("the URL holds a user or password, which would stand in spec.yaml; leave it out, put the "
                             "key into an environment variable and name that with key_variable")
        return value


class ServiceError(Exception):
    """A service cannot be used; its text says which and how."""


class _Again(ServiceError):
    """It may work the next time."""


class _Down(_Again):
    """It may work as soon as the service is there again."""


class Client:
    """Posts JSON texts. Its connections belong to the loop that first uses it."""

    def __init__(self, options: ServiceOptions, trial: bool, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Nothing is opened yet; on ``trial`` nothing is tried twice; ``transport`` is for tests."""
        key = os.environ.get(options.key_variable or "")
        self._options, self._trial, self._transport = options, trial, transport
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free = asyncio.Semaphore(options.concurrency)

    async def post(self, url: str, body: str) -> bytes:
        """The answer to a POST.

        Raises:
            ServiceError: no usable answer, after all attempts that can help.
        """
        async with self._free:
            async for attempt in AsyncRetrying(
                    stop=self._gives_up, retry=retry_if_exception_type(_Again), reraise=True,
                    wait=wait_random_exponential(self._options.backoff, 10)):
                with attempt:
                    return await self._once(url, body)
        raise AssertionError("the last attempt returns or raises")

    def _gives_up(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        if self._trial:
            return True
        if not isinstance(error, _Down):
            return state.attempt_number >= self._options.attempts
        if state.attempt_number == 1:
            logging.getLogger("rlx.rewards").warning("%s; it is waited for", error)
        return (state.seconds_since_start or 0.0) >= self._options.patience

    def close(self) -> None:
        """Close the connections, on their loop if that still runs."""
        if self._client is not None and self._loop is not None and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop).result(5)
        self._client = None

    async def _once(self, url: str, body: str) -> bytes:
        if self._client is None:
            self._loop, self._client = asyncio.get_running_loop(), self._open()
        seconds = self._options.seconds
        try:
            async with asyncio.timeout(seconds), self._client.stream("POST", url, content=body) as response:
                answer = await self._bounded(url, response)
        except TimeoutError as error:
            raise _Again(f"{url} gave no answer within {seconds:g} s") from error
        except httpx.TransportError as error:
            raise _Down(f"{url} could not be reached: {type(error).__name__}: {error}") from error
        except httpx.InvalidURL as error:
            raise ServiceError(f"{url} is no URL: {error}") from error
        if response.status_code >= 500:
            kind = _Down if response.status_code in (502, 503, 504) else _Again
            raise kind(f"{url} answered {response.status_code}: {answer[:200]!r}")
        if response.status_code != 200:
            raise ServiceError(f"{url} answered {response.status_code}: {answer[:200]!r}")
        return answer

    def _open(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=self._options.concurrency,
                              max_keepalive_connections=self._options.concurrency)
        return httpx.AsyncClient(timeout=self._options.seconds, limits=limits, transport=self._transport,
                                 headers=self._headers)

    async def _bounded(self, url: str, response: httpx.Response) -> bytes:
        parts, size = [], 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > self._options.max_bytes:
                raise ServiceError(f"{url} answered more than {self._options.max_bytes:,} bytes (max_bytes)")
            parts.append(part)
        return b"".join(parts)
