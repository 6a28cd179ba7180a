"""What can go wrong within a step: numbers that are not finite, and memory that is not enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlx.batching import row_lengths
from rlx.engine import Engine
from rlx.metrics import Accumulator
from rlx.plan import Plan
from rlx.ranks import Ranks
from rlx.spec import TrainSpec
from rlx_sdk import Batch, TrainingError

SHOWN = 3


class Seen(list[tuple[Batch, Tensor]]):
    """The micro-batches of an update, each with the losses of its rows, ``[B]``; and the one at work."""

    current: Batch

    @property
    def current_tokens(self) -> int:
        """With its padding."""
        return len(self.current) * int(row_lengths(self.current).amax(0).sum())


def accumulate(losses: Callable[[Accumulator, Seen], Iterable[Tensor]], engine: Engine, ranks: Ranks, total: float,
               smaller: Callable[[int], None]) -> tuple[Accumulator, Seen]:
    """A minibatch's gradients, and what was measured on the way.

    After a pass that did not fit into memory all of them are made again, in passes of half as many tokens, where that
    is exact: in one process, with an engine that `repeats`, and as long as a pass has several rows.

    Args:
        losses: ``Σ weight·loss`` of each micro-batch.
        engine: of the role that learns.
        ranks: all processes.
        total: weight of the whole minibatch.
        smaller: is told how many tokens a pass has from now on.
    """
    while True:
        measured, seen = Accumulator(ranks), Seen()
        try:
            for weighted in losses(measured, seen):
                # A loss that is not finite spoils the gradient in any case, so that the update is skipped.
                engine.backward(weighted * torch.where(weighted.detach().isfinite(), ranks.world / total, math.nan))
            return measured, seen
        except RuntimeError as error:
            if ranks.world > 1 or not engine.repeats or not out_of_memory(error) or len(seen.current) == 1:
                raise
        engine.forget()  # not in there: the error holds the tensors of the pass
        smaller(seen.current_tokens // 2)


def passes(train: TrainSpec, budget: int) -> list[int | None]:
    """For a checkpoint: the tokens of a pass after out of memory, 0 if there was none, and the settings of its size."""
    return [budget, train.pass_tokens, train.micro_batch]


def fitted(saved: list[int | None] | None, train: TrainSpec, say: Callable[[str], None]) -> int:
    """Tokens of a pass that fitted before a checkpoint; 0 where the settings decide, or have become others."""
    budget = (saved or [0])[0]
    if not budget or saved != passes(train, budget):
        return 0
    say(f"train.micro_tokens = {budget}: larger passes did not fit before the checkpoint; --set train.micro_tokens=N "
        "tries another size")
    return budget


def out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the CPU, had too little."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def explain_out_of_memory(error: BaseException, phase: str, plan: Plan) -> TrainingError:
    """The phase, and the settings to change, the cheapest first."""
    said = str(error).strip().partition("\n")[0]
    return TrainingError(f"out of memory in {phase} ({said:.200}). Change, in this order: "
                         f"{'; '.join(ways_to_save(plan, phase))}.")


def ways_to_save(plan: Plan, phase: str = "update") -> list[str]:
    """Settings that need less memory in a phase, the cheapest first; without those that are used or refused.

    Where what is held between passes does not fit, the phase is ``held``.
    """
    spec, engine, several = plan.spec, plan.spec.engine, len(plan.needs.trains) > 1
    length = "rollout.max_completion" if spec.rewards else "data.max_length"
    stays = engine.offload or engine.offload_while_sampling or spec.rollout.ahead or plan.needs.data != "rollouts"
    instead = " in place of engine.offload_while_sampling" if engine.offload_while_sampling else ""
    ways = [  # whether there is such a setting to change, and phases that it helps
        ("rollout.options (the backend's own memory or batch)", True, "sampling"),
        (f"train.micro_tokens, now {spec.train.pass_tokens} (or train.micro_batch = 1)", True, "prepare update"),
        ("engine.activation_checkpointing = true", not engine.activation_checkpointing, "update"),
        ("engine.offload_while_sampling = true", not stays, "sampling update held" if several else "sampling"),
        ("engine.zero_stage = 2 or 3, on more GPUs", engine.zero_stage < 3, "update held"),
        (f"engine.offload = optimizer{instead}", engine.offload is None, "update held"),
        ("model.lora.rank = 16", spec.model.lora is None, "update held"),
        (f"a smaller {length}", True, "sampling prepare update"),
        ("train.batch_size", True, "sampling"), ("a smaller model", True, "held")]
    kind = {"rollout": "sampling", "sync": "sampling", "prepare": phase, "held": phase}.get(phase, "update")
    return [way for way, open_, helped in ways if open_ and kind in helped.split()]


def describe_rows(rows: Sequence[Batch], decode: Any) -> list[dict[str, Any]]:
    """Text and tokens of each row's first sequence."""
    return [{"tokens": length, "text": decode(tokens[:length], specials=True)}
            for seqs in (next(iter(batch.sequences.values())) for batch in rows)
            for tokens, length in zip(seqs.tokens.tolist(), seqs.length.tolist(), strict=True)]


def skipped_text(step: int, role: str, rows: Sequence[dict[str, Any]]) -> str:
    """One sentence on an update that was skipped."""
    if not rows:
        return f"step {step}: an update of the {role} is skipped: its gradient is not finite, its losses are"
    shown = ", ".join(f"{row['text']!r:.60} ({row['tokens']} tokens)" for row in rows[:SHOWN])
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return f"step {step}: an update of the {role} is skipped: the loss is not finite for {shown}{more}"
