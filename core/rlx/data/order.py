"""The order in which rows are used: shuffled anew each epoch, known from the seed alone."""

from __future__ import annotations

import numpy as np


class Order:
    """Row indices for any stretch of an endless run over ``n`` rows.

    Epoch ``e`` is a permutation that depends on the seed and ``e`` only, so a position is one number: rows used so far.
    """

    def __init__(self, n: int, seed: int) -> None:
        """Order ``n`` rows."""
        self._n, self._seed = n, seed
        self._epoch, self._permutation = -1, np.empty(0, np.int64)

    def take(self, start: int, number: int) -> list[int]:
        """The rows at positions ``start … start + number − 1``."""
        return [self._at(position) for position in range(start, start + number)]

    def _at(self, position: int) -> int:
        epoch, offset = divmod(position, self._n)
        if epoch != self._epoch:
            self._permutation = np.random.default_rng([self._seed, epoch]).permutation(self._n)
            self._epoch = epoch
        return int(self._permutation[offset])
