"""Draw tokens for vLLM as the hf backend does: a step's rows together, each with its request's own numbers.

vLLM would ask the generator of one row after the other, which at 256 rows takes longer than its model.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from rlx_plugins.seeds import uniforms

OFFSET = 4
"""What vLLM takes back from a generator on a GPU for a token that it does not keep, as of a prompt read in parts."""


def install(model_runner: Any) -> None:
    """Replace the last step of its sampler; one that draws all rows at once by itself has none of this name."""
    step = getattr(getattr(model_runner, "sampler", None), "topk_topp_sampler", None)
    if step is not None and not isinstance(step.forward, Draw):
        step.forward = Draw(step.forward)


class Draw:
    """In place of ``TopKTopPSampler.forward``."""

    def __init__(self, plain: Any) -> None:
        """Keep vLLM's own, for what is not training's: requests without seeds, top_p, top_k."""
        self._plain = plain
        self._drawn: WeakKeyDictionary[torch.Generator, int] = WeakKeyDictionary()

    def __call__(self, logits: Tensor, generators: dict[int, torch.Generator], k: Any,
                 p: Any) -> tuple[Tensor, Tensor | None]:
        """``[N]`` tokens and ``[N, V]`` logprobs, of ``[N, V]`` logits at their temperature."""
        if len(generators) != len(logits) or k is not None or p is not None:
            found: tuple[Tensor, Tensor | None] = self._plain(logits, generators, k, p)
            return found
        of_rows = [generators[row] for row in range(len(logits))]
        seeds = np.array([generator.initial_seed() for generator in of_rows], np.uint64)
        places = np.array([self._next(generator) for generator in of_rows], np.uint64)
        u = torch.from_numpy(uniforms(seeds, places))
        u = u.pin_memory().to(logits.device, non_blocking=True) if logits.is_cuda else u
        logprobs = logits.log_softmax(-1, torch.float32)
        mass = logprobs.exp().cumsum(-1)
        tokens = torch.searchsorted(mass, (u * mass[:, -1])[:, None], right=True)
        return tokens[:, 0].clamp(max=logits.shape[1] - 1), logprobs

    def _next(self, generator: torch.Generator) -> int:
        """The place of the token to draw, counted where vLLM can take it back."""
        if generator.device.type == "cuda":
            place = generator.get_offset()
            generator.set_offset(place + OFFSET)
            return place // OFFSET
        place = self._drawn.get(generator, 0)
        self._drawn[generator] = place + 1
        return place
