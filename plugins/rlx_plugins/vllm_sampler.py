"""Draw tokens for vLLM as the hf backend does: a step's rows together, each with its request's own numbers.

vLLM would ask the generator of one row after the other, which at 256 rows takes longer than its model, and hand each
token's logprob through five layers of Python, which takes an eighth of its time.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlx_plugins.seeds import uniforms
from rlx_sdk import TrainingError

OFFSET = 4
"""What vLLM takes back from a generator on a GPU for a token that it does not keep, as of a prompt read in parts."""


def install(model_runner: Any) -> Draw | None:
    """Replace the last step of its sampler; one that draws all rows at once by itself has none of this name."""
    step = getattr(getattr(model_runner, "sampler", None), "topk_topp_sampler", None)
    if step is None:
        return None
    if not isinstance(step.forward, Draw):
        step.forward = Draw(step.forward)
    drawn: Draw = step.forward
    return drawn


class Record:
    """The tokens drawn for some completions, known by their seeds, and the tokens' logprobs."""

    def __init__(self, seeds: Sequence[int], longest: int) -> None:
        """Make room for completions of up to so many tokens; no two may have the same seed."""
        self._seeds = np.sort(np.array(seeds, np.uint64))
        self._found = np.zeros((2, len(seeds), longest), np.int32)  # token + 1, and the bits of its logprob
        self._coming: deque[tuple[NDArray[np.uint64], NDArray[np.uint64], Tensor, Any]] = deque()

    def add(self, seeds: NDArray[np.uint64], places: NDArray[np.uint64], tokens: Tensor, logprobs: Tensor) -> None:
        """A step's ``[N]`` tokens, each at its place in its completion, and logprobs; does not wait for a GPU."""
        found, ready = torch.stack((tokens.int() + 1, logprobs.view(torch.int32))), None
        if found.is_cuda:
            found, ready = found.to("cpu", non_blocking=True), torch.Event(found.device)
            ready.record()
        self._coming.append((seeds, places, found, ready))
        while self._coming and (self._coming[0][3] is None or self._coming[0][3].query()):
            self._keep()

    def logprobs(self, seed: int, tokens: Sequence[int]) -> list[float]:
        """Of a completion that is done.

        Raises:
            TrainingError: these are not the tokens that were drawn for it.
        """
        while any(((seeds == seed) & (places < len(tokens))).any() for seeds, places, *_ in self._coming):
            self._keep()
        found = self._found[:, np.flatnonzero(self._seeds == seed), :len(tokens)]
        if not np.array_equal(found[0], [np.array(tokens) + 1]):
            raise TrainingError("vllm: it returned other tokens than were drawn for it, so that their logprobs are "
                                "unknown. This vLLM is not one that rlx knows (0.20 to 0.32): use --rollout hf.")
        logprobs: list[float] = found[1, 0].view(np.float32).tolist()
        return logprobs

    def _keep(self) -> None:
        """Of a place drawn twice the later token stays: the earlier one was taken back. Others' rows are left out."""
        seeds, places, found, ready = self._coming.popleft()
        if ready is not None:
            ready.synchronize()
        rows = np.searchsorted(self._seeds, seeds).clip(max=len(self._seeds) - 1)
        mine = (self._seeds[rows] == seeds) & (places < self._found.shape[2])
        self._found[:, rows[mine], places[mine].astype(np.int64)] = found.numpy()[:, mine]


class Counted(torch.Generator):
    """One on a CPU that counts what is drawn from it as one on a GPU does: there vLLM fails to take anything back."""

    _offset = 0

    @classmethod
    def of(cls, generator: torch.Generator) -> Counted:
        """In place of one that nothing was drawn from."""
        mine = cls()
        mine.manual_seed(generator.initial_seed())
        return mine

    def get_offset(self) -> int:
        """Four for each token that `Draw` draws."""
        return self._offset

    def set_offset(self, offset: int) -> torch.Generator:
        """What vLLM's own sampler draws is not counted, but taken back all the same."""
        self._offset = max(0, offset)
        return self


class Draw:
    """In place of ``TopKTopPSampler.forward``."""

    def __init__(self, plain: Any) -> None:
        """Keep vLLM's own, for what is not training's: requests without seeds, top_p, top_k."""
        self._plain = plain
        self._counted: dict[int, tuple[torch.Generator, Counted]] = {}
        self._of_rows: list[torch.Generator] = []  # of the step before, mostly the same
        self._seeds = np.empty(0, np.uint64)
        self.record: Record | None = None
        """Where to keep what is drawn here; what vLLM's own draws is kept nowhere."""

    def __call__(self, logits: Tensor, generators: dict[int, torch.Generator], k: Any,
                 p: Any) -> tuple[Tensor, Tensor | None]:
        """``[N]`` tokens and ``[N, V]`` logprobs, of ``[N, V]`` logits at their temperature."""
        if not logits.is_cuda:
            self._count(generators)
        if len(generators) != len(logits) or k is not None or p is not None:
            found: tuple[Tensor, Tensor | None] = self._plain(logits, generators, k, p)
            return found
        of_rows = [generators[row] for row in range(len(logits))]
        if of_rows != self._of_rows:
            self._of_rows, self._seeds = of_rows, np.array([each.initial_seed() for each in of_rows], np.uint64)
        seeds = self._seeds
        offsets = [generator.get_offset() for generator in of_rows]
        for generator, offset in zip(of_rows, offsets, strict=True):
            generator.set_offset(offset + OFFSET)
        places = np.array(offsets, np.uint64) // np.uint64(OFFSET)
        u = torch.from_numpy(uniforms(seeds, places))
        u = u.pin_memory().to(logits.device, non_blocking=True) if logits.is_cuda else u
        logprobs = logits.log_softmax(-1, torch.float32)
        mass = logprobs.exp().cumsum(-1)
        tokens = torch.searchsorted(mass, (u * mass[:, -1])[:, None], right=True).clamp(max=logits.shape[1] - 1)
        if self.record is not None:
            self.record.add(seeds, places, tokens[:, 0], logprobs.gather(1, tokens)[:, 0])
        return tokens[:, 0], logprobs

    def _count(self, generators: dict[int, torch.Generator]) -> None:
        """Put `Counted` ones in place; vLLM keeps its own, and comes back with it after a while in which it waits."""
        if len(self._counted) > 64 + 4 * len(generators):  # weak references to generators came with torch 2.12
            self._counted = {key: pair for key, pair in self._counted.items() if sys.getrefcount(pair[0]) > 2}
        for row, generator in generators.items():
            if not isinstance(generator, Counted):
                made = self._counted.get(id(generator)) or (generator, Counted.of(generator))
                generators[row] = self._counted.setdefault(id(generator), made)[1]
