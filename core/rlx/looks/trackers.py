"""Trackers follow a run; none of them ever stops it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlx.plan import Plan
from rlx_sdk import PluginError, Tracker, TrackerContext


class Trackers:
    """All trackers of a run. What fails is said once a tracker."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """None yet."""
        self._warn = warn
        self._built: list[tuple[str, Tracker]] = []
        self._failed: set[str] = set()

    @contextlib.contextmanager
    def follow(self, plan: Plan, folder: Path, saved: Mapping[str, Any], steps: int, terminal: Any) -> Iterator[None]:
        """From start to end; at the end each is finished, however the run went."""
        from rlx.runs import saved_spec

        spec, states = saved_spec(plan), saved.get("trackers", {})
        try:
            for chosen in plan.trackers:
                context = TrackerContext(folder.name, folder, spec, states.get(chosen.name), saved.get("step"), steps,
                                         terminal)
                try:
                    self._built.append((chosen.name, chosen.build(context)))
                except PluginError as error:
                    self._warn(f"{error}; the training goes on without it")
            yield
        finally:
            self.tell("finish")

    def tell(self, method: str, *args: Any) -> dict[str, Any]:
        """Call a method of each; what it returned, by name."""
        answers = {}
        for name, tracker in self._built:
            try:
                answer = getattr(tracker, method)(*args)
                json.dumps(answer, allow_nan=False)  # a state goes into the checkpoint
                answers[name] = answer
            except Exception as error:  # a stranger's code
                if name not in self._failed:
                    self._warn(f"tracker '{name}' failed: {type(error).__name__}: {error}; the training goes on, and "
                               "further failures of it are not shown")
                self._failed.add(name)
        return answers
