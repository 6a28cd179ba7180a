"""Rollouts by vLLM servers, on other GPUs or the same machine, with a proof of every weight update."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch
from torch import Tensor

from rlx.models import plain_model, plain_weights
from rlx_plugins.options import VLLMServerOptions
from rlx_plugins.seeds import spread_seed
from rlx_plugins.vllm_serve import PARENT
from rlx_plugins.vllm_weights import Holding, Sums, prove
from rlx_plugins.vllm_worker import Channel
from rlx_sdk import Fingerprint, Generation, InputError, ModelError, Request, RolloutContext, TrainingError

HEARTBEAT = 5.0
"""Seconds in which a server that is asked must answer, and between looks at one that is sampling."""
IN_FLIGHT = 256
"""Requests under way, of one rank; the servers queue and batch them."""


class Unreachable(Exception):
    """A server that does not answer, or no longer."""


class Server:
    """One server: its address, and the process if rlx started it."""

    def __init__(self, url: str, process: subprocess.Popen[bytes] | None = None, log: Path | None = None) -> None:
        """Connect nothing yet."""
        self.url, self.process, self.log = url.rstrip("/"), process, log
        self.channel: Channel | None = None
        self.max_length = 0
        limits = httpx.Limits(max_connections=IN_FLIGHT, max_keepalive_connections=IN_FLIGHT)
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
            answer = self._http.post(path, json=body, timeout=httpx.Timeout(seconds, connect=HEARTBEAT))
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        if answer.is_error:
            kind = InputError if answer.is_client_error else TrainingError
            raise kind(f"vllm_server {self.url} answers {path} with {answer.status_code}: {answer.text[:500]}")
        return answer.json()

    def call(self, method: str, within: float, **arguments: Any) -> dict[str, Any]:
        """Call a function of `rlx_plugins.vllm_worker.RlxWorker`."""
        body = {"method": method, "kwargs": arguments, "timeout": within}
        results = self.post("/collective_rpc", body, within)["results"]
        if len(results) != 1:
            raise InputError(f"vllm_server {self.url} splits its model over {len(results)} GPUs; rlx updates servers "
                             "of one GPU each: start several")
        found: dict[str, Any] = results[0]
        return found

    def alive(self) -> bool:
        """Whether it answers."""
        try:
            return self._http.get("/health").is_success
        except httpx.HTTPError:
            return False

    def holds(self, version: int) -> bool:
        """Whether it answers and has the weights of that version."""
        try:
            return bool(self.call("rlx_version", HEARTBEAT)["version"] == version)
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
        """End it, if rlx started it."""
        self._http.close()
        self.channel = None
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._end_children()

    def _end_children(self) -> None:
        """A server that was killed leaves its engine behind, with the GPU's memory."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


