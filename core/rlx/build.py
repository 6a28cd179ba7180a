"""From a plan to a trainer: the one place that knows every part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlx.checkpoint import read_tensors
from rlx.data.order import Order
from rlx.engine import Engine
from rlx.handles import Handle, RunContext
from rlx.inputs import Inputs, build_rewards
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
from rlx.plan import Plan, context_length
from rlx.ranks import Ranks, start_distributed
from rlx.sources import Cursor, OfflineSource, RolloutSource, Source
from rlx.trainer import Recorder, Trainer, seed_everything
from rlx_sdk import Role, RolloutContext, Sampling, SpecError


def build(plan: Plan, inputs: Inputs, recorder: Recorder) -> Trainer:
    """Load the models, put the trained ones under DeepSpeed, and connect everything."""
    spec, needs = plan.spec, plan.needs
    device = pick_device()
    ranks = start_distributed(device)
    if ranks.world > 1:
        raise SpecError([f"this is one of {ranks.world} processes; this version of rlx trains in one process"])
    dtype = pick_dtype(spec.engine.dtype, device)
    seed_everything(spec.run.seed, 0, ranks.rank)
    adapter_off = spec.model.lora is not None
    modules = {role: _load(plan, role, dtype, device) for role in sorted(needs.trains | needs.frozen)
               if not (role == "reference" and adapter_off)}
    updates = inputs.total_steps * spec.train.minibatches * spec.train.update_epochs
    engines = {role: Engine(modules[role], getattr(spec.train.optim, role), updates, dtype)
               for role in sorted(needs.trains)}
    temperature = spec.rollout.temperature if needs.data == "rollouts" else 1.0
    handles = {role: Handle(engines[role] if role in engines else module, torch.device(device),
                            spec.train.micro_tokens, temperature) for role, module in modules.items()}
    if "reference" in needs.frozen and adapter_off:
        policy = modules["policy"]
        handles["reference"] = replace(handles["policy"], module=without_adapter(policy.model, policy))
    source, exact = _source(plan, inputs, modules, ranks, device, dtype)
    context = RunContext(plan.algorithm.name, handles, ranks, temperature, plan.single_update, exact,
                         spec.rollout.max_completion)
    return Trainer(plan.algorithm.build(), source, engines, context, ranks, spec.train, spec.run, inputs.total_steps,
                   inputs.held_out is not None, recorder)


def resume(trainer: Trainer, checkpoint: Path, state: dict[str, Any]) -> None:
    """Put a trainer where a checkpoint with that state was taken."""
    trainer.load_state_dict(state, lambda role: read_tensors(checkpoint, role))


def _load(plan: Plan, role: Role, dtype: torch.dtype, device: str) -> Any:
    model = plan.spec.model
    if role in ("policy", "reference"):
        module: Any = CausalLM(load_causal_lm(model.path, dtype, model.trust_remote_code).to(device))
    else:
        module = Scorer(load_scorer(model.critic.init or model.path, dtype, model.trust_remote_code).to(device))
    module.requires_grad_(role in plan.needs.trains)
    if role == "policy" and model.lora is not None:
        targets = model.lora.targets
        module.model = add_lora(module.model, model.lora.rank, model.lora.alpha,
                                targets if isinstance(targets, str) else list(targets))
    return module.eval()  # dropout would make old and new logprobs of one policy differ


def _source(plan: Plan, inputs: Inputs, modules: dict[Role, Any], ranks: Ranks, device: str,
            dtype: torch.dtype) -> tuple[Source, bool]:
    """The source, and whether its rollouts are exactly the policy's."""
    spec, tokenizer = plan.spec, inputs.tokenizer
    end = len(inputs.train) * spec.train.epochs if spec.train.epochs else None
    cursor = Cursor(Order(len(inputs.train), spec.run.seed), spec.train.batch_size, ranks, end)
    if plan.rollout is None:
        return OfflineSource(inputs.train, inputs.held_out, cursor, tokenizer), True
    sampling = Sampling(spec.rollout.temperature, spec.rollout.top_p, spec.rollout.max_completion)
    longest = (spec.data.max_prompt or 0) + spec.rollout.max_completion
    backend = plan.rollout.build(RolloutContext(
        modules["policy"].model, spec.model.path, tokenizer.stop_token_ids, tokenizer.pad_token_id, device,
        str(dtype).removeprefix("torch."), context_length(Path(spec.model.path)) or longest))
    source = RolloutSource(inputs.train, inputs.held_out, cursor, tokenizer, backend, build_rewards(plan, device),
                           sampling, plan.group_size, spec.run.seed)
    return source, backend.exact
