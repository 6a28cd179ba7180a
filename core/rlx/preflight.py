"""What a run will need of the machine and of others, known before a model is loaded: memory, disk, credentials."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.compute as pc
import torch

from rlx.checkpoint import complete_checkpoints
from rlx.data import Prepared
from rlx.data.tokenizer import Notice
from rlx.faults import ways_to_save
from rlx.inputs import Inputs
from rlx.machine import expanded
from rlx.memory import GIB, Estimate, Load, Role, checkpoint_bytes, estimate, lora_weights, shape_of
from rlx.models import pick_device, pick_dtype
from rlx.plan import Plan
from rlx.runs import RunFolder
from rlx.text import did_you_mean, listing

LARGE_PASSES = (32_768, 16_384)
"""Tokens, tried in this order."""
TEMPLATE_ROWS = 256
SHARE_OF_GPU = 0.5
"""Of its memory that may be needed with them: others use it too, and estimates are some per cent off."""


def roles_of(plan: Plan) -> list[Role] | None:
    """The models of a run, the trained policy first; None where a model's size cannot be read from its files."""
    model, found = plan.spec.model, []
    other = {"critic": model.critic.init, "reference": model.reference.path}
    for name in sorted(plan.needs.trains | plan.needs.frozen, key=lambda name: (name not in plan.needs.trains, name)):
        adapted = name == "reference" and model.lora is not None and model.reference.path is None
        cached = name == "reference" and plan.needs.data != "rollouts" and model.reference.cache
        if adapted or cached:
            continue
        shape = shape_of(expanded(other.get(name) or model.path))
        if shape is None:
            return None
        role = Role(name, shape, 0, head=name in ("policy", "reference"))
        adapter = lora_weights(shape, model.lora.rank) if name == "policy" and model.lora else 0
        found.append(replace(role, trained=adapter or role.weights) if name in plan.needs.trains else role)
    return sorted(found, key=lambda role: role.name != "policy")


def row_tokens(train: Prepared) -> Any:
    """``[rows]`` tokens of each row: prompt and answers, each answer with its prompt."""
    lengths = {name: pc.list_value_length(train.table.column(name)).to_numpy()
               for name in ("prompt", "completion", "chosen", "rejected") if name in train.table.column_names}
    prompt = lengths.pop("prompt")
    total = sum((prompt + answer for answer in lengths.values()), np.zeros_like(prompt))
    return total if lengths else prompt


def estimate_memory(plan: Plan, inputs: Inputs, ranks: int) -> Estimate | None:
    """Of one rank; None where a model's size is not known."""
    roles, engine = roles_of(plan), plan.spec.engine
    half = pick_dtype(engine.dtype, pick_device()) == torch.bfloat16
    return estimate(roles, engine, half, ranks, _load(plan, inputs.train, ranks)) if roles else None


def with_passes(plan: Plan, inputs: Inputs, ranks: int) -> Plan:
    """The plan with the largest passes that leave most of a GPU free, unless the spec says how large.

    A model of half a billion weights learns twice as fast in passes of 32,768 tokens as in ones of 8,192.
    """
    if plan.spec.train.micro_tokens is None and torch.cuda.is_available():
        for tokens in LARGE_PASSES:
            train = plan.spec.train.model_copy(update={"micro_tokens": tokens})
            large = replace(plan, spec=plan.spec.model_copy(update={"train": train}))
            found = estimate_memory(large, inputs, ranks)
            if found and found.peak <= SHARE_OF_GPU * torch.cuda.get_device_properties(0).total_memory:
                return large
    return plan