class VLLMServerRollout:
    """Samples with servers whose weights are replaced, and proven, at every `sync`.

    Rank 0 starts servers and sends weights; every rank asks all servers, for its own prompts.
    """

    exact = False

    def __init__(self, options: VLLMServerOptions, context: RolloutContext) -> None:
        """Start servers, if none are named; they load while the trainer does."""
        self._options, self._context, self._stops = options, context, list(context.stop_token_ids)
        distributed = torch.distributed.is_initialized()
        self._rank, self._several = (torch.distributed.get_rank() if distributed else 0,
                                     distributed and torch.distributed.get_world_size() > 1)
        self._names = set(plain_weights(context.policy))
        self._folder = tempfile.TemporaryDirectory(prefix="rlx-vllm-")
        self._servers = [Server(url) for url in options.urls] or self._start()
        self._ready: list[Server] = []
        self._version = -1

    def generate(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Generation]]]:
        """Each request as soon as it is answered; those of a server that dies go to the others."""
        for request in requests:
            self._refuse(request)
        self._ready = [server for server in self._ready if self._usable(server)]
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            running: dict[Future[list[Generation]], tuple[int, Server]] = {}

            def ask(i: int) -> None:
                if not self._ready:
                    raise TrainingError("vllm_server: no server is left: " + "; ".join(self._state(s)
                                                                                      for s in self._servers))
                server = self._ready[i % len(self._ready)]
                running[pool.submit(self._complete, server, requests[i])] = (i, server)

            try:
                for i in range(len(requests)):
                    ask(i)
                while running:
                    done, waiting = wait(running, HEARTBEAT, FIRST_COMPLETED)
                    if not done:
                        for server in {running[one][1] for one in waiting}:
                            if not server.alive():
                                self._lost(server, "does not answer any more")
                    for one in list(running):
                        i, server = running[one]
                        lost = server not in self._ready
                        if one.done() and not isinstance(one.exception(), Unreachable):
                            del running[one]
                            yield i, one.result()
                        elif one.done() or lost:
                            self._lost(server, str(one.exception()) if one.done() else "")
                            del running[one]
                            ask(i)
            finally:
                for one in running:
                    one.cancel()
                pool.shutdown(wait=False, cancel_futures=True)

    def sync(self, weights: Iterator[tuple[str, Tensor]], version: int) -> Fingerprint:
        """Send the weights to every server that answers, and prove that they arrived.

        Raises:
            TrainingError: no server answers, or what one holds is not what was sent.
        """
        self._version = version
        found: list[Fingerprint | None] = [None]
        if self._rank == 0:
            found = [self._send(weights, version)]
        else:
            for _ in weights:  # gathering them takes every rank
                pass
        if self._several:
            torch.distributed.broadcast_object_list(found)
            self._ready = [server for server in self._servers if server.alive()] if self._rank else self._ready
        assert found[0] is not None
        return found[0]

    def release(self) -> None:
        """Servers keep their memory: the trainer has none of it."""

    def close(self) -> None:
        """End the servers that rlx started."""
        for server in self._servers:
            server.close()
        self._folder.cleanup()

    def _send(self, weights: Iterator[tuple[str, Tensor]], version: int) -> Fingerprint:
        self._await_servers()
        sent, started = Sums(), [self._connected(server) for server in self._ready]
        dtype, device = getattr(torch, self._context.dtype), self._context.device
        with ThreadPoolExecutor(len(self._ready)) as pool:
            updates = [pool.submit(server.call, "rlx_update", self._options.timeout, version=version)
                       for server in self._ready]
            try:
                for name, weight in weights:
                    mine = weight.detach().to(device if self._backend == "nccl" else "cpu", dtype)
                    sent.add(name, mine)
                    for channel, update in zip(started, updates, strict=True):
                        if update.done():  # before the end: it failed
                            update.result()
                        channel.send(name, mine.contiguous())
                for channel in started:
                    channel.end()
                answers = [update.result() for update in updates]
            except (Unreachable, RuntimeError) as error:
                failed = [u.exception() for u in updates if u.done() and u.exception()]
                raise TrainingError(f"vllm_server: the weights could not be sent: {(failed or [error])[0]}") from error
        holding = sent.holding()
        for server, answer in zip(self._ready, answers, strict=True):
            forgotten = server.post("/reset_prefix_cache", {}, self._options.timeout)
            proven = prove(f"vllm_server {server.url}", self._names, holding, Holding(**answer["held"]),
                           set(answer["loaded"]), forgotten.get("success", True) is True)
        return proven

    @property
    def _backend(self) -> str:
        """NCCL between different GPUs; it refuses two ends on one GPU."""
        return "nccl" if self._context.device != "cpu" and self._options.transfer != "gloo" else "gloo"

    def _await_servers(self) -> None:
        """All servers that answer; at least one, within ``options.start_timeout``."""
        began = time.monotonic()
        while True:
            self._ready = [server for server in self._servers if server.alive()]
            missing = [server for server in self._servers if server not in self._ready]
            starting = [s for s in missing if s.process is not None and s.process.poll() is None]
            if self._ready and not starting:
                for server in missing:
                    self._say(f"{server.url} does not answer; going on without it")
                return
            ended = next((said for server in missing if (said := server.ended())), None)
            if ended or time.monotonic() - began > self._options.start_timeout:
                raise TrainingError("vllm_server: " + (ended or "no answer within "
                                    f"{self._options.start_timeout:.0f} s: " + ", ".join(s.url for s in missing)))
            time.sleep(0.5)

    def _connected(self, server: Server) -> Channel:
        """The way to a server; a new one where it has lost the old one, as after a restart."""
        if server.channel is not None and server.call("rlx_version", HEARTBEAT)["version"] >= 0:
            return server.channel
        host, timeout = _own_address(server.url), self._options.timeout
        channel = Channel(host, 0, 0, self._backend, timeout)
        about = server.call("rlx_connect", timeout, host=host, port=channel.store.port, backend=self._backend,
                            seconds=timeout)
        if about["refusal"]:
            raise ModelError(f"vllm {about['refusal']}. Use --rollout hf.")
        for what, is_, wanted in (("logprobs_mode", about["logprobs_mode"], "processed_logprobs"),
                                  ("dtype", about["dtype"], self._context.dtype)):
            if is_ != wanted:
                raise InputError(f"vllm_server {server.url} runs with {what} = {is_}, and the policy needs {wanted}: "
                                 f"start it by python -m rlx_plugins.vllm_serve … --{what.replace('_', '-')} {wanted}")
        server.channel, server.max_length = channel, about["max_length"]
        return channel

    def _complete(self, server: Server, request: Request) -> list[Generation]:
        sampling = request.sampling
        body = {"model": "rlx", "prompt": list(request.tokens), "n": request.n if sampling.temperature else 1,
                "seed": spread_seed(request.seed), "temperature": sampling.temperature, "top_p": sampling.top_p,
                "top_k": sampling.top_k or 0, "max_tokens": sampling.max_tokens, "logprobs": 0,
                "return_token_ids": True, "return_tokens_as_token_ids": True, "stop_token_ids": self._stops,
                "ignore_eos": True, "skip_special_tokens": False}
        answer = server.post("/v1/completions", body, None)
        drawn = [Generation(choice["token_ids"], choice["logprobs"]["token_logprobs"],
                            "stop" if choice["finish_reason"] == "stop" else "length", self._version)
                 for choice in sorted(answer["choices"], key=lambda c: c["index"])]
        return drawn * (request.n // len(drawn))

    def _refuse(self, request: Request) -> None:
        length = min([self._context.max_length, *(s.max_length for s in self._ready if s.max_length)])
        if 0 < request.sampling.temperature < 0.01:
            raise InputError(f"vllm_server: it samples at temperature 0 or from 0.01; {request.sampling.temperature} "
                             "was asked for.")
        if len(request.tokens) + request.sampling.max_tokens > length:
            raise InputError(f"vllm_server: a prompt of {len(request.tokens)} tokens and {request.sampling.max_tokens} "
                             f"more do not fit into the {length} that it was started for.")

    def _usable(self, server: Server) -> bool:
        if server.holds(self._version):
            return True
        self._say(f"{server.url} has not the current weights (was it restarted?); it is left out until the next update")
        return False

    def _lost(self, server: Server, why: str) -> None:
        if server in self._ready:
            self._ready.remove(server)
            self._say(f"{server.url} is lost ({server.ended() or why}); its prompts go to the others")

    def _state(self, server: Server) -> str:
        return f"{server.url} " + (server.ended() or ("answers, but has not the current weights" if server.alive()
                                                      else "does not answer"))

    def _say(self, text: str) -> None:
        print(f"vllm_server: {text}", file=sys.stderr)

    def _start(self) -> list[Server]:
        """A server a GPU of ``options.gpus``, or one on this machine's CPU."""
        gpus: list[int | None] = [*self._options.gpus] or [None]
        if None in gpus and self._context.device != "cpu":
            raise InputError("vllm_server: name running servers (rollout.options.urls), or the GPUs to start some on "
                             "(rollout.options.gpus)")
        servers = [f"http://127.0.0.1:{self._options.port + i}" for i in range(len(gpus))]
        if self._rank:
            return [Server(url) for url in servers]
        config = copy.deepcopy(plain_model(self._context.policy).config)
        config.architectures = [type(plain_model(self._context.policy)).__name__]
        config.save_pretrained(self._folder.name)
        return [self._started(url, gpu) for url, gpu in zip(servers, gpus, strict=True)]

    def _started(self, url: str, gpu: int | None) -> Server:
        port = urlsplit(url).port
        with contextlib.closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                raise InputError(f"vllm_server: something listens at {url} already; name it with rollout.options.urls, "
                                 "or choose another rollout.options.port")
        log = Path(self._folder.name) / f"server-{port}.log"
        options, memory = [], self._options.gpu_memory_utilization
        if memory is not None:
            options += ["--gpu-memory-utilization", str(memory)]
        if self._options.enforce_eager or gpu is None:
            options += ["--enforce-eager"]
        command = [sys.executable, "-m", "rlx_plugins.vllm_serve", "--model", self._folder.name, "--port", str(port),
                   "--dtype", self._context.dtype, "--max-model-len", str(self._context.max_length), *options]
        own = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER)}
        visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
        with log.open("wb") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
                                       start_new_session=True, env={**own, **visible, PARENT: str(os.getpid())})
        return Server(url, process, log)


_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "OMP_NUM_THREADS")
"""What a launcher tells the trainer's processes: not for others."""


def _own_address(url: str) -> str:
    """The address of this machine under which a server can reach it."""
    host = urlsplit(url).hostname or "127.0.0.1"
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect((host, 9))  # sends nothing
        address: str = probe.getsockname()[0]
        return address
