"""One vLLM server as the trainer sees it: asked over HTTP, given weights through a `Channel`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import httpx

from rlx_plugins.seeds import spread_seed
from rlx_plugins.vllm_serve import FORGET
from rlx_plugins.vllm_worker import Channel
from rlx_sdk import Generation, InputError, ModelError, Request, TrainingError

HEARTBEAT = 5.0
"""Seconds in which a server that is asked must answer, and between looks at one that is sampling."""
IN_FLIGHT = 256
"""Requests under way, of one rank; the servers queue and batch them."""


class Unreachable(Exception):
    """A server that does not answer, or no longer."""


class Server:
    """One server: its address, and the process if rlx started it."""

    def __init__(self, url: str, process: subprocess.Popen[bytes] | None = None, log: Path | None = None,
                 claim: socket.socket | None = None) -> None:
        """Connect nothing yet; a claim keeps its port for it."""
        self.url, self.process, self.log, self._claim = url.rstrip("/"), process, log, claim
        self.channel: Channel | None = None
        self.max_length = 0
        limits = httpx.Limits(max_keepalive_connections=IN_FLIGHT)  # a look at it must not wait for its completions
        self._sockets = WeakSet[socket.socket]()
        self._http = httpx.Client(base_url=self.url, timeout=HEARTBEAT, limits=limits, trust_env=False,
                                  transport=httpx.HTTPTransport(retries=2, limits=limits))

    def post(self, path: str, body: Any, seconds: float | None) -> Any:
        """The answer to a call.

        Raises:
            Unreachable: there is none within the time.
            InputError: the server refuses the call.
            TrainingError: it failed at it.
        """
        try:
            answer = self._http.post(path, json=body, timeout=httpx.Timeout(seconds, connect=HEARTBEAT),
                                     extensions={"trace": self._connected})
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        with contextlib.suppress(ValueError):  # no JSON
            if answer.is_success:
                return answer.json()
        said = f"vllm_server {self.url} answers {path} with {answer.status_code}: {answer.text[:500]}"
        if answer.is_success or answer.status_code == httpx.codes.NOT_FOUND:
            raise InputError(f"{said}. Start it by python -m rlx_plugins.vllm_serve, of the same rlx")
        raise (InputError if answer.is_client_error else TrainingError)(said)

    def call(self, method: str, within: float, **arguments: Any) -> dict[str, Any]:
        """Call a function of `rlx_plugins.vllm_worker.RlxWorker`."""
        body = {"method": method, "kwargs": arguments, "timeout": within}
        results = self.post("/collective_rpc", body, within)["results"]
        if len(results) != 1:
            raise InputError(f"vllm_server {self.url} splits its model over {len(results)} GPUs; rlx updates servers "
                             "of one GPU each: start several")
        found: dict[str, Any] = results[0]
        return found

    def forget(self, seconds: float) -> bool:
        """Empty its prefix cache: keys and values of old weights. False if a running request holds on to it."""
        return self.post(FORGET, {}, seconds)["forgotten"] is True

    def connected(self, backend: str, dtype: str, seconds: float, run: str) -> Channel:
        """The way to it; a new one where it has lost the old one, as after a restart.

        Raises:
            ModelError: the policy's samples could not be trusted there.
            InputError: it runs with other settings than the trainer needs, or has been taken by another run.
        """
        if self.channel is not None:
            held = self.call("rlx_version", HEARTBEAT)
            if held["run"] not in ("", run):
                raise InputError(f"vllm_server {self.url} was taken by another run; give each run servers of its own "
                                 "(rollout.options.urls, or another rollout.options.port)")
            if held["version"] >= 0:
                return self.channel
        host = _own_address(self.url)
        channel = Channel(host, 0, 0, backend, seconds)
        about = self.call("rlx_connect", seconds, host=host, port=channel.store.port, backend=backend, seconds=seconds,
                          run=run)
        if about["refusal"]:
            raise ModelError(f"vllm {about['refusal']}. Use --rollout hf.")
        for what, is_, wanted in (("logprobs_mode", about["logprobs_mode"], "processed_logprobs"),
                                  ("dtype", about["dtype"], dtype)):
            if is_ != wanted:
                raise InputError(f"vllm_server {self.url} runs with {what} = {is_}, and the policy needs {wanted}: "
                                 f"start it by python -m rlx_plugins.vllm_serve … --{what.replace('_', '-')} {wanted}")
        self.channel, self.max_length = channel, about["max_length"]
        return channel

    def complete(self, request: Request, stops: Sequence[int], version: int) -> list[Generation]:
        """All completions of a request, drawn from the weights of that version."""
        sampling = request.sampling
        body = {"model": "rlx", "prompt": list(request.tokens), "n": request.n if sampling.temperature else 1,
                "seed": spread_seed(request.seed), "temperature": sampling.temperature, "top_p": sampling.top_p,
                "top_k": sampling.top_k or 0, "max_tokens": sampling.max_tokens, "logprobs": 0,
                "return_token_ids": True, "return_tokens_as_token_ids": True, "stop_token_ids": list(stops),
                "ignore_eos": True, "skip_special_tokens": False}
        answer = self.post("/v1/completions", body, None)
        drawn = [Generation(choice["token_ids"], choice["logprobs"]["token_logprobs"],
                            "stop" if choice["finish_reason"] == "stop" else "length", version)
                 for choice in sorted(answer["choices"], key=lambda c: c["index"])]
        return drawn * (request.n // len(drawn))

    def ours(self) -> bool:
        """Whether nobody else can have its address: its process, if rlx started one, is still there."""
        return self.process is None or self.process.poll() is None

    def alive(self) -> bool:
        """Whether it answers."""
        try:
            return self._http.get("/health").is_success
        except httpx.HTTPError:
            return False

    def holds(self, version: int, run: str) -> bool:
        """Whether it answers and has the weights of that version of that run."""
        try:
            return self.call("rlx_version", HEARTBEAT) == {"version": version, "run": run}
        except (Unreachable, TrainingError):
            return False

    def ended(self) -> str | None:
        """How a process of rlx's own ended, with the end of its log."""
        if self.process is None or self.log is None:
            return None
        try:
            self.process.wait(1.0)  # its connections close a moment before it is gone
        except subprocess.TimeoutExpired:
            return None
        self._end_children()
        last = self.log.read_text(errors="replace").strip().splitlines()[-15:]
        return f"its process ended with exit code {self.process.returncode}:\n" + "\n".join(last)

    def close(self) -> None:
        """End it, if rlx started it, and calls under way: nobody waits for them, and it samples no further."""
        for one in [*self._sockets]:
            with contextlib.suppress(OSError):  # closed already
                one.shutdown(socket.SHUT_RDWR)
        self._http.close()
        self.channel = None
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._end_children()
        if self._claim is not None:
            self._claim.close()

    def _connected(self, event: str, about: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._sockets.add(about["return_value"].get_extra_info("socket"))

    def _end_children(self) -> None:
        """A server that was killed leaves its engine behind, with the GPU's memory."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _own_address(url: str) -> str:
    """The address of this machine under which a server can reach it."""
    host = urlsplit(url).hostname or "127.0.0.1"
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect((host, 9))  # sends nothing
        address: str = probe.getsockname()[0]
        return address
