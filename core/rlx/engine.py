"""One trained model under DeepSpeed ZeRO: accumulate any number of micro-batches, then step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlx.memory import BUCKET
from rlx.models.lora import has_lora
from rlx.parking import Parking, only_for_updates
from rlx.spec import EngineSpec, OptimSpec
from rlx_sdk import CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq")


class StepResult(NamedTuple):
    """What an optimizer step did: gradient norm before clipping, learning rate, whether it was skipped."""

    grad_norm: float
    lr: float
    skipped: bool


def adamw(parameters: Sequence[nn.Parameter], optim: OptimSpec) -> torch.optim.Optimizer:
    """Torch's own fused AdamW, which needs no compiler on any device."""
    return torch.optim.AdamW(parameters, lr=optim.lr, betas=optim.betas, eps=optim.eps,
                             weight_decay=optim.weight_decay, fused=True)


class Engine:
    """A module, its optimizer and its schedule, over all ranks.

    Gradients of all `backward` calls between two `step` calls are summed as they are: the caller has already scaled
    each micro-batch by its share of the global batch. So the result is that of one big batch. Every rank makes the same
    calls, forward passes included.
    """

    def __init__(self, module: Any, optim: OptimSpec, total_updates: int, dtype: torch.dtype,
                 spec: EngineSpec | None = None,
                 make_optimizer: Callable[[Sequence[nn.Parameter], OptimSpec], Any] = adamw) -> None:
        """Put the module under ZeRO.

        Args:
            module: has the plain HF model as its attribute ``model``.
            optim: optimizer settings.
            total_updates: optimizer steps of the whole run, for the schedule.
            dtype: of the working weights; float32 masters and moments are kept either way.
            spec: ZeRO stage, offload, activation checkpointing.
            make_optimizer: of the trained parameters.
        """
        import deepspeed

        self._optim, self._total, self._spec = optim, total_updates, spec or EngineSpec()
        self.updates = 0
        self._parking = Parking()
        self.module: Any = module
        if self._spec.activation_checkpointing:
            self.module.checkpoint_activations()
        trained = [p for p in module.parameters() if p.requires_grad]
        self._deepspeed = deepspeed.initialize(model=module, optimizer=make_optimizer(trained, optim),
                                               config=_config(optim, dtype, self._spec, module))[0]
        self.park()

    @property
    def device(self) -> torch.device:
        """Where the module runs."""
        return torch.device(self._deepspeed.device)

    @property
    def shares(self) -> bool:
        """Whether the model can compute the prompt of a pair once."""
        return bool(self.module.shares)

    @property
    def in_step(self) -> bool:
        """Whether ranks must make their forward passes together, since each gathers the weights for it."""
        return self._spec.zero_stage == 3

    def __call__(self, *args: Any) -> Any:
        """The module's forward pass."""
        return self._deepspeed(*args)

    def park(self) -> None:
        """Under `EngineSpec.offload_while_sampling`, what only updates need leaves the device until one comes."""
        if self._spec.offload_while_sampling:
            self._parking.park(only_for_updates(self._deepspeed.optimizer, self.module))

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a scalar."""
        self._parking.fill()
        self._deepspeed.backward(loss, scale_wrt_gas=False)

    def step(self, index: int) -> StepResult:
        """Reduce over ranks, clip, update, forget the gradients. A gradient that is not finite skips the update.

        Args:
            index: of this update in the whole run, for the learning rate.
        """
        self._parking.fill()
        lr = learning_rate(self._optim, index, self._total)
        for group in self._deepspeed.optimizer.param_groups:
            group["lr"] = lr
        before = self._deepspeed.skipped_steps
        self._deepspeed.step()
        skipped = self._deepspeed.skipped_steps > before
        self.updates += not skipped
        norm = self._deepspeed.get_global_grad_norm()
        return StepResult(math.nan if norm is None else float(norm), lr, skipped)

    @property
    def repeats(self) -> bool:
        """Whether gradients can be forgotten and made again within a step: nothing is reduced before `step`."""
        return self._spec.zero_stage == 1 and self._spec.offload is None

    def forget(self) -> None:
        """Drop the gradients since the last `step`, of a backward pass that raised too; no weight and no count changes.

        Done by an update of a gradient that is not finite, which DeepSpeed skips, and cleans up after, by itself.
        """
        torch.cuda.empty_cache()  # does nothing where no GPU is used
        self._learn_nothing(math.nan)

    def gathered(self, *parameters: Tensor, change: bool = False) -> contextlib.AbstractContextManager[Any]:
        """Parameters whole, on every rank, while it is entered; with ``change`` what is written into them stays."""
        if not self.in_step:
            return contextlib.nullcontext()
        from deepspeed.runtime.zero import GatheredParameters

        rank = 0 if change else None  # the rank whose changes go to all
        return GatheredParameters(list(parameters), modifier_rank=rank)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """The plain model ready to generate, all its weights in place; a rank may then run as it likes."""
        if not self.in_step:
            yield
            return
        from deepspeed.runtime.zero import unwrap_model_for_generation

        failure: BaseException | None = None
        with unwrap_model_for_generation(self._deepspeed):
            try:
                yield
            except BaseException as error:  # raised in there, it would leave the hooks off for good
                failure = error
        if failure is not None:
            raise failure

    def policy_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full weights by HF name, one at a time, as the forward pass uses them; copy each before the next."""
        yield from self.module.weights(self.gathered)

    def save(self, folder: Path, write: bool) -> None:
        """Write the model as an HF folder; ranks that do not write help to gather it."""
        if not write and not self.in_step:
            return
        weights = {name: self._kept(weight, write) for name, weight in self.policy_weights()}
        trained = {}
        for name, parameter in self._trained() if has_lora(self.module.model) else ():
            with self.gathered(parameter):
                trained[name] = self._kept(parameter, write)
        if write:
            self.module.save(folder, weights, trained)

    def _kept(self, weight: Tensor, write: bool) -> Tensor:
        """A gathered weight is gone with the next one."""
        return weight.detach().to("cpu", copy=self.in_step) if write else weight.new_empty(0)

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from ((n, p) for n, p in self.module.model.named_parameters() if p.requires_grad)

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Trained weights in float32, and moments if a step was made, by kind and name, one at a time, on the CPU."""
        from deepspeed.utils import safe_get_full_fp32_param as master_of
        from deepspeed.utils import safe_get_full_optimizer_state as moment_of

        self._parking.fill()
        for name, parameter in self._trained():
            yield f"weight/{name}", master_of(parameter).cpu().reshape(_shape(parameter))
            for moment in MOMENTS if self.updates else ():
                yield f"{moment}/{name}", moment_of(parameter, moment).cpu().reshape(_shape(parameter))
        self.park()

    def load_state(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Take back what `state` gave after ``updates`` optimizer steps, from any rank count and ZeRO stage.

        Raises:
            CheckpointError: a weight is missing or has another shape.
        """
        self._parking.fill()
        if updates:
            self._make_moments()
        for name, parameter in self._trained():
            saved = state.get(f"weight/{name}")
            if saved is None or saved.shape != _shape(parameter):
                found = "nothing" if saved is None else f"shape {tuple(saved.shape)}"
                raise CheckpointError(f"the checkpoint has {found} for the weight '{name}' of shape "
                                      f"{tuple(_shape(parameter))}; it is of another model.")
            self._set(parameter, saved)
            with torch.no_grad(), self.gathered(parameter, change=True):
                parameter.copy_(saved)
            for moment in MOMENTS if updates else ():
                self._set(parameter, state[f"{moment}/{name}"], moment)
        for entry in self._adam_state():
            entry["step"].fill_(float(updates))
            for moment in () if updates else MOMENTS:
                entry[moment].zero_()
        self.updates = updates
        self.park()

    def _set(self, parameter: nn.Parameter, value: Tensor, *moment: str) -> None:
        """Write a whole master weight, or a moment of it, into what this rank holds of it."""
        from deepspeed import utils

        reach, value = "full", value.to(self.device)
        if self.in_step:  # the setter of whole values fails where the ranks do not divide the size
            part, rank = parameter.ds_tensor.numel(), torch.distributed.get_rank()  # type: ignore[attr-defined]
            missing = part * torch.distributed.get_world_size() - value.numel()
            padded = torch.nn.functional.pad(value.flatten(), (0, missing))
            reach, value = "local", padded[part * rank : part * (rank + 1)]
        getattr(utils, f"safe_set_{reach}_{'optimizer_state' if moment else 'fp32_param'}")(parameter, value, *moment)

    def _make_moments(self) -> None:
        """Adam makes its state in the first step: take one with gradient and learning rate zero."""
        for group in self._deepspeed.optimizer.param_groups:
            group["lr"] = 0.0
        self._learn_nothing(0.0)

    def _learn_nothing(self, gradient: float) -> None:
        """An update of a gradient of 0, or NaN, for every parameter."""
        outputs = self(*self.module.example(self.device))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        self.backward(torch.stack([output.float().sum() * gradient for output in outputs]).sum())
        self._deepspeed.step()

    def _adam_state(self) -> list[dict[str, Any]]:
        inner = self._deepspeed.optimizer
        return [entry for entry in getattr(inner, "optimizer", inner).state.values() if "step" in entry]


