"""One trained model under DeepSpeed ZeRO: accumulate any number of micro-batches, then step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlx.spec import OptimSpec
from rlx_sdk import CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq")


class StepResult(NamedTuple):
    """What an optimizer step did: gradient norm before clipping, learning rate, whether it was skipped."""

    grad_norm: float
    lr: float
    skipped: bool


class Engine:
    """A module, its optimizer and its schedule.

    Gradients of all `backward` calls between two `step` calls are summed as they are: the caller has already scaled
    each micro-batch by its share of the global batch. So the result is that of one big batch.
    """

    def __init__(self, module: nn.Module, optim: OptimSpec, total_updates: int, dtype: torch.dtype) -> None:
        """Put the module under ZeRO.

        Args:
            module: has the plain HF model as its attribute ``model``.
            optim: optimizer settings.
            total_updates: optimizer steps of the whole run, for the schedule.
            dtype: of the working weights; float32 masters and moments are kept either way.
        """
        import deepspeed

        self._optim, self._total = optim, total_updates
        self.updates = 0
        parameters = [p for p in module.parameters() if p.requires_grad]
        adamw = torch.optim.AdamW(parameters, lr=optim.lr, betas=optim.betas, eps=optim.eps,
                                  weight_decay=optim.weight_decay, fused=True)
        self._deepspeed = deepspeed.initialize(model=module, optimizer=adamw, config=_config(optim, dtype))[0]
        self.module: Any = module

    @property
    def device(self) -> torch.device:
        """Where the module lives."""
        device: torch.device = next(self.module.parameters()).device
        return device

    def __call__(self, *args: Any) -> Any:
        """The module's forward pass."""
        return self._deepspeed(*args)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a scalar."""
        self._deepspeed.backward(loss, scale_wrt_gas=False)

    def step(self, index: int) -> StepResult:
        """Reduce over ranks, clip, update, forget the gradients. A gradient that is not finite skips the update.

        Args:
            index: of this update in the whole run, for the learning rate.
        """
        lr = learning_rate(self._optim, index, self._total)
        for group in self._deepspeed.optimizer.param_groups:
            group["lr"] = lr
        before = self._deepspeed.skipped_steps
        self._deepspeed.step()
        skipped = self._deepspeed.skipped_steps > before
        self.updates += not skipped
        norm = self._deepspeed.get_global_grad_norm()
        return StepResult(math.nan if norm is None else float(norm), lr, skipped)

    def policy_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full weights by HF name, one at a time, as the forward pass uses them; copy each before the next."""
        yield from self.module.weights()

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from ((n, p) for n, p in self.module.model.named_parameters() if p.requires_grad)

    def state_dict(self) -> dict[str, Tensor]:
        """Trained weights in float32, and moments if a step was made, by kind and name."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        state: dict[str, Tensor] = {}
        for name, parameter in self._trained():
            state[f"weight/{name}"] = safe_get_full_fp32_param(parameter).cpu()
            for moment in MOMENTS if self.updates else ():
                state[f"{moment}/{name}"] = safe_get_full_optimizer_state(parameter, moment).cpu()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Take back what `state_dict` gave after ``updates`` optimizer steps.

        Raises:
            CheckpointError: a weight is missing or has another shape.
        """
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        if updates:
            self._make_moments()
        with torch.no_grad():
            for name, parameter in self._trained():
                saved = state.get(f"weight/{name}")
                if saved is None or saved.shape != parameter.shape:
                    found = "nothing" if saved is None else f"shape {tuple(saved.shape)}"
                    raise CheckpointError(f"the checkpoint has {found} for the weight '{name}' of shape "
                                          f"{tuple(parameter.shape)}; it is of another model.")
                value = saved.to(parameter.device)
                safe_set_full_fp32_param(parameter, value)
                parameter.copy_(value)
                for moment in MOMENTS if updates else ():
                    safe_set_full_optimizer_state(parameter, state[f"{moment}/{name}"].to(parameter.device), moment)
        for entry in self._adam_state():
            entry["step"].fill_(float(updates))
            for moment in () if updates else MOMENTS:
                entry[moment].zero_()
        self.updates = updates

    def _make_moments(self) -> None:
        """Adam makes its state in the first step: take one with gradient and learning rate zero."""
        for group in self._deepspeed.optimizer.param_groups:
            group["lr"] = 0.0
        self.backward(torch.stack([p.float().sum() * 0.0 for _, p in self._trained()]).sum())
        self._deepspeed.step()

    def _adam_state(self) -> list[dict[str, Any]]:
        inner = self._deepspeed.optimizer
        return [entry for entry in getattr(inner, "optimizer", inner).state.values() if "step" in entry]


def learning_rate(optim: OptimSpec, update: int, total: int) -> float:
    """The learning rate of an update (counted from 0): linear warm-up, then the schedule down to 0 at the end."""
    if update < optim.warmup_steps:
        return optim.lr * (update + 1) / optim.warmup_steps
    done = (update - optim.warmup_steps) / max(1, total - optim.warmup_steps)
    factor = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * min(1.0, done)))}
    return optim.lr * max(0.0, factor[optim.schedule])


def _config(optim: OptimSpec, dtype: torch.dtype) -> dict[str, Any]:
    half = dtype == torch.bfloat16
    return {
        # The batch is whatever is accumulated between two steps; these two only satisfy DeepSpeed's own check.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optim.grad_clip,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": half},
        **({"data_types": {"grad_accum_dtype": "fp32"}} if half else {}),
        "steps_per_print": 10**9,
    }
