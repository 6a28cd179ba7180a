"""The one place that knows vLLM's calls, of versions 0.20 to 0.32, and what they do beside what they say."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlx_plugins.seeds import spread_seed
from rlx_plugins.vllm_memory import Memory
from rlx_plugins.vllm_sampler import Draw, Record, install
from rlx_plugins.vllm_scheduler import shorten
from rlx_plugins.vllm_weights import keep_weights_summable, load, refusal
from rlx_sdk import InputError, ModelError, Request

CPU_KV_CACHE = 2 << 30
"""Bytes of KV cache on a CPU; vLLM's own VLLM_CPU_KVCACHE_SPACE, in GiB, overrides it."""


class Engine:
    """An engine in this process."""

    def __init__(self, config: Any, device: str, dtype: torch.dtype, length: int, *, eager: bool,
                 memory: Memory) -> None:
        """Start with random weights from the config alone: the first `load` brings the true ones anyway.

        Args:
            config: of the HF model.
            device: where it runs: the CPU, or the current GPU.
            dtype: of weights and activations.
            length: of prompt and completion together, in tokens.
            eager: start without compiling and capturing CUDA graphs, as on a CPU always.
            memory: of the GPU, and how many rows at once.
        """
        self._asleep: set[str] = set()
        self._record: Record | None = None
        self._gpu, self._guest = device != "cpu", torch.distributed.is_initialized()
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")  # else it logs to standard output
        logging.getLogger("vllm").setLevel(logging.ERROR)  # it warns of much that is as it should be
        with _untouched(), _real_stdout(), tempfile.TemporaryDirectory() as folder:
            import vllm

            config.save_pretrained(folder)
            settings, self._sleeps = memory.settings() if self._gpu else (_cpu_memory(), False)
            self._llm = vllm.LLM(
                folder, load_format="dummy", skip_tokenizer_init=True, generation_config="vllm", dtype=dtype,
                max_model_len=length, max_num_seqs=memory.rows, enforce_eager=eager or not self._gpu,
                logprobs_mode="processed_logprobs", **_placement(self._gpu), **settings)
            self._model = self._llm.apply_model(lambda model: model)[0]
            self._draw: Draw | None = self._llm.collective_rpc(lambda worker: install(worker.model_runner))[0]
            shorten(self._llm)
            thread = getattr(getattr(self._llm.llm_engine, "model_executor", None), "async_output_thread", None)
            if self._gpu and thread is not None:  # vLLM 0.20's: it would make itself at home on the first GPU
                thread.submit(torch.cuda.set_device, torch.cuda.current_device()).result()
        problem = refusal(self._model, config.architectures[0], self._gpu)
        if problem:
            self.close()
            raise ModelError(f"vllm {problem}. Use --rollout hf.")

    def add(self, requests: Sequence[Request], settings: Sequence[Any]) -> None:
        """Queue requests under their index.

        If all are samples of training, the logprobs are kept where they are drawn, and vLLM is not asked for them.
        """
        self._record = None
        seeds = [chosen.seed + i for chosen in settings for i in range(chosen.n)]
        plain = all(chosen.temperature and chosen.top_p == 1 and not chosen.top_k for chosen in settings)
        if self._draw is not None and plain and len(set(seeds)) == len(seeds) > 0:
            self._record = self._draw.record = Record(seeds, max(chosen.max_tokens for chosen in settings))
        for i, (request, chosen) in enumerate(zip(requests, settings, strict=True)):
            chosen.logprobs = None if self._record else 0
            self._llm.llm_engine.add_request(str(i), {"prompt_token_ids": list(request.tokens)}, chosen)

    def next_done(self) -> list[Any]:
        """Go on until some request is done; keeping the random generators apart takes as long as many a step."""
        done: list[Any] = []
        with _untouched(), _uncollected():
            while not done:
                done = [output for output in self._llm.llm_engine.step() if output.finished]
        return done

    def logprobs(self, output: Any, seed: int) -> list[float]:
        """Of a completion that is done, by its request's seed."""
        if self._record is None:
            return list(output.logprobs.logprobs)
        return self._record.logprobs(seed + output.index, output.token_ids)

    def end(self, ids: Iterable[str]) -> None:
        """Drop the requests that are not done, and what was kept of the others."""
        self._record = None
        if self._draw is not None:
            self._draw.record = None
        self._llm.llm_engine.abort_request(list(ids))

    def load(self, weights: Iterator[tuple[str, Tensor]]) -> set[str]:
        """Replace all weights; returns the engine's own names of those that it found in what was given."""
        return load(self._model, lambda given: self._llm.collective_rpc(
            "reload_weights", kwargs={"weights_iterator": given}), weights)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """What it holds, by its own names; a tied head comes once."""
        yield from self._model.named_parameters()

    def forget_prompts(self) -> bool:
        """Empty the prefix cache: keys and values of old weights. False if a running request holds on to it."""
        return self._llm.reset_prefix_cache() is True

    def sleep(self) -> bool:
        """Give back weights and KV cache; false where it stays as it is."""
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=2)
            self._asleep = {"weights", "kv_cache"}
        return self._sleeps

    def wake(self, what: str) -> None:
        """Take the memory of ``weights`` or ``kv_cache`` again; its content is lost."""
        if what in self._asleep:
            torch.cuda.empty_cache()  # what training has freed is else not free for others
            self._llm.wake_up(tags=[what])
            self._asleep.discard(what)

    def close(self) -> None:
        """Stop, without destroying a default process group that was there before: the trainer shares it."""
        destroy = torch.distributed.destroy_process_group
        if self._guest:
            torch.distributed.destroy_process_group = lambda group=None: None if group is None else destroy(group)
        try:
            self._llm.llm_engine.engine_core.shutdown()
        finally:
            torch.distributed.destroy_process_group = destroy


