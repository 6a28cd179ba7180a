"""What can be known of a run without training: what ``train`` looks at first, and more of it in words."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch

from rlx import preflight
from rlx.data import Example, Prepared, Tokenizer, describe
from rlx.data.cache import Progress, unseen
from rlx.data.messages import RowProblem
from rlx.inputs import Inputs
from rlx.plan import Plan
from rlx.ranks import Ranks
from rlx.rewards import DRY_COMPLETION
from rlx.start import examine, try_rewards
from rlx.text import count


def check_plan(plan: Plan, progress: Progress = unseen, ranks: int = 1) -> dict[str, Any]:
    """Read model folder, tokenizer and data, score some rows with a made-up completion, and look at the machine.

    Raises:
        InputError: something cannot work; all of it is named together.
        RewardError: nothing else is wrong, and a reward fails on the dry run.
    """
    changed: list[str] = []
    start = examine(plan, Ranks(), ranks, changed.append, progress)
    plan, inputs = start.plan, start.inputs
    report: dict[str, Any] = {
        "algorithm": f"{plan.algorithm.name} ({plan.needs.data})",
        "model": plan.spec.model.path,
        "data": describe(inputs.train),
        "held out": len(inputs.held_out) if inputs.held_out else 0,
        "steps": inputs.total_steps,
        "batch": _batch(plan, inputs, ranks),
        "lengths": _lengths(plan, inputs.train),
        "tokens": _round_trip(inputs),
        "machine": _machine(ranks),
        "memory": start.memory[0],
    }
    if plan.rewards:
        tried = try_rewards(plan, inputs)
        report["rewards on a made-up completion"] = ", ".join(
            f"{name} {scores}{f' ({doubt})' * bool(doubt)}" for name, (scores, doubt) in tried.items())
    if start.careful:
        report["careful"] = "; ".join(start.careful)
    notes = [*changed, *plan.notes, *inputs.tokenizer.notes]
    if notes:
        report["notes"] = "; ".join(notes)
    return report


def _batch(plan: Plan, inputs: Inputs, ranks: int) -> str:
    """The arithmetic of a step."""
    train, group = plan.spec.train, plan.group_size if plan.needs.data == "rollouts" else 1
    rows = train.batch_size * group
    step = f"{count(train.batch_size, 'prompt')} x {group} completions = " * (group > 1)
    step += f"{count(rows, 'row')} a step"
    if ranks > 1:
        idle = max(0, ranks - rows // train.minibatches)
        padding = f"{count(idle, 'rank has', 'ranks have')} a row of padding alone" if idle else "none is padding"
        step += f" on {ranks} ranks, {rows / ranks:.3g} each on average, by length, {padding}"
    updates = count(train.minibatches * train.update_epochs, "optimizer step")
    passes = inputs.total_steps * train.batch_size / len(inputs.train)
    each, steps = rows / train.minibatches, count(inputs.total_steps, "step is", "steps are")
    return (f"{step}; {updates} of {each:g} row{'s' * (each != 1)}; {steps} "
            f"{passes:{'.2g' if passes < 10 else ',.0f'}} passes over {count(len(inputs.train), 'row')}")


def _lengths(plan: Plan, train: Prepared) -> str:
    """Tokens a row of each part; and the limit that holds nearly all, where a few rows are far longer."""
    columns = [name for name in ("prompt", "completion", "chosen", "rejected") if name in train.table.column_names]
    numbers = {name: pc.list_value_length(train.table.column(name)).to_numpy() for name in columns}
    if plan.needs.data != "rollouts":
        numbers["whole row"] = preflight.row_tokens(train)
    text = "; ".join(f"{name} {n.min()} to {n.max()} (half up to {np.median(n):.0f}, 99% up to "
                     f"{np.quantile(n, 0.99):.0f})" for name, n in numbers.items())
    setting, longest = ("data.max_prompt", numbers["prompt"]) if plan.needs.data == "rollouts" else (
        "data.max_length", np.maximum.reduce([numbers["prompt"] + numbers[name] for name in columns[1:]]))
    near_all = int(np.quantile(longest, 0.99))
    few = int((longest > near_all).sum())
    return text if longest.max() < 2 * near_all else (
        f"{text}. {setting} = {near_all} with data.overlong = drop would leave out {count(few, 'row')} and make the "
        f"longest {longest.max() / near_all:.1f} times shorter")


def _round_trip(inputs: Inputs) -> str:
    """Of the first rows: whether prompts are the beginning of the whole conversation, one BOS, and the stop token."""
    train, tokenizer = inputs.train, inputs.tokenizer
    rows = range(min(preflight.TEMPLATE_ROWS, len(train)))
    begins = [preflight.leading_bos(inputs, row) for row in rows]
    kept = sum(_begins_the_whole(tokenizer, train.example(row)) for row in rows)
    text = (f"of the first {len(rows)} prompts {kept} are written the same with an answer behind them, and "
            f"{begins.count(1)} begin with one BOS")
    return text + ("" if train.kind == "rollouts" else "; the stop token is the last that is learned")


def _begins_the_whole(tokenizer: Tokenizer, example: Example) -> bool:
    """Whether the template writes a prompt the same once its answer follows."""
    answers = example.answers or (DRY_COMPLETION,)
    try:
        return not any(tokenizer.answer_text(example.prompt, answer, example.tools)[1] for answer in answers)
    except RowProblem:
        return False


def _machine(ranks: int) -> str:
    gpus = torch.cuda.device_count()
    few = f"; {ranks} ranks need as many GPUs, of one machine or of several" * (0 < gpus < ranks)
    cores = f"{len(os.sched_getaffinity(0))} CPU cores{few}"
    return f"{count(gpus, 'GPU')} ({torch.cuda.get_device_name(0)}), {cores}" if gpus else f"no GPU, {cores}"
