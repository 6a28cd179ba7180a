"""A request's own random numbers: they depend on its seed alone, not on what is sampled beside it, nor where."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def spread_seed(seed: int) -> int:
    """Of a request's first completion; the others count on from it, and neighbouring requests are far apart."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 2)


def uniforms(seeds: NDArray[np.uint64], places: NDArray[np.uint64]) -> NDArray[np.float32]:
    """One number in [0, 1) for each completion's seed and token's place, of 24 bits (SplitMix64, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        x = seeds + (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        kept: NDArray[np.float32] = ((x ^ (x >> np.uint64(31))) >> np.uint64(40)).astype(np.float32)
    return kept * np.float32(2**-24)
