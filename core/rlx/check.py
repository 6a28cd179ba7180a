"""What can be known of a run without training: the same steps that ``train`` takes first, and a dry run of rewards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch

from rlx import preflight
from rlx.data import Example, Prepared, Tokenizer, describe
from rlx.data.cache import Progress, unseen
from rlx.data.messages import RowProblem
from rlx.data.tokenizer import Notice
from rlx.inputs import Inputs, build_rewards, read_inputs
from rlx.logs import library_log
from rlx.plan import Plan
from rlx.rewards import as_sample
from rlx.runs import open_run
from rlx.text import count, listing
from rlx_sdk import SpecError

DRY_ROWS = 4
DRY_COMPLETION = "Thank you, here is an answer."
TEMPLATE_ROWS = 256


def check_plan(plan: Plan, progress: Progress = unseen, ranks: int = 1) -> dict[str, Any]:
    """Read model folder, tokenizer and data, score some rows with a made-up completion, and look at the machine.

    Raises:
        InputError: something cannot work; what the machine and others lack is named together.
        RewardError: a reward fails on the dry run.
    """
    open_run(plan, lambda note: None)
    with library_log(None):
        inputs = read_inputs(plan, progress)
    plan = preflight.with_passes(plan, inputs, ranks)
    report: dict[str, Any] = {
        "algorithm": f"{plan.algorithm.name} ({plan.needs.data})",
        "model": plan.spec.model.path,
        "data": describe(inputs.train),
        "held out": len(inputs.held_out) if inputs.held_out else 0,
        "steps": inputs.total_steps,
        "batch": _batch(plan, inputs, ranks),
        "lengths": _lengths(plan, inputs.train),
        "tokens": _round_trip(inputs),
        "machine": _machine(),
    }
    problems = [*_machine_problems(plan, ranks), *preflight.problems(plan, inputs)]
    found = preflight.estimate_memory(plan, inputs, ranks)
    report["memory"] = preflight.memory_text(found, plan, ranks)[0] if found else "the model's files do not tell"
    if problems:
        raise SpecError(problems)
    if plan.rewards:
        report["rewards on a made-up completion"] = _dry_run(plan, inputs.train)
    notes = [*plan.notes, *inputs.tokenizer.notes]
    if notes:
        report["notes"] = "; ".join(notes)
    return report


def _batch(plan: Plan, inputs: Inputs, ranks: int) -> str:
    """The arithmetic of a step."""
    train, group = plan.spec.train, plan.group_size if plan.needs.data == "rollouts" else 1
    rows = train.batch_size * group
    step = f"{train.batch_size} prompts x {group} completions = " * (group > 1) + f"{rows} rows a step"
    if ranks > 1:
        idle = max(0, ranks - rows // train.minibatches)
        padding = f"{count(idle, 'rank has', 'ranks have')} a row of padding alone" if idle else "none is padding"
        step += f" on {ranks} ranks, {rows / ranks:.3g} each on average, by length, {padding}"
    updates = count(train.minibatches * train.update_epochs, "optimizer step")
    passes = inputs.total_steps * train.batch_size / len(inputs.train)
    return (f"{step}; {updates} of {rows / train.minibatches:g} rows; {inputs.total_steps} steps are "
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
    rows = range(min(TEMPLATE_ROWS, len(train)))
    cut = set(train.notices.get(Notice.CUT, ()))
    begins = [_leading_bos(tokenizer, train.ids(row, "prompt")) for row in rows]
    found = [f"{train.place(row)} begins with {number} BOS" for row, number in zip(rows, begins, strict=True)
             if number > 1]
    found += [f"the {name} of {train.place(row)} does not end in a stop token" for row in rows
              for name in ("completion", "chosen", "rejected") if name in train.table.column_names
              and train.row_index(row) not in cut and train.ids(row, name)[-1] not in tokenizer.stop_token_ids]
    kept = sum(_begins_the_whole(tokenizer, train.example(row)) for row in rows)
    text = (f"of the first {len(rows)} prompts {kept} are written the same with an answer behind them, and "
            f"{begins.count(1)} begin with one BOS")
    text += "" if train.kind == "rollouts" else "; the stop token is the last that is learned"
    return text + (f"; but {listing(found)}" if found else "")


def _leading_bos(tokenizer: Tokenizer, prompt: list[int]) -> int:
    bos = tokenizer.hf.bos_token_id
    return next((i for i, token in enumerate(prompt) if token != bos), len(prompt))


def _begins_the_whole(tokenizer: Tokenizer, example: Example) -> bool:
    """Whether the template writes a prompt the same once its answer follows."""
    answers = example.answers or (DRY_COMPLETION,)
    try:
        return not any(tokenizer.answer_text(example.prompt, answer, example.tools)[1] for answer in answers)
    except RowProblem:
        return False


def _machine() -> str:
    gpus = torch.cuda.device_count()
    cores = f"{len(os.sched_getaffinity(0))} CPU cores"
    return f"{count(gpus, 'GPU')} ({torch.cuda.get_device_name(0)}), {cores}" if gpus else f"no GPU, {cores}"


def _machine_problems(plan: Plan, ranks: int) -> Iterator[str]:
    gpus = torch.cuda.device_count()
    if 0 < gpus < ranks:
        yield f"--gpus {ranks}: this machine has {gpus}"


def _dry_run(plan: Plan, train: Prepared) -> str:
    rows = range(min(DRY_ROWS, len(train)))
    samples = [as_sample(train.example(row), DRY_COMPLETION, "stop") for row in rows]
    with closing(build_rewards(plan, trial=True)) as panel:
        found = panel.score(samples, [train.place(row) for row in rows]).by_provider.items()
    nothing = " (it judged none, and so teaches nothing: has the data the columns that it reads?)"
    return ", ".join(f"{name} {scores}{nothing * (set(scores) == {None})}" for name, scores in found)
