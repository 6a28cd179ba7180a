"""All that is looked at before a run starts, by ``rlx train`` and ``rlx check`` alike: nothing is loaded or written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlx import preflight
from rlx.checkpoint import read_state
from rlx.data.cache import Progress
from rlx.identity import identity, same_identity
from rlx.inputs import Inputs, build_rewards, read_inputs
from rlx.logs import library_log
from rlx.plan import Plan
from rlx.problems import Problems
from rlx.ranks import Ranks
from rlx.runs import RunFolder, facts, open_run
from rlx_sdk import SpecError

SHARE = "set run.dir to a folder that all machines share"
SAME = "give every machine the same settings, files and versions"


@dataclass(frozen=True)
class Start:
    """What a run starts from; nothing in it is known to fail, rewards aside.

    Attributes:
        plan: with the size of its passes.
        inputs: tokenizer and data.
        folder: of the run; nothing is written yet.
        checkpoint: to go on from.
        saved: its state; empty without one.
        identity: of data and models, by which a later part of the run knows them.
        memory: the estimate, and whether it is too much.
        careful: what else may go wrong.
    """

    plan: Plan
    inputs: Inputs
    folder: RunFolder
    checkpoint: Path | None
    saved: Mapping[str, Any]
    identity: Mapping[str, Any]
    memory: tuple[str, bool]
    careful: tuple[str, ...]


def examine(plan: Plan, ranks: Ranks, world: int, say: Callable[[str], None], progress: Progress) -> Start:
    """Look at everything. Rewards, which may be large, are tried here only to tell all at once where more is wrong.

    Args:
        plan: of the run.
        ranks: that look together.
        world: ranks that will train.
        say: is told what has changed since a checkpoint.
        progress: shown while data is read.

    Raises:
        InputError: something cannot work; all of it is named.
    """
    found = Problems()
    folder, checkpoint = ranks.first_does(lambda: found.of(lambda: open_run(plan, say))) or (None, None)
    with library_log(None), ranks.one_a_machine_first():
        inputs = found.of(lambda: read_inputs(plan, progress))
    if all(ranks.gather(inputs is not None)):
        assert inputs is not None
        plan = preflight.with_passes(plan, inputs, world)
        ranks.agree({**facts(plan, inputs), "a GPU is there": torch.cuda.is_available()}, SAME)
    saved: Mapping[str, Any] = ranks.first_does(lambda: read_state(checkpoint) if checkpoint else {})
    if checkpoint:
        ranks.agree({f"the checkpoint '{checkpoint}' is there": checkpoint.exists()}, SHARE)
    now: Mapping[str, Any] = ranks.first_does(lambda: identity(plan, inputs) if inputs is not None else {})
    if ranks.first:
        for problem in preflight.problems(plan, inputs, folder):
            found.errors.append(SpecError([problem]))
        if checkpoint and inputs is not None:
            found.of(lambda: same_identity(saved, now, plan, inputs, checkpoint, say))
            found.of(lambda: _not_done(saved["step"], inputs.total_steps, checkpoint))
    everyones = ranks.gather(found.sentences)
    if any(everyones):
        ranks.first_does(lambda: _refuse(found, everyones, plan, inputs))
    assert inputs is not None
    assert folder is not None
    memory, careful = ranks.first_does(lambda: (preflight.memory(plan, inputs, world),
                                                tuple(preflight.careful(plan, inputs, folder))))
    return Start(plan, inputs, folder, checkpoint, saved, now, memory, careful)


def _not_done(step: int, steps: int, checkpoint: Path) -> None:
    if step >= steps:
        raise SpecError([f"nothing to do: '{checkpoint}' is at step {step} of {steps} already. Raise --steps to train "
                         "on."])


def _refuse(found: Problems, everyones: list[list[str]], plan: Plan, inputs: Inputs | None) -> None:
    """Name what any rank has found, and what the rewards say, which wait for nothing now."""
    elsewhere = {text: rank for rank, texts in reversed([*enumerate(everyones)]) for text in texts
                 if text not in everyones[0]}
    found.errors += [SpecError([f"rank {rank}: {text}"]) for text, rank in elsewhere.items()]
    if inputs is not None:
        found.of(lambda: try_rewards(plan, inputs))
    found.end()


def try_rewards(plan: Plan, inputs: Inputs) -> Mapping[str, tuple[list[float | None], str]]:
    """Each reward's scores of a made-up completion of the first rows, and doubts; nothing is waited for."""
    with closing(build_rewards(plan, trial=True)) as panel:
        return panel.dry_run(inputs.train)
