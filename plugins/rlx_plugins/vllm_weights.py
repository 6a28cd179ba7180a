"""How weights get into a vLLM engine, of versions 0.20 to 0.32, and the proof that they did."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlx_sdk import Fingerprint, TrainingError

ROUNDING = 1e-14
"""Of a sum in float64, relative to the sum of sizes, when the order of additions changes."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Some weights in short: whatever layers an engine fuses or pads, their sums stay the same.

    Attributes:
        names: of the weights.
        count: of numbers.
        total: Σw in float64.
        squares: Σw² in float64.
        packed: whether a kernel keeps some weight in a form that cannot be summed, as those of some CPUs do.
    """

    names: Sequence[str]
    count: int
    total: float
    squares: float
    packed: bool

    def differences(self, sent: Holding) -> Iterator[str]:
        """What of it is not as sent, beyond the rounding of additions in another order."""
        size = math.sqrt(sent.count * sent.squares)  # at least Σ|w|
        for what, here, there, scale in (("Σw", self.total, sent.total, size),
                                         ("Σw²", self.squares, sent.squares, sent.squares)):
            if not abs(here - there) <= ROUNDING * scale:  # also when one is not a number
                yield f"{what} of the engine's weights is {here!r}, of those sent {there!r}"


class Sums:
    """Collects what a `Holding` says, without waiting for the device."""

    def __init__(self, weights: Iterable[tuple[str, Tensor]] = ()) -> None:
        """Begin with some weights."""
        self._names: list[str] = []
        self._count, self._packed, self._sums, self._norms = 0, False, list[Tensor](), list[Tensor]()
        for name, weight in weights:
            self.add(name, weight)

    def add(self, name: str, weight: Tensor) -> None:
        """Count one weight."""
        self._names.append(name)
        self._count += weight.numel()
        self._packed |= weight.numel() == 0
        self._sums.append(weight.detach().sum(dtype=torch.float64))
        # of each row: over a whole weight a CPU adds one number after the other, and rounds as often
        self._norms.append(torch.linalg.vector_norm(weight.detach(), dim=-1, dtype=torch.float64).flatten())

    def holding(self) -> Holding:
        """All of it."""
        sums = torch.stack([torch.stack(self._sums).sum(), torch.cat(self._norms).square().sum()])
        total, squares = sums.tolist()
        return Holding(self._names, self._count, total, squares, self._packed)


def load(model: Any, reload: Callable[[Iterator[tuple[str, Tensor]]], Any],
         weights: Iterator[tuple[str, Tensor]]) -> set[str]:
    """Replace all weights of a vLLM model.

    Args:
        model: vLLM's module.
        reload: the engine's ``reload_weights``, for models that keep weights in another form than they are given; it
            takes several times as long, and keeps references until a layer is complete.
        weights: by HF name; each in memory that nobody writes again.

    Returns:
        The engine's own names of those that it found in what was given.
    """
    if takes_weights_in_place(model):
        return set(model.load_weights(weights))
    loaded: set[str] = set()
    load_weights = model.load_weights

    def spy(given: Iterable[tuple[str, Tensor]]) -> Any:
        names = load_weights(given)
        loaded.update(names)
        return names

    model.load_weights = spy
    try:
        reload(weights)
    finally:
        del model.load_weights
    for module in model.modules():  # on a CPU a tied head keeps a packed copy of the embedding, which reloading forgets
        if hasattr(module, "cpu_linear") and type(module).__name__ == "ParallelLMHead":
            module.quant_method.process_weights_after_loading(module)
    return loaded


def takes_weights_in_place(model: Any) -> bool:
    """Whether the model, on a GPU, computes with its weights as they are given, and nothing made from them."""
    methods = {type(getattr(module, "quant_method", None)).__name__ for module in model.modules()}
    derived = any("MLA" in type(module).__name__ for module in model.modules())
    on_gpu = all(weight.is_cuda for weight in model.parameters())
    return on_gpu and not derived and methods <= {"NoneType", "UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"}


def keep_weights_summable() -> None:
    """On a CPU, before the model is made: weights stay unpacked."""
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False


def refusal(model: Any, architecture: str, gpu: bool) -> str | None:
    """Why an engine's samples, or the trainer beside it, would be wrong, though weights are taken without complaint."""
    if type(model).__module__.startswith("vllm.model_executor.models.transformers"):
        return f"has no {architecture} of its own; it would change the class of the very model that is trained"
    if not gpu and any(hasattr(module, "w13_weight") for module in model.modules()):
        return f"on a CPU goes on sampling with the old experts of {architecture} when it is given new weights"
    return None


def prove(engine: str, policy: set[str], sent: Holding, held: Holding, loaded: set[str],
          forgotten: bool) -> Fingerprint:
    """What an engine holds is what was sent, and all of the policy.

    Args:
        engine: how to call it in an error.
        policy: names of all weights of the policy.
        sent: what was sent, as cast for the engine.
        held: all parameters of the engine, by its own names; a tied head comes once.
        loaded: what `load` returned.
        forgotten: whether keys and values of old weights are gone.

    Raises:
        TrainingError: with everything that is wrong.
    """
    names = set(sent.names)
    problems = [*_named("were never sent", policy - names), *_named("are unknown to the policy", names - policy),
                *_named("were not loaded by the engine", set(held.names) - loaded)]
    if not held.packed:  # else the names must do
        problems += held.differences(sent)
    if not forgotten:
        problems.append("the cache of old prompts could not be emptied")
    if problems:
        raise TrainingError(f"{engine} does not sample with the current weights: " + "; ".join(problems) + ".")
    found = sent if held.packed else held
    return Fingerprint(len(names), found.total, found.squares)


def _named(problem: str, names: set[str]) -> Iterator[str]:
    if names:
        shown = ", ".join(sorted(names)[:3])
        yield f"{len(names)} weights {problem}: {shown}{', …' if len(names) > 3 else ''}"
