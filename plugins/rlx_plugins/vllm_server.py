"""Rollouts by vLLM servers, on other GPUs or the same machine, with a proof of every weight update."""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch
from torch import Tensor

from rlx.models import plain_weights
from rlx_plugins.options import VLLMServerOptions
from rlx_plugins.vllm_client import HEARTBEAT, IN_FLIGHT, Server, Unreachable
from rlx_plugins.vllm_start import start_servers
from rlx_plugins.vllm_weights import Holding, Sums, prove
from rlx_sdk import Fingerprint, Generation, InputError, Request, RolloutContext, TrainingError


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
        self._servers = [Server(url) for url in options.urls] or start_servers(
            options, context, Path(self._folder.name), self._rank == 0)
        self._ready: list[Server] = []
        self._version, self._closed, self._run = -1, False, secrets.token_hex(8)

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
                server = self._ready[(i + self._rank * len(requests)) % len(self._ready)]
                running[pool.submit(server.complete, requests[i], self._stops, self._version)] = (i, server)

            try:
                for i in range(len(requests)):
                    ask(i)
                while running:
                    done, waiting = wait(running, HEARTBEAT, FIRST_COMPLETED)
                    if self._closed:
                        return
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
            self._await_servers()
        if self._several:  # before a weight is gathered, for which NCCL waits half an hour at the most
            name = [self._run]
            torch.distributed.broadcast_object_list(name)
            self._run = name[0]
        if self._rank == 0:
            found = [self._send(weights, version)]
        else:
            for _ in weights:  # gathering them takes every rank
                pass
        if self._several:
            torch.distributed.broadcast_object_list(found)
        if self._rank:
            self._ready = self._reached()
        assert found[0] is not None
        return found[0]

    def release(self) -> None:
        """Servers keep their memory: the trainer has none of it."""

    def close(self) -> None:
        """End the servers that rlx started, and what is asked of others."""
        self._closed = True
        for server in self._servers:
            server.close()
        self._folder.cleanup()

    def _send(self, weights: Iterator[tuple[str, Tensor]], version: int) -> Fingerprint:
        sent, timeout = Sums(), self._options.timeout
        started = [server.connected(self._backend, self._context.dtype, timeout, self._run) for server in self._ready]
        dtype = getattr(torch, self._context.dtype)
        with ThreadPoolExecutor(len(self._ready)) as pool:
            updates = [pool.submit(server.call, "rlx_update", timeout, version=version) for server in self._ready]
            try:
                for name, weight in weights:
                    mine = weight.detach().to(self._context.device, dtype)
                    sent.add(name, mine)  # on a GPU, which is some ten times as fast at it as a CPU
                    mine = mine if self._backend == "nccl" else mine.cpu()
                    for channel, update in zip(started, updates, strict=True):
                        if update.done():  # before the end: it failed
                            update.result()
                        channel.send(name, mine.contiguous())
                for channel in started:
                    channel.end()
                answers = [update.result() for update in updates]
            except (Unreachable, RuntimeError) as error:
                for channel in started:
                    channel.abort()
                failed = [u.exception() for u in updates if u.done() and u.exception()]
                raise TrainingError(f"vllm_server: the weights could not be sent: {(failed or [error])[0]}") from error
        holding = sent.holding()
        for server, answer in zip(self._ready, answers, strict=True):
            proven = prove(f"vllm_server {server.url}", self._names, holding, Holding(**answer["held"]),
                           set(answer["loaded"]), server.forget(timeout))
        return proven

    @property
    def _backend(self) -> str:
        """NCCL between different GPUs; it refuses two ends on one GPU."""
        return "nccl" if self._context.device != "cpu" and self._options.transfer != "gloo" else "gloo"

    def _await_servers(self) -> None:
        """All servers that answer; at least one, within ``options.start_timeout``."""
        began = time.monotonic()
        while True:
            self._ready = [server for server in self._servers if server.ours() and server.alive()]
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

    def _reached(self) -> list[Server]:
        """The servers that this rank, which sends no weights, can ask."""
        found = [server for server in self._servers if server.alive()]
        if not found:
            raise InputError(f"vllm_server: rank {self._rank} reaches no server at "
                             f"{', '.join(server.url for server in self._servers)}, and rank 0 does. Of several "
                             "machines, start the servers yourself (python -m rlx_plugins.vllm_serve --host ADDRESS …) "
                             "and name them by addresses that all machines reach (rollout.options.urls)")
        return found

    def _refuse(self, request: Request) -> None:
        length = min([self._context.max_length, *(s.max_length for s in self._ready if s.max_length)])
        if 0 < request.sampling.temperature < 0.01:
            raise InputError(f"vllm_server: it samples at temperature 0 or from 0.01; {request.sampling.temperature} "
                             "was asked for.")
        if len(request.tokens) + request.sampling.max_tokens > length:
            raise InputError(f"vllm_server: a prompt of {len(request.tokens)} tokens and {request.sampling.max_tokens} "
                             f"more do not fit into the {length} that it was started for.")

    def _usable(self, server: Server) -> bool:
        if server.holds(self._version, self._run):
            return True
        self._say(f"{server.url} has not the current weights (was it restarted, or taken by another run?); it is left "
                  "out until the next update")
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