def _load(plan: Plan, data: Prepared, ranks: int) -> Load:
    """What is computed at once: of the longest rows as many as a pass may hold."""
    train, rollout, lengths = plan.spec.train, plan.rollout, row_tokens(data)
    longest = int(lengths.max()) + (plan.spec.rollout.max_completion if rollout else 0)
    rows = -(-train.batch_size * (plan.group_size if rollout else 1) // ranks)
    in_pass = min(-(-rows // train.minibatches), train.micro_batch or rows)
    tokens = max(longest, min(train.pass_tokens, in_pass * longest))
    cached = min(rollout.entry.call("cached_tokens", rollout.options), rows * longest) if rollout else 0
    sampled = -(-cached // longest)
    learned = min(tokens, in_pass * plan.spec.rollout.max_completion) if rollout else tokens
    if train.packing:
        tokens = max(longest, min(train.pass_tokens, int(np.sort(lengths)[-in_pass:].sum())))
        return Load(tokens, tokens, min(tokens, learned), True, cached, sampled)
    if "chosen" in data.table.column_names and "policy" in plan.needs.trains:  # both answers behind one prompt
        joined = int((lengths - pc.list_value_length(data.table.column("prompt")).to_numpy()).max())
        return Load(tokens * joined // longest, joined, tokens * joined // longest, True)
    return Load(tokens, longest, learned, False, cached, sampled)


def memory_text(found: Estimate, plan: Plan, ranks: int) -> tuple[str, bool]:
    """The estimate by part against what there is, with the first setting to change if it is too much; whether it is."""
    if torch.cuda.is_available():
        there, where = torch.cuda.get_device_properties(0).total_memory, torch.cuda.get_device_name(0)
    else:
        there, where = psutil.virtual_memory().total // ranks, "this machine"
    parts = ", ".join(f"{part} {size / GIB:.2g}" for part, size in found.parts.items())
    text = f"about {found.peak / GIB:.1f} GiB at the most, in {found.phase}, of {there / GIB:.1f} on {where} ({parts})"
    if found.peak <= there:
        return text, False
    held = "held" if found.peak - found.parts["activations"] > there else "update"
    ways = ways_to_save(plan, "rollout" if found.phase == "rollouts" else held)
    return f"{text}: too much. Change first: {ways[0]}", True


def memory(plan: Plan, inputs: Inputs, ranks: int) -> tuple[str, bool]:
    """The estimate in words, and whether it is too much."""
    found = estimate_memory(plan, inputs, ranks)
    return memory_text(found, plan, ranks) if found else ("the model's files do not tell", False)


def disk_space(plan: Plan, folder: RunFolder | None) -> tuple[str | None, str | None]:
    """Why not even one checkpoint will fit, if it will not; else why not all that are to be there at once."""
    run, roles = plan.spec.run, roles_of(plan)
    if roles is None:
        return None, None
    one = checkpoint_bytes(roles, pick_dtype(plan.spec.engine.dtype, pick_device()) == torch.bfloat16)
    wanted = 1 if run.save_every is None else run.keep + 1 + (run.best is not None)  # a new one before an old one goes
    there = len(complete_checkpoints(folder.checkpoints)) if folder and run.resume else 0
    more, place = max(1, wanted - there), _existing(folder.checkpoints if folder else expanded(run.dir))
    free = shutil.disk_usage(place).free
    has = f"and '{place}' has {free / GIB:.2f} free: set run.dir to another disk, or"
    if one > free:
        return f"a checkpoint needs {one / GIB:.2f} GiB, {has} make room there", None
    needed = f"the checkpoints need {one * more / GIB:.2f} GiB ({more}{' more' * bool(there)} at once)"
    return None, f"{needed}, {has} run.keep lower" if one * more > free else None


def _existing(path: Path) -> Path:
    """The folder, or the first above it that is there."""
    return next(p for p in (path.absolute() / "x").parents if p.exists())


def folder_problem(plan: Plan) -> str | None:
    """Why the run folder cannot be written, if it cannot."""
    place = _existing(expanded(plan.spec.run.dir))
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return None
    why = "read-only" if place.is_dir() else "no folder"
    return f"the run folder cannot be made in '{place}', which is {why}: set run.dir to a folder that can be written"


def problems(plan: Plan, inputs: Inputs | None, folder: RunFolder | None) -> Iterator[str]:
    """All that will fail later for want of a folder, space or credentials; or for what is in the data."""
    if unwritable := folder_problem(plan):
        yield unwritable
    elif no_space := disk_space(plan, folder)[0]:
        yield no_space
    for tracker in plan.trackers:
        problem = tracker.entry.call("preflight", tracker.options)
        if problem:
            yield f"tracker '{tracker.name}': {problem}"
    if inputs is not None:
        yield from _data_problems(plan, inputs)


def careful(plan: Plan, inputs: Inputs, folder: RunFolder) -> Iterator[str]:
    """What may fail later, or not do what was meant, beside too little memory."""
    if space := disk_space(plan, folder)[1]:
        yield space
    if odd := odd_rows(inputs):
        yield listing(odd)


def odd_rows(inputs: Inputs) -> list[str]:
    """Of the first rows those that begin with more than one BOS, or whose answer does not end in a stop token."""
    train, stops = inputs.train, inputs.tokenizer.stop_token_ids
    rows, cut = range(min(TEMPLATE_ROWS, len(train))), set(train.notices.get(Notice.CUT, ()))
    begins = {row: leading_bos(inputs, row) for row in rows}
    return [*(f"{train.place(row)} begins with {number} BOS" for row, number in begins.items() if number > 1),
            *(f"the {name} of {train.place(row)} does not end in a stop token" for row in rows
              for name in ("completion", "chosen", "rejected") if name in train.table.column_names
              and train.row_index(row) not in cut and train.ids(row, name)[-1] not in stops)]


def leading_bos(inputs: Inputs, row: int) -> int:
    """How many BOS tokens a prompt begins with."""
    prompt, bos = inputs.train.ids(row, "prompt"), inputs.tokenizer.hf.bos_token_id
    return next((i for i, token in enumerate(prompt) if token != bos), len(prompt))


def _data_problems(plan: Plan, inputs: Inputs) -> Iterator[str]:
    """Token ids and columns that are not there."""
    yield from vocabulary_problems(plan, inputs)
    name, held_out = plan.spec.data.source, inputs.held_out
    if name and held_out and name not in held_out.rows.columns:
        yield (f"data.source: '{held_out.rows.file}' has no column '{name}', it has "
               f"{listing(held_out.rows.columns, 20)}.{did_you_mean(name, held_out.rows.columns)}")


def vocabulary_problems(plan: Plan, inputs: Inputs) -> Iterator[str]:
    """Token ids in the data for which the model has no embedding, which it would call an index out of range."""
    path, table = plan.spec.model.path, inputs.train.table
    shape = shape_of(expanded(path))
    if shape is None or len(inputs.tokenizer.hf) <= shape.vocabulary:
        return
    top = max(pc.max(pc.list_flatten(table.column(name))).as_py() for name in table.column_names
              if name in ("prompt", "completion", "chosen", "rejected"))
    if top >= shape.vocabulary:
        yield (f"the tokenizer of '{path}' gives token ids up to {top:,} for this data, and the model has embeddings "
               f"for {shape.vocabulary:,} only: they do not belong together. Put the model's own tokenizer files "
               f"there, or resize_token_embeddings({len(inputs.tokenizer.hf)}) of the model with transformers")
