"""The processes of a run, and what they tell each other."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import random
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rlx.launch import place_of
from rlx.logs import silent_stderr
from rlx_sdk import RunError, SpecError

T = TypeVar("T")
WAITED = "a rank waited longer than run.stuck_after for another: raise it, or prepare long data before, by rlx check"
GRACE = 60
"""Seconds that ranks wait for one that is at work beyond ``run.stuck_after``, whose stacks come first."""


@dataclass(frozen=True)
class Ranks:
    """This process among all of a run, and among those of its machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1

    @property
    def first(self) -> bool:
        """The one that writes and prints."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's stretch of something split over all: put together in rank order they are the whole again."""
        begin, end = (len(items) * rank // self.world for rank in (self.rank, self.rank + 1))
        return items[begin:end]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks; the input stays as it was."""
        if self.world == 1:
            return tensor
        out = tensor.clone()
        torch.distributed.all_reduce(out)
        return out

    def gather(self, value: T) -> list[T]:
        """What every rank has, in rank order, on every rank.

        Raises:
            RunError: another was too long at its work.
        """
        if self.world == 1:
            return [value]
        found: list[T] = [value] * self.world
        try:
            torch.distributed.all_gather_object(found, value)
        except RuntimeError as error:
            raise (RunError(WAITED) if "Timed out waiting" in str(error) else error) from None
        return found

    def first_does(self, work: Callable[[], T]) -> T:
        """Rank 0 works, all get the result."""
        return self.gather(work() if self.first else None)[0]  # type: ignore[return-value]

    def agree(self, facts: Mapping[str, object], fix: str) -> None:
        """The same holds on every rank.

        Raises:
            SpecError: the first fact of rank 0's that does not, where, and the fix.
        """
        found = self.gather(facts)
        for name, ours in found[0].items():
            if odd := [rank for rank, its in enumerate(found) if its.get(name) != ours]:
                raise SpecError([f"{name}: {ours!r} on rank 0, {found[odd[0]].get(name)!r} on ranks {odd}; {fix}"])

    @contextlib.contextmanager
    def one_a_machine_first(self) -> Iterator[None]:
        """One rank of each machine does it, then the others, which find its files."""
        if self.local_rank:
            self.gather(None)
        yield
        if not self.local_rank:
            self.gather(None)


def start_distributed(patience: float = 7200) -> Ranks:
    """Join the processes a launcher started, or make a group of this one alone: DeepSpeed needs one in any case.

    Args:
        patience: seconds that ranks wait for one that is at work, say on a slow reward; a dead one is noticed at once.
    """
    import deepspeed

    # Without a GPU, DeepSpeed would compile a shared-memory op, which needs a compiler; gloo serves as well.
    with silent_stderr():  # the first look at this table tries the linker for every op there is
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    _import_muon()
    place, gpu = place_of(os.environ), torch.cuda.is_available()
    ranks = Ranks(place.rank, place.world, place.local_rank, place.local_world)
    if gpu:
        seen = torch.cuda.device_count()
        index = 0 if seen == 1 else place.local_rank  # some launchers show each process its own GPU only
        if index >= seen:
            raise SpecError([f"{place.local_world} processes on this machine, and {seen} GPUs"])
        torch.cuda.set_device(index)
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans for each new shape, which takes longer than a pass
        place = place._replace(local_rank=index)
    if not torch.distributed.is_initialized():
        os.environ |= place.environment()  # DeepSpeed insists on finding it there
        store = torch.distributed.HashStore() if ranks.world == 1 else None  # type: ignore[attr-defined]
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", store=store, rank=ranks.rank,
                                             world_size=ranks.world, timeout=timedelta(seconds=patience + GRACE))
        atexit.register(_leave)
        deepspeed.init_distributed(dist_backend="nccl" if gpu else "gloo", verbose=False)
    if ranks.world > 1:
        _divide(ranks, torch.cuda.get_device_properties(place.local_rank).uuid if gpu else None)
    return ranks


def _divide(ranks: Ranks, gpu: object) -> None:
    """The cores among those that share them, as launchers give each process one thread, or all; GPUs are not shared."""
    host, cores = socket.gethostname(), os.sched_getaffinity(0)
    here = [(its, other) for name, its, other in ranks.gather((host, cores, gpu and str(gpu))) if name == host]
    torch.set_num_threads(max(1, len(cores) // sum(bool(cores & its) for its, _ in here)))
    if gpu and [other for _, other in here].count(str(gpu)) > 1:
        raise SpecError([f"several processes of {host} have the same GPU ({gpu}): give each its own, or start fewer"])


def _import_muon() -> None:
    """DeepSpeed compares every optimizer with its Muon, whose import compiles it, with all of torch's compiler.

    That takes 0.8 s, or 2.3 s the first time. It stays plain Python, and all else compiles as ever.
    """
    before = {name: value for name, value in os.environ.items() if name == "TORCHDYNAMO_DISABLE"}
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    with contextlib.suppress(ImportError):  # a DeepSpeed that has none
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    del os.environ["TORCHDYNAMO_DISABLE"]
    os.environ |= before


def _leave() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def seed_everything(seed: int, step: int, rank: int) -> None:
    """Set every global generator from the step alone, so that a resumed run draws what the unbroken one would."""
    drawn = np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]
    random.seed(int(drawn))
    np.random.seed(int(drawn))
    torch.manual_seed(int(drawn))
