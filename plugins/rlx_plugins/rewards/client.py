"""One HTTP client for rewards that are services: bounded concurrency, size and time, retried where that can help."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx
from pydantic import Field
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from rlx_sdk import Config


class ServiceOptions(Config):
    """How a service is asked."""

    concurrency: int = Field(64, ge=1)
    """Requests in flight at most, for each rank."""
    seconds: float = Field(60.0, gt=0)
    """For one request and its answer."""
    attempts: int = Field(5, ge=1)
    """How often a request is sent at most; again only when the connection failed or the status is 5xx."""
    backoff: float = Field(0.5, ge=0)
    """Seconds before the second attempt, up to a random share of them; doubled before each further one, up to 30."""
    max_bytes: int = Field(4_000_000, ge=1)
    """Of an answer."""


class ServiceError(Exception):
    """A service cannot be used; its text says which and how."""


class _Again(ServiceError):
    """It may work the next time."""


class Client:
    """Posts JSON texts. Its connections belong to the loop that first uses it."""

    def __init__(self, options: ServiceOptions, headers: Mapping[str, str] | None = None,
                 transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Nothing is opened yet; ``transport`` is for tests."""
        self._options, self._headers, self._transport = options, dict(headers or {}), transport
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
                    stop=stop_after_attempt(self._options.attempts), retry=retry_if_exception_type(_Again),
                    wait=wait_random_exponential(self._options.backoff, 30), reraise=True):
                with attempt:
                    return await self._once(url, body)
        raise AssertionError("the last attempt returns or raises")

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
            raise _Again(f"{url} could not be reached: {type(error).__name__}: {error}") from error
        except httpx.InvalidURL as error:
            raise ServiceError(f"{url} is no URL: {error}") from error
        if response.status_code >= 500:
            raise _Again(f"{url} answered {response.status_code}: {answer[:200]!r}")
        if response.status_code != 200:
            raise ServiceError(f"{url} answered {response.status_code}: {answer[:200]!r}")
        return answer

    def _open(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=self._options.concurrency,
                              max_keepalive_connections=self._options.concurrency)
        return httpx.AsyncClient(timeout=self._options.seconds, limits=limits, transport=self._transport,
                                 headers={"Content-Type": "application/json", **self._headers})

    async def _bounded(self, url: str, response: httpx.Response) -> bytes:
        parts, size = [], 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > self._options.max_bytes:
                raise ServiceError(f"{url} answered more than {self._options.max_bytes:,} bytes (max_bytes)")
            parts.append(part)
        return b"".join(parts)
