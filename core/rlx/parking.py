"""Tensors that wait in the CPU's memory, so that others may have theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn


class Parking:
    """Storages that are emptied and filled again where they are: views and references of all kinds stay valid."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._kept: dict[int, UntypedStorage] = {}
        self._waiting: list[tuple[UntypedStorage, UntypedStorage]] = []

    def park(self, tensors: Iterable[Tensor]) -> None:
        """Copy what tensors hold to the CPU, and give their memory back; nothing if some wait already."""
        if self._waiting:
            return
        found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        for number, storage in enumerate(found.values()):
            kept = self._kept.get(number)
            if kept is None or len(kept) != len(storage):  # pinning takes long, and sizes stay
                kept = torch.empty(len(storage), dtype=torch.uint8, pin_memory=storage.is_cuda).untyped_storage()
                self._kept[number] = kept
            kept.copy_(storage)
            self._waiting.append((storage, kept))
            storage.resize_(0)

    def fill(self) -> bool:
        """Bring all of it back; whether something waited."""
        away = bool(self._waiting)
        while self._waiting:
            storage, kept = self._waiting.pop()
            storage.resize_(len(kept))
            storage.copy_(kept)
        return away


def only_for_updates(optimizer: Any, module: nn.Module) -> Iterator[Tensor]:
    """What a DeepSpeed optimizer holds on the module's device: masters, their gradients and moments."""
    plain = getattr(optimizer, "optimizer", optimizer)
    masters = [*(p for group in plain.param_groups for p in group["params"]),
               *getattr(optimizer, "fp32_partitioned_groups_flat", ())]  # stage 3 puts one at a time into the groups
    found = [*masters, *(p.grad for p in masters if p.grad is not None),
             *(x for entry in plain.state.values() for x in entry.values() if torch.is_tensor(x) and x.dim()),
             *getattr(optimizer, "fp32_groups_gradients_flat", ())]
    working = {p.untyped_storage().data_ptr() for p in module.parameters()}
    devices = {p.device for p in module.parameters()}
    yield from (x for x in found if x.device in devices and x.untyped_storage().data_ptr() not in working)
