"""One run from a plan to its result: what the command line and Python both call."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rlx.looks.trackers import Trackers
from rlx.looks.warn import Watch
from rlx.plan import Plan
from rlx.view import View
from rlx_sdk import RunError, RunStopped

# Threads that wait spin for a moment, then sleep: spinning on, as is the default, they starve each other when anything
# else runs on the machine; sleeping at once costs a tenth of the speed when nothing does. Read when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")


@dataclass(frozen=True)
class Result:
    """What a run left behind.

    Attributes:
        run: the run's folder.
        checkpoint: the last one; its ``actor`` is a plain HF folder.
        steps: done in all.
        metrics: of the last step, and of the last evaluation (``eval/…``).
    """

    run: Path
    checkpoint: Path
    steps: int
    metrics: Mapping[str, float] = field(default_factory=dict)


def run(plan: Plan, view: View) -> Result:
    """Train.

    Raises:
        InputError: found before any model is loaded.
        RunError: training could not go on.
        RunStopped: a signal asked for the end.
    """
    from rlx.checkpoint import SavedTensors
    from rlx.determinism import deterministic
    from rlx.logs import library_log
    from rlx.ranks import start_distributed
    from rlx.start import examine
    from rlx.watch import StopSignals, Watchdog

    with contextlib.ExitStack() as stack, deterministic(plan.spec.engine.deterministic):
        with library_log(None):
            ranks = start_distributed(plan.spec.run.stuck_after)
        view = view if ranks.first else view.silent()
        start = examine(plan, ranks, ranks.world, view.note, view.progress)
        sized, inputs, checkpoint, saved = start.plan, start.inputs, start.checkpoint, start.saved
        view.inputs(plan, inputs)
        for note in (*start.careful, *[f"memory: {start.memory[0]}"] * start.memory[1]):
            view.note(f"careful: {note}")
        folder = _own(start.folder, ranks, stack)
        log = "libraries.log" if ranks.first else f"libraries.log.{ranks.rank}"
        stack.enter_context(library_log(folder.path / log))
        from rlx.build import build
        from rlx.inputs import build_rewards
        from rlx.models import pick_device

        rewards = build_rewards(sized, pick_device())
        stack.callback(rewards.close)
        _try_rewards(rewards, inputs, ranks, view)
        recorder = _Recorder(folder, view, inputs, plan, ranks, start.identity)
        trainer = build(sized, inputs, ranks, recorder, rewards)
        stack.callback(trainer.source.close)
        if checkpoint:
            trainer.load_state_dict(saved, partial(SavedTensors, checkpoint))
            view.note(f"continuing from '{checkpoint}', step {trainer.step}")
        if ranks.first:
            folder.rewind(saved.get("step", -1))
            folder.start(plan)
            stack.enter_context(recorder.begin(saved, trainer.total_steps))
        with (StopSignals(ranks.first) as recorder.signals,
              Watchdog(plan.spec.run.stuck_after, folder.path, ranks.rank) as recorder.watchdog,
              _naming_the_last_checkpoint(folder, trainer), _explaining_memory(recorder, sized)):
            trainer.fit()
        if trainer.step < trainer.total_steps:
            raise _stopped(trainer, recorder, folder)
        assert recorder.checkpoint is not None
        metrics = {name: x for name, x in {**recorder.last, **recorder.last_eval}.items() if math.isfinite(x)}
        return Result(folder.path, recorder.checkpoint, trainer.step, metrics)


def _own(folder: Any, ranks: Any, stack: contextlib.ExitStack) -> Any:
    """The folder made, for this run alone until its end, and the same one for all ranks."""
    folder = ranks.first_does(folder.make)
    ranks.first_does(lambda: stack.enter_context(folder.locked()))
    from rlx.start import SHARE

    mark = ranks.first_does(folder.mark)
    try:
        ranks.agree({f"'{folder.path}' is the run's folder": mark.exists()}, SHARE)
    finally:
        mark.unlink(missing_ok=True)
    return folder


def _try_rewards(panel: Any, inputs: Any, ranks: Any, view: View) -> None:
    """Before a model is loaded, those that were built for the run; a service that is down is waited for here too."""
    for name, (_, doubt) in ranks.first_does(lambda: panel.dry_run(inputs.train)).items():
        if doubt:
            view.note(f"careful: reward '{name}' was tried on a made-up completion: {doubt}")


@contextlib.contextmanager
def _naming_the_last_checkpoint(folder: Any, trainer: Any) -> Iterator[None]:
    """Errors of the training say where it can be continued; after its last step it cannot."""
    from rlx.checkpoint import complete_checkpoints

    try:
        yield
    except RunError as error:
        there = complete_checkpoints(folder.checkpoints)
        last = "Saved last:" if trainer.step == trainer.total_steps else f"'rlx resume {folder.path}' continues from"
        error.args = (f"{error}\n" + (f"{last} '{there[-1]}'." if there else "No checkpoint was written yet."),)
        raise


@contextlib.contextmanager
def _explaining_memory(recorder: _Recorder, plan: Plan) -> Iterator[None]:
    from rlx.faults import explain_out_of_memory, out_of_memory

    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise explain_out_of_memory(error, recorder.at, plan) from error


def _stopped(trainer: Any, recorder: _Recorder, folder: Any) -> RunStopped:
    saved = f"saved as '{recorder.checkpoint}'" if recorder.saved else "which could not be saved"
    return RunStopped(f"ended by {recorder.stopped_by.name} after step {trainer.step} of {trainer.total_steps}, "
                      f"{saved}. 'rlx resume {folder.path}' goes on.", 128 + recorder.stopped_by)


class _Recorder:
    """Run folder and trackers behind the trainer's one `Recorder`; rank 0 writes, the others hand over."""

    def __init__(self, folder: Any, view: View, inputs: Any, plan: Plan, ranks: Any, identity: Any) -> None:
        self._folder, self._view, self._inputs, self._plan, self._ranks = folder, view, inputs, plan, ranks
        self._identity = identity
        self.trackers = Trackers(view.warn)
        self.watch = Watch()
        self.checkpoint: Path | None = None
        self.last: Mapping[str, float] = {}
        self.last_eval: Mapping[str, float] = {}
        self.signals: Any = None
        self.watchdog: Any = None
        self.stopped_by: Any = None
        self.saved, self.at = True, "the start"
        self._measured: dict[str, float] = {}

    def phase(self, name: str) -> None:
        self.at = name
        if self.watchdog:
            self.watchdog.beat(name)

    def stop_asked(self) -> bool:
        self.stopped_by = next(filter(None, self._ranks.gather(self.signals.asked if self.signals else None)), None)
        return self.stopped_by is not None

    def step(self, step: int, metrics: Mapping[str, float], samples: list[dict[str, Any]]) -> None:
        self.last, self._measured, every = metrics, {}, self._plan.spec.run.sample_every
        samples = self._keep(step, metrics, samples, "train")
        if not self._ranks.first:
            return
        if every is not None and (step == 1 or step % every == 0):
            self._tell_samples(step, samples, "train")
        for text in self.watch.step(metrics):
            self._view.warn(text)

    def evaluated(self, step: int, metrics: Mapping[str, float], samples: list[dict[str, Any]]) -> None:
        self.last_eval = metrics
        self._tell_samples(step, self._keep(step, metrics, samples, "eval"), "eval")

    def _keep(self, step: int, metrics: Mapping[str, float], samples: list[dict[str, Any]],
              split: str) -> list[dict[str, Any]]:
        """In the folder and in the trackers; returns the samples of all ranks."""
        self._measured |= metrics
        samples = self._all(samples)
        if self._ranks.first:
            self._write("write_samples", step, samples, split)
            self.trackers.tell("log", step, metrics)
        return samples

    def _tell_samples(self, step: int, samples: list[dict[str, Any]], split: str) -> None:
        if samples and self._ranks.first:
            self.trackers.tell("samples", step, samples, split)

    def begin(self, saved: Mapping[str, Any], steps: int) -> contextlib.AbstractContextManager[None]:
        """Go on from what an earlier part of the run has said; trackers follow until the end."""
        self.watch = Watch.of(line for line in self._folder.metrics() if line["step"] <= saved.get("step", -1))
        return self.trackers.follow(self._plan, self._folder.path, saved, steps, self._view.terminal)

    def chosen(self, step: int, samples: list[dict[str, Any]]) -> None:
        samples = sorted(self._all(samples), key=lambda line: line["row"])
        if self._ranks.first:
            self._write("write_samples", step, samples, "chosen")
            self._tell_samples(step, samples, "chosen")

    def note(self, text: str) -> None:
        self._view.note(text)

    def save(self, trainer: Any) -> None:
        from rlx.checkpoint import SaveError, save_checkpoint

        self.phase("save")
        run = self._plan.spec.run
        state = {**trainer.state_dict(), "trackers": self.trackers.tell("state_dict"),
                 **self._identity, "metrics": self._measure(run.best)}
        try:
            self.checkpoint = save_checkpoint(self._folder.checkpoints, trainer.step, trainer.engines,
                                              self._inputs.tokenizer.hf, state, run.keep, self._ranks, run.best)
        except SaveError as error:
            if run.failed_save == "stop" or trainer.step == trainer.total_steps:
                raise
            self.saved = False
            self.note(f"{error}; the run goes on (run.failed_save)")
        else:
            self.saved = True
            self._view.saved(self.checkpoint)

    def _measure(self, best: str | None) -> dict[str, float]:
        """What the checkpoints are compared by."""
        name = (best or "").removeprefix("-")
        if best and name not in self._measured:
            self.note(f"run.best: this step has no metric '{name}'; it has {', '.join(sorted(self._measured))}")
        value = self._measured.get(name, math.nan)
        return {name: value} if math.isfinite(value) else {}

    def _write(self, method: str, *args: Any) -> None:
        try:
            getattr(self._folder, method)(*args)
        except OSError as error:
            text = f"'{self._folder.path}' cannot be written: {error}"
            if self._plan.spec.run.failed_save == "stop":
                raise RunError(text) from error
            self.note(f"{text}; the run goes on (run.failed_save)")

    def skipped(self, step: int, role: str, rows: list[Any]) -> None:
        from rlx.faults import describe_rows, skipped_text

        found = self._all(describe_rows(rows, self._inputs.tokenizer.decode))
        self.note(skipped_text(step, role, found))
        if self._ranks.first:
            self._write("log_skipped", step, role, found)

    def _all(self, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [sample for part in self._ranks.gather(samples) for sample in part]
