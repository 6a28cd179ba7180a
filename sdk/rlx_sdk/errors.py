"""The one tree of errors.

RlxError
├── InputError             the user's input is wrong; nothing was started (exit code 2)
│   ├── SpecError          a setting, a flag, a combination; lists every problem at once
│   ├── PluginError        a plugin is unknown, broken, ambiguous or lacks a package
│   ├── DataError          a file, a row, a column
│   ├── ModelError         a model folder, a tokenizer, a chat template
│   └── CheckpointError    a checkpoint is missing, incomplete or of another run
└── RunError               training started and could not go on (exit code 1)
    ├── RewardError        a reward raised or returned something unusable
    ├── TrainingError      no usable gradient for too many steps, stale weights, …
    └── RunStopped         a signal asked the run to end, and it has saved (exit code 128 + the signal's number)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class RlxError(Exception):
    """Base of every error rlx raises on purpose; its text says what, where and the fix."""


class InputError(RlxError):
    """The user's input cannot work. Nothing was started."""


class SpecError(InputError):
    """One or more settings are wrong.

    Args:
        problems: one sentence a problem, each naming the setting, its value and the fix.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        """Keep the problems and join them into one message."""
        self.problems = tuple(problems)
        head = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"{head} in the spec:", *(f"  - {p}" for p in self.problems)]))


class PluginError(InputError):
    """A plugin is unknown, failed to load, is ambiguous, or lacks a package it needs."""


class DataError(InputError):
    """A data file cannot be read or used as it is."""


class ModelError(InputError):
    """A model or tokenizer cannot be loaded or used as it is."""


class RunError(RlxError):
    """Training started and could not go on."""


class RewardError(RunError):
    """A reward raised, or returned something that is not one finite number or None a sample."""


class TrainingError(RunError):
    """An update could not be made: no trainable tokens, non-finite gradients, stale rollouts."""


class RunStopped(RunError):
    """A signal asked a run to end: the step was finished and saved, and ``rlx resume`` goes on from there.

    Attributes:
        code: the exit code of a process that the signal had ended, 128 + its number.
    """

    def __init__(self, message: str, code: int) -> None:
        """Keep both."""
        super().__init__(message)
        self.code = code


class CheckpointError(InputError):
    """A checkpoint is missing, incomplete, or belongs to another run."""


def type_of(value: object) -> str:
    """``a list``, ``an int``."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def cause(error: BaseException) -> str:
    """What a plugin's exception says, and the line that raised it: ``KeyError: 'answer' (my_reward/rules.py:12)``."""
    import traceback

    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    own = len(frames) > 1 and not isinstance(error, SyntaxError)  # the first is the caller's; syntax says its place
    file = Path(frames[-1].filename) if own else None
    where = f" ({file.parent.name}/{file.name}:{frames[-1].lineno})" if file else ""
    return f"{type(error).__name__}: {error}{where}"