def _shape(parameter: nn.Parameter) -> torch.Size:
    """Of the whole parameter: under ZeRO-3 a rank holds a flat part."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def learning_rate(optim: OptimSpec, update: int, total: int) -> float:
    """The learning rate of an update (counted from 0): linear warm-up, then the schedule down to 0 at the end."""
    if update < optim.warmup_steps:
        return optim.lr * (update + 1) / optim.warmup_steps
    done = (update - optim.warmup_steps) / max(1, total - optim.warmup_steps)
    factor = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * min(1.0, done)))}
    return optim.lr * max(0.0, factor[optim.schedule])


def _config(optim: OptimSpec, dtype: torch.dtype, spec: EngineSpec, module: Any) -> dict[str, Any]:
    half, stage = dtype == torch.bfloat16, spec.zero_stage
    cpu = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    bucket = min(BUCKET, sum(p.numel() for p in module.parameters() if p.requires_grad))
    zero = {
        "stage": stage,
        "reduce_bucket_size": bucket,
        **({"allgather_bucket_size": bucket} if stage < 3 else {
            # Small weights such as norms stay whole; the rest is gathered layer by layer.
            "stage3_param_persistence_threshold": 10 * max(p.shape[-1] for p in module.parameters() if p.dim()),
            "overlap_comm": False}),
        **({"offload_optimizer": cpu} if spec.offload else {}),
        **({"offload_param": cpu} if spec.offload == "all" else {}),
    }
    return {
        # The batch is whatever is accumulated between two steps; these two only satisfy DeepSpeed's own check.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optim.grad_clip,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # its own needs a compiler; torch's fused one runs on a CPU too
        "bf16": {"enabled": half},
        **({"data_types": {"grad_accum_dtype": "fp32"}} if half else {}),
        "steps_per_print": 10**9,
    }
