"""What a vLLM server needs of rlx, loaded into its worker: it takes the policy's weights and says what it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from rlx_plugins.vllm_sampler import install
from rlx_plugins.vllm_weights import Sums, keep_weights_summable, load, refusal

END = "null"
"""In place of a weight's description: all have been sent."""

if not torch.cuda.is_available():
    keep_weights_summable()

distributed: Any = torch.distributed
"""Its types say less than it has."""


class Channel:
    """Carries tensors from the trainer (rank 0) to one worker (rank 1): NCCL between two GPUs, else gloo."""

    def __init__(self, host: str, port: int, rank: int, backend: str, seconds: float) -> None:
        """Meet the other side; the trainer listens, at any free port if it is given 0."""
        wait = timedelta(seconds=seconds)
        self.store = distributed.TCPStore(host, port, is_master=rank == 0, wait_for_workers=False, timeout=wait)
        self._rank, self._backend, self._wait, self.number = rank, backend, wait, 0
        self._group: Any = None

    def send(self, name: str, weight: Tensor) -> None:
        """Give the worker one weight, on the device that the backend wants."""
        described = [name, str(weight.dtype).removeprefix("torch."), list(weight.shape)]
        self.store.set(str(self.number), json.dumps(described))
        self._broadcast(weight)

    def end(self) -> None:
        """All have been sent."""
        self.store.set(str(self.number), END)
        self.number += 1

    def abort(self) -> None:
        """Give up what is on its way, as the other side is gone: NCCL would have the GPU wait for it."""
        if self._group is not None and self._backend == "nccl":
            self._group.abort()

    def receive(self, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """The weights of one update, in memory of their own."""
        place = device if self._backend == "nccl" else torch.device("cpu")
        while (described := self._described()) != END:
            name, dtype, shape = json.loads(described)
            weight = torch.empty(shape, dtype=getattr(torch, dtype), device=place)
            self._broadcast(weight)
            yield name, weight.to(device)
        self.number += 1

    def _described(self) -> str:
        found: bytes = self.store.get(str(self.number))
        self.store.delete_key(str(self.number))
        return found.decode()

    def _broadcast(self, weight: Tensor) -> None:
        if self._group is None:  # both sides make it with the first weight
            self._group = self._connect()
        self._group.broadcast(weight, 0).wait()
        self.number += 1

    def _connect(self) -> Any:
        store = distributed.PrefixStore(self._backend, self.store)
        if self._backend == "nccl":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = self._wait
            return distributed.ProcessGroupNCCL(store, self._rank, 2, options)
        return distributed.ProcessGroupGloo(store, self._rank, 2, self._wait)


class RlxWorker:
    """Mixed into vLLM's own worker (``--worker-extension-cls``); called over HTTP by the trainer."""

    model_runner: Any
    vllm_config: Any
    reload_weights: Any
    rlx_channel: Channel | None = None
    rlx_held: int = -1
    rlx_run: str = ""

    def rlx_connect(self, host: str, port: int, backend: str, seconds: float, run: str) -> dict[str, Any]:
        """Meet the trainer, whose run it serves from now on; what of this server it must know."""
        install(self.model_runner)
        self.rlx_channel, self.rlx_held, self.rlx_run = Channel(host, port, 1, backend, seconds), -1, run
        config, model, device = self.vllm_config.model_config, self.model_runner.model, self.model_runner.device
        return {"max_length": config.max_model_len, "logprobs_mode": str(getattr(config.logprobs_mode, "value",
                                                                                 config.logprobs_mode)),
                "dtype": str(config.dtype).removeprefix("torch."), "device": str(device),
                "refusal": refusal(model, config.hf_config.architectures[0], device.type == "cuda")}

    def rlx_version(self) -> dict[str, Any]:
        """The version of the weights it holds, -1 before the first update, as after a restart; and whose they are."""
        return {"version": self.rlx_held, "run": self.rlx_run}

    def rlx_update(self, version: int) -> dict[str, Any]:
        """Take all weights from the trainer; what was received, what is held now, and which names were loaded."""
        assert self.rlx_channel is not None
        self.rlx_held, sums, model = -1, Sums(), self.model_runner.model

        def counted(weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
            for name, weight in weights:
                sums.add(name, weight)
                yield name, weight

        arriving = counted(self.rlx_channel.receive(self.model_runner.device))
        loaded = load(model, lambda weights: self.reload_weights(weights_iterator=weights), arriving)
        for _ in arriving:  # what the engine did not ask for, so that the sender comes to its end
            pass
        self.rlx_held = version
        return {"received": asdict(sums.holding()), "held": asdict(Sums(model.named_parameters()).holding()),
                "loaded": sorted(loaded)}
