"""Settings that are each fine and cannot act, or cannot work, together; and what local model folders tell."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rlx.folders import context_length, folder_problems
from rlx.layers import lookup
from rlx.machine import expanded
from rlx.registry import PROGRAM, Registry
from rlx.spec import MAX_FAILED
from rlx.text import listing

if TYPE_CHECKING:
    from rlx.plan import Plan


def inert(plan: Plan, given: set[str]) -> Iterator[str]:
    """Settings the user gave that cannot act in this combination."""
    needs, name = plan.needs, plan.algorithm.name
    offline = f"{name} learns from {needs.data} in the data file here, so nothing is sampled"
    rules: list[tuple[str, bool, str]] = [
        *((setting, needs.data == "rollouts", offline) for setting in ("rollout", "data.source")),
        ("rewards", needs.rewards, f"{name} uses no reward"),
        ("combine", bool(plan.rewards), "there is no reward"),
        *((f"train.optim.{role}", role in needs.trains, f"{name} trains no {role}")
          for role in type(plan.spec.train.optim).model_fields),
        ("model.critic", "critic" in needs.trains, f"{name} trains no critic"),
        ("model.lora", "policy" in needs.trains, f"{name} trains no policy"),
        ("model.reference", "reference" in needs.frozen, f"{name} compares with no reference here"),
        ("model.reference.cache", needs.data != "rollouts", "sampled completions are new each time"),
        ("data.max_length", needs.data != "rollouts", f"{name} samples its completions; set rollout.max_completion"),
        ("engine.offload_while_sampling", needs.data == "rollouts" and "policy" in needs.trains, f"{name} samples "
         "nothing here"),
        ("engine.offload_while_sampling", plan.spec.engine.offload is None, "engine.offload keeps them there always"),
        ("engine.offload_while_sampling", not plan.spec.rollout.ahead, "rollout.ahead samples during updates"),
        ("run.sample_every", needs.data == "rollouts", f"{name} writes no samples here"),
        ("run.resume_changed", plan.spec.run.resume is not None, "nothing is resumed"),
        *((setting, plan.spec.run.save_every is not None, "without run.save_every only one checkpoint is written")
          for setting in ("run.keep", "run.best", "run.failed_save")),
        *((setting, bool(plan.spec.data.eval), "there is no data.eval to evaluate on")
          for setting in ("run.eval_every", "rollout.eval", "data.source")),
        ("rollout.eval.group_size", getattr(plan.spec.rollout.eval, "temperature", 1) > 0, "greedy ones are all alike"),
        *((f"algo.{option}", not plan.single_update, "each batch makes one update (train.minibatches and "
           "train.update_epochs are 1)") for option in sorted(needs.several_updates)),
    ]
    for prefix, acts, why in rules:
        hit = sorted(s for s in given if s == prefix or s.startswith(prefix + "."))
        if hit and not acts:
            yield f"{listing(hit)} can have no effect: {why}. Leave it out."


def conflicts(plan: Plan, registry: Registry) -> Iterator[str]:
    """Values that are each fine and cannot work together."""
    spec, needs, name = plan.spec, plan.needs, plan.algorithm.name
    if spec.model.lora and find_spec("peft") is None:
        yield "model.lora needs the package 'peft', which is not installed: pip install 'rlx[peft]'"
    if spec.engine.deterministic and plan.rollout and not plan.rollout.entry.plugin.deterministic:
        yield (f"engine.deterministic: what the rollout backend '{plan.rollout.name}' samples depends on what it "
               "computes side by side; use --rollout hf, or leave the setting out")
    if spec.rollout.ahead and plan.rollout and not plan.rollout.entry.plugin.concurrent:
        able = listing((e.name for e in registry.entries("rollout") if e.plugin.concurrent), 12)
        yield (f"rollout.ahead: the rollout backend '{plan.rollout.name}' cannot sample while the trainer computes; "
               f"use --rollout {able}, or leave the setting out")
    if needs.rewards and not spec.rewards:
        rewards = listing((e.name for e in registry.entries("reward")), 12)
        yield f"{name} needs a reward: give --reward NAME (installed: {rewards})"
    if needs.data == "rollouts" and plan.group_size < needs.min_group:
        yield (f"rollout.group_size = {plan.group_size}: {name} compares completions of one prompt and needs at least "
               f"{needs.min_group}")
    yield from (f"rewards[{i}].max_failed can have no effect: its on_error = stop ends the run at the first failure"
                for i, r in enumerate(spec.rewards) if r.on_error == "stop" and r.max_failed != MAX_FAILED)
    if spec.combine == "normalized" and plan.rewards and plan.group_size < 2:
        yield (f"combine = normalized compares completions of one prompt: rollout.group_size = {plan.group_size} must "
               "be 2 or more")
    yield from (f"reward '{r.name}' is a function of the program itself, which no other process could find: for "
                "isolate = process, put it into a file and name it as file.py:function" for r, s in
                zip(plan.rewards, spec.rewards, strict=False) if s.isolate and r.entry.package == PROGRAM)
    if needs.data == "rollouts" and spec.rollout.max_completion < needs.min_completion:
        yield (f"rollout.max_completion = {spec.rollout.max_completion}: {name} with these options needs at least "
               f"{needs.min_completion}")
    if needs.teacher and spec.model.reference.path is None:
        yield f"{name} learns from another model: name it with model.reference.path"
    if needs.rounds > 1 and spec.train.epochs is not None:
        yield (f"train.epochs: {name} samples as many prompts as it needs, so passes over the data do not say how long "
               "the run is; give --steps N")
    if spec.run.resume == "auto" and spec.run.name is None:
        yield "run.resume = auto continues the run of one name; give it with --name (run.name)"
    save, evaluate = spec.run.save_every, spec.run.eval_every
    if save and (spec.run.best or "").lstrip("-").startswith("eval/") and (not evaluate or save % evaluate):
        yield (f"run.best = {spec.run.best} is measured every {evaluate or 'never'} steps (run.eval_every) and "
               f"checkpoints are written every {save} (run.save_every): make that a multiple of run.eval_every")
    if spec.engine.offload == "all" and spec.engine.zero_stage < 3:
        yield "engine.offload = all moves weights that are split over the ranks: set engine.zero_stage = 3 with it"
    if spec.engine.compile and spec.engine.zero_stage == 3:
        yield "engine.compile fuses what engine.zero_stage = 3 gathers and drops layer by layer: use stage 1 or 2"
    if spec.train.steps is None and spec.train.epochs is None:
        yield "no length: give --steps N, or train.epochs"
    if spec.train.steps is not None and spec.train.epochs is not None:
        yield "train.steps and train.epochs both say how long to train; give one"
    rows = spec.train.batch_size * (plan.group_size if needs.data == "rollouts" and not needs.row_per_prompt else 1)
    if spec.train.minibatches > rows:
        one = f" ({name} makes one of a prompt's completions)" if needs.row_per_prompt else ""
        yield (f"train.minibatches = {spec.train.minibatches} splits a batch of {rows} rows{one} into more parts than "
               "it has")
    names = [r.name for r in plan.rewards]
    yield from (f"reward '{n}' is named twice; give it once with the weight you mean, or each a label of its own"
                for n in dict.fromkeys(names) if names.count(n) > 1)
    yield from _model_problems(plan)


def _model_problems(plan: Plan) -> Iterator[str]:
    """What local model folders tell without loading them."""
    spec = plan.spec
    for setting in ("model.path", "model.critic.init", "model.reference.path"):
        value = lookup(spec.model.model_dump(), setting.removeprefix("model."))
        if value is not None:
            yield from folder_problems(setting, value)
    context = context_length(expanded(spec.model.path))
    prompt, completion, total = spec.data.max_prompt, spec.rollout.max_completion, spec.data.max_length
    limit = f"{context}, the model's context (max_position_embeddings)"
    if context and plan.needs.data == "rollouts" and (prompt or 1) + completion > context:
        summands = f"data.max_prompt + rollout.max_completion = {prompt} + {completion}"
        yield f"{summands if prompt else f'a prompt + rollout.max_completion = 1 or more + {completion}'} > {limit}"
    if context and plan.needs.data != "rollouts" and total and total > context:
        yield f"data.max_length = {total} > {limit}"
    other = spec.model.reference.path and context_length(expanded(spec.model.reference.path))
    longest = (prompt or 0) + completion if plan.needs.data == "rollouts" else total or context or 0
    if other and longest > other:
        yield f"rows of up to {longest} tokens > {other}, the context of model.reference.path; set data.max_length"
    if total and prompt and total <= prompt:
        yield f"data.max_length = {total} leaves nothing for an answer after data.max_prompt = {prompt}"
