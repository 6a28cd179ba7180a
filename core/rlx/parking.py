"""Tensors that wait in the CPU's memory, so that others may have theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

CHUNK = 1 << 28
"""Bytes of a copy: torch pins a power of two, which of one large tensor might be twice as much. What is brought back
leaves its pinned memory to whoever parks next."""


class Parking:
    """Storages that are emptied and filled again where they are: views and references of all kinds stay valid."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._waiting: list[tuple[Tensor, list[Tensor] | None]] = []

    def park(self, tensors: Iterable[Tensor]) -> None:
        """Copy what tensors hold to the CPU, and give their memory back; nothing if some wait already.

        What is all zeros, such as gradients between two updates, needs no copy.
        """
        if self._waiting:
            return
        found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        for storage in found.values():
            held = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            kept = [torch.empty(len(part), dtype=torch.uint8, pin_memory=held.is_cuda).copy_(part)
                    for part in torch.split(held, CHUNK)] if held.any() else None
            self._waiting.append((held, kept))
            storage.resize_(0)

    def fill(self) -> None:
        """Bring all of it back."""
        while self._waiting:
            held, kept = self._waiting[-1]
            held.untyped_storage().resize_(len(held))  # where this does not fit, all that is left waits on
            if kept is None:
                held.zero_()
            for part, copy in zip(torch.split(held, CHUNK), kept or (), strict=False):
                part.copy_(copy)
            self._waiting.pop()


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
