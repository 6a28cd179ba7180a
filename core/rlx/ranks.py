"""The processes of a run, and sums over them."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from rlx.logs import silent_stderr

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among all of a run."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """The one that writes and prints."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's part of something split over all."""
        return items[self.rank :: self.world]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks; the input stays as it was."""
        return self._reduce(tensor, "SUM")

    def max(self, tensor: Tensor) -> Tensor:
        """The largest over ranks; the input stays as it was."""
        return self._reduce(tensor, "MAX")

    def _reduce(self, tensor: Tensor, operation: str) -> Tensor:
        if self.world == 1:
            return tensor
        out = tensor.clone()
        torch.distributed.all_reduce(out, op=getattr(torch.distributed.ReduceOp, operation))
        return out


def start_distributed(device: str) -> Ranks:
    """Join the process group, or make one of this process alone: DeepSpeed needs one in any case."""
    import deepspeed

    # Without a GPU, DeepSpeed would compile a shared-memory op, which needs a compiler; gloo serves as well.
    with silent_stderr():  # the first look at this table tries the linker for every op there is
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not torch.distributed.is_initialized():
        if "RANK" in os.environ:
            deepspeed.init_distributed(dist_backend="nccl" if device.startswith("cuda") else "gloo", verbose=False)
        else:
            store = torch.distributed.HashStore()  # type: ignore[attr-defined]
            backend = "nccl" if device.startswith("cuda") else "gloo"
            torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
            atexit.register(torch.distributed.destroy_process_group)
            os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed insists on it
            deepspeed.init_distributed(dist_backend=backend, verbose=False)
    return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
