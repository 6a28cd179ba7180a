"""The next batch's completions, sampled by another thread while the trainer computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rlx.ranks import Ranks
from rlx_sdk import Generation, Sample

Place = tuple[int, int]
"""A prompt's position in the run, and its row."""
Completions = Sequence[tuple[Generation, Sample]]
"""Of one prompt, as the backend gave them and as rewards see them."""


@dataclass(frozen=True)
class Sampled:
    """Prompts and the completions of each, not yet scored."""

    places: Sequence[Place]
    groups: Sequence[Completions]


class Ahead:
    """At most one batch, which is there or on its way."""

    def __init__(self) -> None:
        """None yet."""
        self._coming: Future[Sampled] | None = None
        self._thread = ThreadPoolExecutor(1, "rlx-ahead")

    def begin(self, sample: Callable[[], Sampled]) -> None:
        """Let the thread sample it."""
        self._coming = self._thread.submit(sample)

    def wait(self) -> None:
        """Until it is there; raises what sampling raised."""
        if self._coming is not None:
            self._coming.result()

    def take(self) -> Sampled | None:
        """Wait for it and forget it."""
        self.wait()
        coming, self._coming = self._coming, None
        return None if coming is None else coming.result()

    def state_dict(self, ranks: Ranks) -> list[Any]:
        """The batch of all ranks, JSON-able: its weights are gone, so that a resumed run could not sample it again."""
        mine = self._coming.result() if self._coming else Sampled((), ())
        groups = [[[[*map(int, g.tokens)], [*map(float, g.logprobs)], g.finish_reason, g.version] for g, _ in group]
                  for group in mine.groups]
        every = ranks.gather([*zip(mine.places, groups, strict=True)])
        return sorted(one for part in every for one in part)

    def load_state_dict(self, state: Sequence[Any], ranks: Ranks,
                        arrived: Callable[[Place, list[Generation]], Completions]) -> None:
        """This rank's share of such a batch; ``arrived`` makes of generations what is kept of them."""
        mine = [((position, row), [Generation(*g) for g in group]) for (position, row), group in ranks.share(state)]
        if state:
            self._coming = Future()
            self._coming.set_result(Sampled([place for place, _ in mine], [arrived(*one) for one in mine]))
