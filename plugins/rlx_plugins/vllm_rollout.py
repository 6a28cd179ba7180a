"""Rollouts with vLLM in the trainer's own process, on its own GPU, with a proof of every weight update."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rlx.models import plain_model, plain_weights
from rlx_plugins.options import VLLMOptions
from rlx_plugins.vllm_engine import Engine, sampling_params
from rlx_plugins.vllm_memory import MOST_ROWS, Memory, cache_bytes
from rlx_plugins.vllm_weights import Sums, prove
from rlx_sdk import Fingerprint, Generation, InputError, Request, RlxError, RolloutContext, TrainingError

SHORT = 500_000
"""Tokens of a run that compiling and capturing CUDA graphs is not worth: a minute (docs/rollouts.md)."""


class VLLMRollout:
    """Samples with an engine that has its own copy of the weights, made new and proven at every `sync`."""

    exact = False

    def __init__(self, options: VLLMOptions, context: RolloutContext) -> None:
        """Remember the policy's architecture and the names of its weights; the engine starts at the first `sync`."""
        given = options.gpu_memory_utilization or options.kv_cache_gib
        if given is not None and context.device == "cpu":
            raise InputError("vllm: gpu_memory_utilization and kv_cache_gib do nothing on a CPU; leave them out. The "
                             "environment variable VLLM_CPU_KVCACHE_SPACE sets the size of the KV cache there, in GiB.")
        self._stops = list(context.stop_token_ids)
        self._device, self._dtype = context.device, getattr(torch, context.dtype)
        plain, weights = plain_model(context.policy), plain_weights(context.policy)
        self._config = copy.deepcopy(plain.config)
        self._config.architectures = [type(plain).__name__]
        self._names = set(weights)
        # Under ZeRO-3 a weight holds nothing, and says in ds_numel what it stands for.
        size = sum(getattr(weight, "ds_numel", weight.numel()) for weight in weights.values())
        self._length, rows, cache = context.max_length, None, None
        if context.at_once is not None:
            rows, self._length = min(context.at_once[0], MOST_ROWS), min(context.at_once[1], context.max_length)
            cache = cache_bytes(self._config, rows, self._length, self._dtype)
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        later = 0 if context.makes_room else 16 * size // ranks
        self._memory = Memory(options, size * self._dtype.itemsize, later, rows, cache, context.spare)
        short = context.tokens is not None and context.tokens < SHORT
        self._eager = short if options.enforce_eager is None else options.enforce_eager
        self._engine: Engine | None = None
        self._version: int | None = None

    def generate(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Generation]]]:
        """Each request as soon as all its completions are done."""
        for request in requests:
            self._refuse(request)
        if self._engine is None or self._version is None:
            raise TrainingError("vllm: it has no weights; sync comes before generate, and again after release.")
        settings = [sampling_params(request, self._stops) for request in requests]
        waiting = {str(i) for i in range(len(requests))}
        try:
            self._engine.wake("kv_cache")
            self._engine.add(requests, settings)
            while waiting:
                for done in self._engine.next_done():
                    waiting.remove(done.request_id)
                    i = int(done.request_id)
                    drawn = [self._generation(output, self._engine.logprobs(output, settings[i].seed))
                             for output in done.outputs]
                    yield i, drawn * (requests[i].n // len(drawn))
        except RlxError:
            raise
        except Exception as error:  # vLLM's own and all its libraries'
            raise TrainingError(f"vllm failed while it sampled: {type(error).__name__}: {error}") from error
        finally:
            with contextlib.suppress(Exception):  # of an engine that failed: the first error is the one to tell
                self._engine.end(waiting)

    def sync(self, weights: Iterator[tuple[str, Tensor]], version: int) -> Fingerprint:
        """Copy the weights into the engine, and prove that they arrived.

        Raises:
            TrainingError: the engine could not start, or what it holds is not what was sent.
        """
        self._version = None
        if self._engine is None:
            self._engine = self._start()
        sent = Sums()
        try:
            self._engine.wake("weights")
            loaded = self._engine.load(self._copies(weights, sent))
        except Exception as error:  # vLLM's own and all its libraries'
            raise TrainingError(f"vllm could not take the weights: {type(error).__name__}: {error}") from error
        found = prove("vllm", self._names, sent.holding(), Sums(self._engine.parameters()).holding(), loaded,
                      self._engine.forget_prompts())
        self._version = version
        return found

    def release(self) -> None:
        """Give the GPU back, the engine's weights included: the next `sync` brings new ones."""
        if self._engine is not None and self._engine.sleep():
            self._version = None

    def close(self) -> None:
        """Stop the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = self._version = None

    def _refuse(self, request: Request) -> None:
        sampling, tokens = request.sampling, len(request.tokens)
        if 0 < sampling.temperature < 0.01:
            raise InputError(f"vllm: it samples at temperature 0 or from 0.01; {sampling.temperature} was asked for.")
        if tokens + sampling.max_tokens > self._length:
            raise InputError(f"vllm: a prompt of {tokens} tokens and {sampling.max_tokens} more do not fit into the "
                             f"model's {self._length}.")

    def _generation(self, output: Any, logprobs: list[float]) -> Generation:
        assert self._version is not None
        return Generation(list(output.token_ids), logprobs,
                          "stop" if output.finish_reason == "stop" else "length", self._version)

    def _start(self) -> Engine:
        try:
            return Engine(self._config, self._device, self._dtype, self._length, eager=self._eager,
                          memory=self._memory)
        except RlxError:
            raise
        except Exception as error:  # vLLM's own and all its libraries'
            raise TrainingError(f"vllm could not start: {type(error).__name__}: {error}") from error

    def _copies(self, weights: Iterable[tuple[str, Tensor]], sent: Sums) -> Iterator[tuple[str, Tensor]]:
        """The engine keeps references until a layer is complete, so it is given memory that nobody writes again."""
        for name, weight in weights:
            mine = weight.detach().to(self._device, self._dtype, copy=True)
            sent.add(name, mine)
            yield name, mine
