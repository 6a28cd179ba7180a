"""Weights & Biases. A resumed run goes on in the same wandb run, on the trainer's own step axis."""

from __future__ import annotations

import contextlib
import netrc
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from rlx_sdk import Config, TrackerContext


class WandbOptions(Config):
    """Where the run is shown."""

    project: str = "rlx"
    """wandb project."""
    entity: str | None = None
    """User or team."""
    mode: Literal["online", "offline"] = "online"
    """offline writes to the run folder only; ``wandb sync`` sends it later."""


class WandbTracker:
    """One wandb run."""

    def __init__(self, options: WandbOptions, context: TrackerContext) -> None:
        """Start the run, or go on with that of an earlier part."""
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=options.project, entity=options.entity, mode=options.mode, name=context.run_name,
            dir=str(context.run_dir), config=dict(context.spec), resume="allow", id=(context.state or {}).get("id"))
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics, over rlx's own step."""
        self._run.log({"step": step, **metrics})

    def samples(self, step: int, table: Iterable[Mapping[str, Any]]) -> None:
        """A table of samples."""
        rows = list(table)
        if rows:
            shown = self._wandb.Table(list(rows[0]), [list(row.values()) for row in rows])
            self._run.log({"step": step, "samples": shown})

    def state_dict(self) -> dict[str, Any]:
        """The wandb run's id."""
        return {"id": self._run.id}

    def finish(self) -> None:
        """Send what is left."""
        self._run.finish()


def preflight(options: WandbOptions) -> str | None:
    """Whether a login is there; wandb itself would ask for it, or fail, only when the models are loaded."""
    offline = options.mode == "offline" or os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
    if offline or os.environ.get("WANDB_API_KEY"):
        return None
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc(os.environ.get("NETRC")).authenticators(host):
            return None
    return f"no login for {host}: run 'wandb login', set WANDB_API_KEY, or give it the option mode: offline"