def _placement(gpu: bool) -> dict[str, Any]:
    """One engine a rank, in its process and on its GPU; of itself vLLM 0.20 would take another process on a CPU."""
    several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    alone = None if gpu else "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    return {"distributed_executor_backend": "external_launcher" if several else alone}


def _cpu_memory() -> dict[str, Any]:
    """Settings on a CPU. Weights stay unpacked there, so that they can be summed."""
    keep_weights_summable()
    return {"kv_cache_memory_bytes": CPU_KV_CACHE}


def sampling_params(request: Request, stops: list[int]) -> Any:
    """How vLLM is to sample; other ends of a text than the given ids, such as the model's own, do not count.

    At temperature 0 all completions are the same, and it makes only one.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    sampling = request.sampling
    try:
        return SamplingParams(
            n=request.n if sampling.temperature else 1, seed=spread_seed(request.seed), logprobs=0,
            temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k or 0,
            max_tokens=sampling.max_tokens,
            stop_token_ids=stops, ignore_eos=True, detokenize=False, flat_logprobs=True,
            output_kind=RequestOutputKind.FINAL_ONLY)
    except Exception as error:  # its own kind of error for a number out of range
        raise InputError(f"vllm: {error}") from error


def _real_stdout() -> contextlib.AbstractContextManager[Any]:
    """A file as standard output, which vLLM 0.20 takes for granted, also where a notebook or a test keeps its own."""
    try:
        sys.stdout.fileno()
    except (AttributeError, OSError):
        return contextlib.redirect_stdout(sys.__stdout__)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No search for garbage: of the many small objects that a step makes, it would find none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _untouched() -> Iterator[None]:
    """Leave every random generator as it was: vLLM seeds them when it starts and draws from them when it samples."""
    states, threads = (random.getstate(), np.random.get_state()), torch.set_num_threads
    try:
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_num_threads = threads  # vLLM makes it a no-op on a CPU
