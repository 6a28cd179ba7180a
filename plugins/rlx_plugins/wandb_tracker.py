"""Weights & Biases. A resumed run goes on in the same wandb run, on the trainer's own step axis."""

from __future__ import annotations

import contextlib
import netrc
import os
from collections.abc import Mapping, Sequence
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
        # Newer wandb writes its file every 15 s: a killed run would lose points that its checkpoint counts as done.
        quick = {name: 0.1 for name in ("x_transaction_log_flush_interval",)
                 if name in getattr(wandb.Settings, "model_fields", {})}
        self._run = wandb.init(
            project=options.project, entity=options.entity, mode=options.mode, name=context.run_name,
            dir=str(context.run_dir), config=dict(context.spec), resume="allow", id=(context.state or {}).get("id"),
            settings=wandb.Settings(**quick))
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        if context.resumed is not None:  # of what was logged before this, later steps were lost and come again
            self._run.log({"step": context.resumed, "resumed": context.resumed})

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics, over rlx's own step."""
        self._run.log({"step": step, **metrics})

    def samples(self, step: int, table: Sequence[Mapping[str, Any]], split: str) -> None:
        """A table of samples."""
        shown = self._wandb.Table(list(table[0]), [list(row.values()) for row in table])
        self._run.log({"step": step, f"samples/{split}": shown})

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
