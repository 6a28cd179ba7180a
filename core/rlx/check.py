"""What can be known of a run without training: the same steps that ``train`` takes first, and a dry run of rewards."""

from __future__ import annotations

from typing import Any

from rlx.data import Prepared, describe
from rlx.data.cache import Progress, unseen
from rlx.inputs import build_rewards, read_inputs
from rlx.logs import library_log
from rlx.plan import Plan
from rlx.runs import open_run
from rlx_sdk import Sample

DRY_ROWS = 4
DRY_COMPLETION = "Thank you, here is an answer."


def check_plan(plan: Plan, progress: Progress = unseen) -> dict[str, Any]:
    """Read model folder, tokenizer and data, and score some rows with a made-up completion.

    Raises:
        InputError: something cannot work.
        RewardError: a reward fails on the dry run.
    """
    open_run(plan, lambda note: None)
    with library_log(None):
        inputs = read_inputs(plan, progress)
    report: dict[str, Any] = {
        "algorithm": f"{plan.algorithm.name} ({plan.needs.data})",
        "model": plan.spec.model.path,
        "data": describe(inputs.train),
        "held out": len(inputs.held_out) if inputs.held_out else 0,
        "steps": inputs.total_steps,
    }
    if plan.rewards:
        report["rewards on a made-up completion"] = _dry_run(plan, inputs.train)
    notes = [*plan.notes, *inputs.tokenizer.notes]
    if notes:
        report["notes"] = "; ".join(notes)
    return report


def _dry_run(plan: Plan, train: Prepared) -> str:
    rows = range(min(DRY_ROWS, len(train)))
    samples = []
    for row in rows:
        example = train.example(row)
        messages = () if isinstance(example.prompt, str) else tuple(example.prompt)
        text = example.prompt if isinstance(example.prompt, str) else str(example.prompt[-1].get("content") or "")
        samples.append(Sample(text, DRY_COMPLETION, messages, "stop", example.row))
    panel = build_rewards(plan)
    try:
        judged = panel.score(samples, [train.place(row) for row in rows])
    finally:
        panel.close()
    return ", ".join(f"{name} {scores}" for name, scores in judged.by_provider.items())
