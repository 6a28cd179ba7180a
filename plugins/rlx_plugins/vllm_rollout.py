"""Rollouts with vLLM in the trainer's own process, on its own GPU, with a proof of every weight update."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rlx_plugins.options import VLLMOptions
from rlx_plugins.vllm_engine import Engine, sampling_params
from rlx_sdk import Fingerprint, Generation, InputError, Request, RlxError, RolloutContext, TrainingError

CHUNK = 1 << 24
"""Weights widened to float64 at a time: 128 MiB."""
ROUNDING = 1e-14
"""Of a sum in float64, relative to the sum of sizes, when the order of additions changes."""


class VLLMRollout:
    """Samples with an engine that has its own copy of the weights, made new and proven at every `sync`."""

    exact = False

    def __init__(self, options: VLLMOptions, context: RolloutContext) -> None:
        """Remember the policy's architecture and the names of its weights; the engine starts at the first `sync`."""
        if options.gpu_memory_utilization is not None and context.device == "cpu":
            raise InputError("vllm: gpu_memory_utilization does nothing on a CPU; leave it out. The environment "
                             "variable VLLM_CPU_KVCACHE_SPACE sets the size of the KV cache there, in GiB.")
        if context.device != "cpu" and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise InputError("vllm: with several GPUs it has not been tried yet; use --rollout hf.")
        if hasattr(context.policy, "peft_config"):
            raise InputError("vllm: it cannot take the weights of an adapter (model.lora) yet; use --rollout hf.")
        self._options, self._length, self._stops = options, context.max_length, list(context.stop_token_ids)
        self._device, self._dtype = context.device, getattr(torch, context.dtype)
        self._config = copy.deepcopy(context.policy.config)
        self._config.architectures = [type(context.policy).__name__]
        self._names = {name for name, _ in context.policy.named_parameters()}
        # Under ZeRO-3 a weight holds nothing, and says in ds_numel what it stands for.
        self._size = sum(getattr(weight, "ds_numel", weight.numel()) for weight in context.policy.parameters())
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
                for done in self._engine.step():
                    waiting.remove(done.request_id)
                    yield int(done.request_id), [self._generation(output) for output in done.outputs]
        except Exception as error:  # vLLM's own and all its libraries'
            raise TrainingError(f"vllm failed while it sampled: {type(error).__name__}: {error}") from error
        finally:
            if waiting:
                with contextlib.suppress(Exception):  # of an engine that failed: the first error is the one to tell
                    self._engine.abort(waiting)

    def sync(self, weights: Iterator[tuple[str, Tensor]], version: int) -> Fingerprint:
        """Copy the weights into the engine, and prove that they arrived.

        Raises:
            TrainingError: the engine could not start, or what it holds is not what was sent.
        """
        self._version = None
        if self._engine is None:
            self._engine = self._start()
        sent = _Sums(self._device)
        try:
            self._engine.wake("weights")
            loaded = self._engine.load(self._copies(weights, sent))
        except Exception as error:  # vLLM's own and all its libraries'
            raise TrainingError(f"vllm could not take the weights: {type(error).__name__}: {error}") from error
        found = self._prove(sent, loaded)
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
        if sampling.top_p < 1:
            raise InputError(f"vllm: with top_p = {sampling.top_p} its logprobs would be those of the cut "
                             "distribution, not the policy's; set rollout.top_p = 1, or use --rollout hf.")
        if sampling.temperature < 0.01:
            raise InputError(f"vllm: it samples at temperature 0.01 or above; {sampling.temperature} was asked for.")
        if tokens + sampling.max_tokens > self._length:
            raise InputError(f"vllm: a prompt of {tokens} tokens and {sampling.max_tokens} more do not fit into the "
                             f"model's {self._length}.")

    def _generation(self, output: Any) -> Generation:
        tokens = list(output.token_ids)
        logprobs = [entry[token].logprob for entry, token in zip(output.logprobs, tokens, strict=True)]
        assert self._version is not None
        return Generation(tokens, logprobs, "stop" if output.finish_reason == "stop" else "length", self._version)

    def _start(self) -> Engine:
        try:
            return Engine(self._config, self._device, self._dtype, self._length, size=self._size,
                          eager=self._options.enforce_eager, memory=self._options.gpu_memory_utilization)
        except RlxError:
            raise
        except Exception as error:  # vLLM's own and all its libraries'
            raise TrainingError(f"vllm could not start: {type(error).__name__}: {error}") from error

    def _copies(self, weights: Iterable[tuple[str, Tensor]], sent: _Sums) -> Iterator[tuple[str, Tensor]]:
        """The engine keeps references until a layer is complete, so it is given memory that nobody writes again."""
        for name, weight in weights:
            mine = weight.detach().to(self._device, self._dtype, copy=True)
            sent.add(name, mine)
            yield name, mine

    def _prove(self, sent: _Sums, loaded: set[str]) -> Fingerprint:
        assert self._engine is not None
        held = _Sums(self._device)
        for name, weight in self._engine.parameters():
            held.add(name, weight)
        problems = [*_named("were never sent", self._names - sent.names),
                    *_named("are unknown to the policy", sent.names - self._names),
                    *_named("were not loaded by the engine", held.names - loaded)]
        # Kernels of some CPUs pack a weight and leave an empty one; then the names must do.
        if not held.packed:
            problems += held.differences(sent)
        if not self._engine.forget_prompts():
            problems.append("the cache of old prompts could not be emptied")
        if problems:
            raise TrainingError("vllm does not sample with the current weights: " + "; ".join(problems) + ".")
        total, squares, _ = (sent if held.packed else held).values()
        return Fingerprint(len(sent.names), total, squares)


class _Sums:
    """Σw, Σw² and Σ|w| in float64 over named weights: whatever layers an engine fuses or pads, they stay the same."""

    def __init__(self, device: str) -> None:
        self.names: set[str] = set()
        self.packed = False
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)

    def add(self, name: str, weight: Tensor) -> None:
        """Count one weight."""
        self.names.add(name)
        self.packed |= weight.numel() == 0
        for part in torch.split(weight.detach().reshape(-1), CHUNK):
            wide = part.double()
            self._sums += torch.stack([wide.sum(), wide.dot(wide), wide.abs().sum()])

    def values(self) -> tuple[float, float, float]:
        """Σw, Σw² and Σ|w|."""
        total, squares, size = self._sums.tolist()
        return total, squares, size

    def differences(self, sent: _Sums) -> Iterator[str]:
        """What of it is not as sent, beyond the rounding of additions in another order."""
        (total, squares, _), (sent_total, sent_squares, size) = self.values(), sent.values()
        for what, here, there, scale in (("Σw", total, sent_total, size), ("Σw²", squares, sent_squares, sent_squares)):
            if not abs(here - there) <= ROUNDING * scale:  # also when one is not a number
                yield f"{what} of the engine's weights is {here!r}, of those sent {there!r}"


def _named(problem: str, names: set[str]) -> Iterator[str]:
    if names:
        shown = ", ".join(sorted(names)[:3])
        yield f"{len(names)} weights {problem}: {shown}{', …' if len(names) > 3 else ''}"
