"""From a plan to a trainer: the one place that knows every part."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import torch

from rlx.data.order import Order
from rlx.engine import Engine
from rlx.folders import context_length
from rlx.handles import Handle, RunContext
from rlx.inputs import Inputs, build_rewards
from rlx.looks.held_out import HeldOut
from rlx.models import (
    CausalLM,
    Scorer,
    add_lora,
    load_causal_lm,
    load_scorer,
    pick_device,
    pick_dtype,
    without_adapter,
)
from rlx.plan import Plan
from rlx.preflight import estimate_memory
from rlx.ranks import Ranks, seed_everything
from rlx.recorder import Recorder
from rlx.reference import cached_reference
from rlx.rewards import RewardPanel
from rlx.rollouts import RolloutSource
from rlx.sources import Cursor, OfflineSource, Source
from rlx.trainer import Trainer
from rlx_sdk import Algorithm, InputError, Role, RolloutContext, Sampling

FUSED_FROM = 2e15
"""Tokens times weights of a run that compiling fused kernels is worth: half a minute (docs/performance.md)."""


def build(plan: Plan, inputs: Inputs, ranks: Ranks, recorder: Recorder, rewards: RewardPanel | None = None) -> Trainer:
    """Load the models, put the trained ones under DeepSpeed, and connect everything; rewards may be built already."""
    spec, needs = plan.spec, plan.needs
    device = pick_device()
    dtype = pick_dtype(spec.engine.dtype, device)
    rewards = rewards or build_rewards(plan, device)
    needed = estimate_memory(plan, inputs, ranks.world) if device != "cpu" else None
    spare = max(0, int(torch.cuda.mem_get_info()[0] - needed.peak)) if needed else None
    seed_everything(spec.run.seed, 0, 0)  # every rank begins with the same new weights
    temperature = spec.rollout.temperature if needs.data == "rollouts" else 1.0
    make = partial(Handle, device=torch.device(device), micro_tokens=spec.train.pass_tokens,
                   micro_batch=spec.train.micro_batch, temperature=temperature, packed=spec.train.packing)
    modules: dict[Role, Any] = {}
    engines: dict[Role, Engine] = {}
    for role in sorted(needs.trains):  # one is split before the next is loaded
        modules[role] = _load(plan, role, inputs, dtype, device)
        ranks.gather(None)  # a slow disk has our patience; DeepSpeed, which sends weights now, waits ten minutes
        engines[role] = build_engine(plan, inputs, role, modules[role], dtype)
    handles: dict[Role, Any] = {role: make(engine, in_step=ranks if engine.in_step else None)
                                for role, engine in engines.items()}
    for role in sorted(needs.frozen):
        load = partial(_frozen, plan, role, modules, handles, lambda r: make(_load(plan, r, inputs, dtype, device)))
        cached = role == "reference" and needs.data != "rollouts" and spec.model.reference.cache
        handles[role] = cached_reference(plan, inputs, ranks, load, recorder.note) if cached else load()
    algorithm = plan.algorithm.build()
    source, exact = _source(plan, algorithm, inputs, modules, engines, ranks, device, dtype, rewards, spare)
    context = RunContext(plan.algorithm.name, handles, ranks, temperature, plan.single_update, exact,
                         spec.rollout.max_completion)
    return Trainer(algorithm, source, engines, context, ranks, spec.train, spec.run, inputs.total_steps,
                   inputs.held_out is not None, recorder)


def build_engine(plan: Plan, inputs: Inputs, role: Role, module: Any, dtype: torch.dtype) -> Engine:
    """The engine of a trained role."""
    train = plan.spec.train
    updates = inputs.total_steps * train.minibatches * train.update_epochs
    return Engine(module, getattr(train.optim, role), updates, dtype, plan.spec.engine)


def _frozen(plan: Plan, role: Role, modules: dict[Role, Any], handles: dict[Role, Any],
            load: Callable[[Role], Handle]) -> Handle:
    """A role that only answers: the policy without its adapter, or a model of its own."""
    model = plan.spec.model
    if role == "reference" and model.lora is not None and model.reference.path is None:
        policy: Handle = handles["policy"]
        return replace(policy, module=without_adapter(modules["policy"].model, policy.module))
    return load(role)


def _load(plan: Plan, role: Role, inputs: Inputs, dtype: torch.dtype, device: str) -> Any:
    model = plan.spec.model
    if role in ("policy", "reference"):
        path = model.reference.path if role == "reference" and model.reference.path else model.path
        module: Any = CausalLM(load_causal_lm(path, dtype, model.trust_remote_code).to(device))
    else:
        start = model.critic.init if role == "critic" and model.critic.init else model.path
        module = Scorer(load_scorer(start, dtype, model.trust_remote_code).to(device))
    if plan.spec.train.packing:
        module.pack()
    if _fuses(plan, inputs, sum(weight.numel() for weight in module.parameters()), device):
        module.fuse()
    module.requires_grad_(role in plan.needs.trains)
    if role == "policy" and model.lora is not None:
        targets = model.lora.targets
        module.model = add_lora(module.model, model.lora.rank, model.lora.alpha,
                                targets if isinstance(targets, str) else list(targets))
    return module.eval()  # dropout would make old and new logprobs of one policy differ


def _fuses(plan: Plan, inputs: Inputs, weights: int, device: str) -> bool:
    engine, compiler = plan.spec.engine, os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if engine.compile and not compiler:
        raise InputError("engine.compile needs a C compiler (gcc or clang), and there is none; install one, or leave "
                         "it out.")
    worth = device != "cpu" and engine.zero_stage < 3 and weights * _tokens(plan, inputs) >= FUSED_FROM
    return worth and compiler is not None if engine.compile is None else engine.compile


def _tokens(plan: Plan, inputs: Inputs) -> int:
    """Of the run, at most: that are sampled, or read."""
    rows = inputs.total_steps * plan.spec.train.batch_size
    if plan.rollout is None:
        return int(rows * inputs.train.mean_tokens)
    return rows * plan.group_size * plan.spec.rollout.max_completion


def _source(plan: Plan, algorithm: Algorithm[Any], inputs: Inputs, modules: dict[Role, Any],
            engines: dict[Role, Engine], ranks: Ranks, device: str, dtype: torch.dtype,
            rewards: RewardPanel, spare: int | None) -> tuple[Source, bool]:
    """The source, and whether its rollouts are exactly the policy's."""
    spec, tokenizer = plan.spec, inputs.tokenizer
    end = len(inputs.train) * spec.train.epochs if spec.train.epochs else None
    cursor = Cursor(Order(len(inputs.train), spec.run.seed), spec.train.batch_size, ranks, end)
    if plan.rollout is None:
        return OfflineSource(inputs.train, inputs.held_out, cursor, tokenizer), True
    limit = spec.rollout.max_completion
    sampling = Sampling(spec.rollout.temperature, max_tokens=limit)
    evaluation = HeldOut.of(spec, plan.group_size, inputs.held_out.rows.columns if inputs.held_out else ())
    longest = limit + max(pc.max(pc.list_value_length(data.table["prompt"])).as_py()
                          for data in (inputs.train, inputs.held_out) if data)
    rows = max(-(-each // ranks.world) * n for each, n in (
        (spec.train.batch_size, plan.group_size), (len(inputs.held_out or ()), evaluation.n)))
    backend = plan.rollout.build(RolloutContext(
        modules["policy"].model, spec.model.path, tokenizer.stop_token_ids, tokenizer.pad_token_id, device,
        str(dtype).removeprefix("torch."), context_length(Path(spec.model.path)) or longest,
        engines["policy"].whole, _tokens(plan, inputs) // ranks.world, spec.engine.offload_while_sampling,
        (rows, longest), spare))
    source = RolloutSource(inputs.train, inputs.held_out, cursor, tokenizer, backend, rewards, sampling, evaluation,
                           plan.group_size, spec.run.seed, plan.needs, algorithm.keep, spec.run.sample_every,
                           inputs.total_steps if spec.rollout.ahead else 0)
    return source, backend.exact and not spec.rollout.ahead
