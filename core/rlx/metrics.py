"""Metrics of a step: summed over micro-batches and ranks, divided once."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rlx.ranks import Ranks
from rlx_sdk import Max, Mean, Metric, Min


class Accumulator:
    """Collects metrics without waiting for the device; `reduce` makes them global numbers.

    Every rank must add the same names. A `Mean` with count 0, a `Max` of −inf and a `Min` of inf counted nothing; what
    nothing was counted for on any rank is left out.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Start empty."""
        self._ranks = ranks
        self._means: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._extremes: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, metrics: Mapping[str, Metric], prefix: str = "") -> None:
        """Add what one micro-batch measured."""
        for name, metric in metrics.items():
            if isinstance(metric, Mean):
                self._means[prefix + name].append((_scalar(metric.total), _scalar(metric.count)))
            else:
                sign = 1.0 if isinstance(metric, Max) else -1.0
                self._extremes[f"{'+' if sign > 0 else '-'}{prefix}{name}"].append(sign * _scalar(metric.value))

    def reduce(self) -> dict[str, float]:
        """The global values."""
        found: dict[str, float] = {}
        if self._means:
            sums = torch.stack([torch.stack([_together(pair) for pair in pairs]).sum(0)
                                for pairs in self._means.values()])
            for name, (total, count) in zip(self._means, self._ranks.sum(sums).tolist(), strict=True):
                if count:
                    found[name] = total / count
        if self._extremes:
            tops = self._ranks.max(torch.stack([_together(v).max() for v in self._extremes.values()])).tolist()
            found |= {name[1:]: top if name[0] == "+" else -top
                      for name, top in zip(self._extremes, tops, strict=True) if top != -math.inf}
        return found


def _scalar(value: Tensor | float) -> Tensor:
    return value.detach().double() if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)


def _together(scalars: Sequence[Tensor]) -> Tensor:
    """On the CPU: only here the device is waited for."""
    return torch.stack([scalar.cpu() for scalar in scalars])


class Phases:
    """Seconds spent in each named phase of a step."""

    def __init__(self) -> None:
        """Start the step's clock."""
        self.seconds: dict[str, float] = defaultdict(float)
        self._start = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a block; on a GPU it includes the work that the block queued."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.seconds[name] += time.perf_counter() - begin

    def metrics(self) -> dict[str, float]:
        """``time/<phase>`` and ``time/step``, seconds."""
        return {**{f"time/{name}": s for name, s in self.seconds.items()},
                "time/step": time.perf_counter() - self._start}


__all__ = ["Accumulator", "Max", "Mean", "Min", "Phases"]
