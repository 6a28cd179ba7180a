"""The hooks of rlx. A plugin package implements any of them and names its module in the entry-point group ``rlx``."""

from __future__ import annotations

import pluggy

from rlx_sdk.plugins import AlgorithmPlugin, RewardPlugin, RolloutPlugin, TrackerPlugin

PROJECT = "rlx"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def rlx_algorithms() -> list[AlgorithmPlugin]:
    """The algorithms this package offers."""
    raise AssertionError("a hook specification is never called")


@hookspec
def rlx_rewards() -> list[RewardPlugin]:
    """The rewards this package offers."""
    raise AssertionError("a hook specification is never called")


@hookspec
def rlx_rollouts() -> list[RolloutPlugin]:
    """The rollout backends this package offers."""
    raise AssertionError("a hook specification is never called")


@hookspec
def rlx_trackers() -> list[TrackerPlugin]:
    """The trackers this package offers."""
    raise AssertionError("a hook specification is never called")
