"""The records that a plugin package returns from its hooks. Making one loads nothing heavy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rlx_sdk.algorithms import Algorithm, Needs
    from rlx_sdk.config import Config
    from rlx_sdk.contracts import Reward, RewardContext, RolloutBackend, RolloutContext, Tracker, TrackerContext

Kind = Literal["algorithm", "reward", "rollout", "tracker"]


@dataclass(frozen=True)
class lazy:
    """A function of another module, imported when it is first called: ``lazy("package.module:name")``."""

    target: str

    def resolve(self) -> Any:
        """Import the module and return the object itself."""
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(module), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object."""
        return self.resolve()(*args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """What every plugin says of itself.

    Attributes:
        name: as in the spec and on the command line; unique among plugins of its kind.
        summary: one line, for ``rlx plugins``.
        config: returns the class of its options; a callable, so that listing plugins builds no model.
        requires: packages it imports beyond its own dependencies, each with what to ``pip install`` for it.
        argument: the option that ``TEXT`` sets in ``name:TEXT``; of a URL, ``name://…``, the whole of it.
    """

    name: str
    summary: str
    config: Callable[[], type[Config]]
    requires: Mapping[str, str] = field(default_factory=dict)
    argument: str | None = None


@dataclass(frozen=True, kw_only=True)
class AlgorithmPlugin(Plugin):
    """An algorithm. ``needs(options, rewards_given)`` is torch-free; ``build(options)`` may import torch."""

    needs: Callable[[Any, bool], Needs]
    build: Callable[[Any], Algorithm[Any]]


@dataclass(frozen=True, kw_only=True)
class RewardPlugin(Plugin):
    """A reward provider."""

    build: Callable[[Any, RewardContext], Reward]


@dataclass(frozen=True, kw_only=True)
class RolloutPlugin(Plugin):
    """A rollout backend.

    Attributes:
        auto: how much ``--rollout auto`` wants it, given whether there is a GPU; 0 for never.
        cached_tokens: tokens, given its options, whose KV cache may stand beside the trainer's memory; for estimates.
        deterministic: whether it samples the same tokens each time when torch computes deterministically.
        concurrent: whether `generate` may run on a thread of its own while the trainer computes: it has weights and
            devices of its own, and touches no random generator and no process group of the trainer's.
    """

    build: Callable[[Any, RolloutContext], RolloutBackend]
    auto: Callable[[bool], int] = lambda gpu: 0
    cached_tokens: Callable[[Any], int] = lambda options: 0
    deterministic: bool = False
    concurrent: bool = False


@dataclass(frozen=True, kw_only=True)
class TrackerPlugin(Plugin):
    """A tracker.

    Attributes:
        preflight: what will fail when it starts, given its options, such as credentials that are not there; None if
            nothing is known to. Called before a model is loaded.
        always: whether it follows every run, with its default options where the spec does not name it.
    """

    build: Callable[[Any, TrackerContext], Tracker]
    preflight: Callable[[Any], str | None] = lambda options: None
    always: bool = False


RECORDS: Mapping[Kind, type[Plugin]] = {"algorithm": AlgorithmPlugin, "reward": RewardPlugin, "rollout": RolloutPlugin,
                                        "tracker": TrackerPlugin}
"""What the hook of each kind returns a list of."""
