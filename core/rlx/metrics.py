"""Metrics of a step: summed over micro-batches and ranks, divided once."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from rlx.ranks import Ranks
from rlx_sdk import Max, Mean, Metric, Sum


class Accumulator:
    """Collects metrics without waiting for the device; `reduce` makes them global numbers.

    A `Mean` with count 0, a `Max` of −inf and a `Min` of inf counted nothing; what nothing was counted for on any rank
    is left out.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Start empty."""
        self._ranks = ranks
        self._means: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._sums: dict[str, list[Tensor]] = defaultdict(list)
        self._extremes: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, metrics: Mapping[str, Metric], prefix: str = "") -> None:
        """Add what one micro-batch measured."""
        for name, metric in metrics.items():
            if isinstance(metric, Mean):
                self._means[prefix + name].append((_scalar(metric.total), _scalar(metric.count)))
            elif isinstance(metric, Sum):
                self._sums[prefix + name].append(_scalar(metric.value))
            else:
                sign = 1.0 if isinstance(metric, Max) else -1.0
                self._extremes[f"{'+' if sign > 0 else '-'}{prefix}{name}"].append(sign * _scalar(metric.value))

    def merge(self, other: Accumulator) -> None:
        """Add all that another one was told."""
        for name, pairs in other._means.items():
            self._means[name] += pairs
        for mine, theirs in ((self._sums, other._sums), (self._extremes, other._extremes)):
            for name, values in theirs.items():
                mine[name] += values

    def reduce(self) -> dict[str, float]:
        """The global values. Ranks may have measured different things; the sums are added in rank order."""
        means = {name: torch.stack([_together(pair) for pair in pairs]).sum(0).tolist()
                 for name, pairs in self._means.items()}
        sums = {name: float(_together(values).sum()) for name, values in self._sums.items()}
        tops = {name: float(_together(values).max()) for name, values in self._extremes.items()}
        of_ranks = self._ranks.gather((means, sums, tops))
        total, count, added = (defaultdict[str, float](float) for _ in range(3))
        best: dict[str, float] = {}
        for means, sums, tops in of_ranks:
            for name, pair in means.items():
                total[name] += pair[0]
                count[name] += pair[1]
            for name, value in sums.items():
                added[name] += value
            for name, top in tops.items():
                best[name] = float(np.maximum(best.get(name, -math.inf), top))  # keeps what is not a number
        return {**{name: total[name] / n for name, n in count.items() if n}, **added,
                **{n[1:]: top if n[0] == "+" else -top for n, top in best.items() if top != -math.inf}}


def _scalar(value: Tensor | float) -> Tensor:
    return value.detach().double() if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)


def _together(scalars: Sequence[Tensor]) -> Tensor:
    """On the CPU: only here the device is waited for."""
    return torch.stack([scalar.cpu() for scalar in scalars])


class Phases:
    """Seconds spent in each named phase of a step, and the memory of this rank's GPU; ``a/b`` is a part of ``a``."""

    def __init__(self, begun: Callable[[str], None] = lambda name: None) -> None:
        """Start the step's clock; ``begun`` is told of each phase."""
        self._begun = begun
        self.seconds: dict[str, float] = defaultdict(float)
        self._start, self._held = time.perf_counter(), 0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a block; on a GPU it includes the work that the block queued."""
        begin = time.perf_counter()
        self._begun(name)
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
                free, whole = torch.cuda.mem_get_info()
                self._held = max(self._held, whole - free)
            self.seconds[name] += time.perf_counter() - begin

    def memory(self) -> dict[str, Metric]:
        """``memory/peak_gb`` in GiB, where there is a GPU.

        What torch had allocated at most; but torch goes on counting what a sleeping sampler has given back, so no more
        than was in use on the GPU when a phase ended. Torch's cache makes that last from a phase's peak to its end.
        """
        peak = min(torch.cuda.max_memory_allocated(), self._held)
        return {"memory/peak_gb": Max(peak / 2**30)} if peak else {}

    def metrics(self, counted: Mapping[str, float]) -> dict[str, float]:
        """``time/<phase>`` and ``time/step`` in seconds, and tokens a second of those that were counted and timed."""
        untimed = {"rollout"} if counted.get("rollout/staleness") else ()  # sampled ahead, or some of them
        times = {f"time/{name}": s for name, s in self.seconds.items()}
        speeds = {f"speed/{verb}_tokens_per_s": counted[f"{name}/tokens"] / times[f"time/{name}"]
                  for name, verb in (("rollout", "generated"), ("update", "trained"))
                  if times.get(f"time/{name}") and name not in untimed}
        return {**times, "time/step": time.perf_counter() - self._start, **speeds}
