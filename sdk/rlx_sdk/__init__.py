"""Contracts for rlx plugins. Needs pluggy and pydantic only; importing it loads neither pydantic nor torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlx_sdk.errors import (
    CheckpointError,
    DataError,
    InputError,
    ModelError,
    PluginError,
    RewardError,
    RlxError,
    RunError,
    RunStopped,
    SpecError,
    TrainingError,
)
from rlx_sdk.hooks import hookimpl, hookspec
from rlx_sdk.plugins import AlgorithmPlugin, Kind, Plugin, RewardPlugin, RolloutPlugin, TrackerPlugin, lazy
from rlx_sdk.reward import reward

if TYPE_CHECKING:
    from rlx_sdk.algorithms import Algorithm, Context, DataKind, LanguageModel, Needs, ScoreModel, ValueModel
    from rlx_sdk.config import Config
    from rlx_sdk.contracts import (
        Fingerprint,
        FinishReason,
        Generation,
        Message,
        Request,
        Reward,
        RewardContext,
        RolloutBackend,
        RolloutContext,
        Sample,
        Sampling,
        Score,
        Scores,
        Tracker,
        TrackerContext,
    )
    from rlx_sdk.data import (
        Batch,
        Demonstrations,
        Group,
        Labelled,
        Loss,
        Max,
        Mean,
        Metric,
        Min,
        Pairs,
        Role,
        Rollouts,
        Sequences,
        Sum,
    )

__all__ = [
    "Algorithm",
    "AlgorithmPlugin",
    "Batch",
    "CheckpointError",
    "Config",
    "Context",
    "DataError",
    "DataKind",
    "Demonstrations",
    "Fingerprint",
    "FinishReason",
    "Generation",
    "Group",
    "InputError",
    "Kind",
    "Labelled",
    "LanguageModel",
    "Loss",
    "Max",
    "Mean",
    "Message",
    "Metric",
    "Min",
    "ModelError",
    "Needs",
    "Pairs",
    "Plugin",
    "PluginError",
    "Request",
    "Reward",
    "RewardContext",
    "RewardError",
    "RewardPlugin",
    "RlxError",
    "Role",
    "RolloutBackend",
    "RolloutContext",
    "RolloutPlugin",
    "Rollouts",
    "RunError",
    "RunStopped",
    "Sample",
    "Sampling",
    "Score",
    "ScoreModel",
    "Scores",
    "Sequences",
    "SpecError",
    "Sum",
    "Tracker",
    "TrackerContext",
    "TrackerPlugin",
    "TrainingError",
    "ValueModel",
    "hookimpl",
    "hookspec",
    "lazy",
    "reward",
]


def __getattr__(name: str) -> Any:
    """Contracts are imported when first asked for: listing plugins needs none, and `Config` costs pydantic's 170 ms."""
    if name in __all__:
        for home in ("data", "algorithms", "contracts", "config"):
            module = importlib.import_module(f"rlx_sdk.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
