"""The next batch's completions, sampled by another thread while the trainer computes."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.ranks import Ranks
from rlx.sources import Cursor
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

    def __init__(self, of: str) -> None:
        """None yet; ``of`` names the prompts and the size of a batch, for those that go on with its state."""
        self._of = of
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

    def state_dict(self, ranks: Ranks) -> dict[str, Any]:
        """The batch of all ranks, JSON-able: its weights are gone, so that a resumed run could not sample it again.

        ``batch`` has, by position, ``[[position, row], completions]``; a completion is ``[tokens, logprobs, finish
        reason, version]``, its tokens as int32 and logprobs as float32, little-endian, in base64.
        """
        mine = self._coming.result() if self._coming else Sampled((), ())
        groups = [[[_packed(g.tokens, "<i4"), _packed(g.logprobs, "<f4"), g.finish_reason, g.version] for g, _ in group]
                  for group in mine.groups]
        every = ranks.gather([*zip(mine.places, groups, strict=True)])
        return {"of": self._of, "batch": sorted(one for part in every for one in part)}

    def load_state_dict(self, state: Mapping[str, Any], cursor: Cursor,
                        arrived: Callable[[Place, list[Generation]], Completions]) -> None:
        """This rank's share of such a batch; ``arrived`` makes of generations what is kept of them.

        A batch of other prompts, or of another size, is left out, and the cursor set back to where it began.
        """
        batch = state.get("batch", ())
        if batch and state["of"] != self._of:
            cursor.position = batch[0][0][0]
        elif batch:
            mine = [((position, row), [Generation(_unpacked(g[0], "<i4"), _unpacked(g[1], "<f4"), *g[2:])
                                       for g in group]) for (position, row), group in cursor.ranks.share(batch)]
            self._coming = Future()
            self._coming.set_result(Sampled([place for place, _ in mine], [arrived(*one) for one in mine]))


def _packed(numbers: Sequence[float], kind: str) -> str:
    """A batch may have millions; as JSON's numbers they would take four times the space, and minutes."""
    return b64encode(np.asarray(numbers, kind).tobytes()).decode()


def _unpacked(text: str, kind: str) -> list[Any]:
    return list(np.frombuffer(b64decode(text), kind).tolist())
