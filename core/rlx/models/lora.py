"""LoRA adapters (arXiv 2106.09685) through peft: a few trained weights beside frozen ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor


def add_lora(model: Any, rank: int, alpha: int, targets: str | list[str]) -> Any:
    """The model with a new adapter; only the adapter is trained. It starts as no change at all."""
    from peft import LoraConfig, TaskType, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, task_type=TaskType.CAUSAL_LM)
    return get_peft_model(model, config)


def has_lora(model: Any) -> bool:
    """Whether `add_lora` made it."""
    return hasattr(model, "peft_config")


def plain_model(model: Any) -> Any:
    """The HF model without what an adapter puts around it."""
    return model.get_base_model() if has_lora(model) else model


def plain_weights(model: Any) -> dict[str, Tensor]:
    """Weights by the plain model's names, as they lie there: under ZeRO-3 split, an adapter not added in."""
    return {name.replace(".base_layer.", "."): w for name, w in plain_model(model).named_parameters()
            if ".lora_" not in name}


def merged_weights(model: Any, gathered: Callable[..., AbstractContextManager[Any]]) -> Iterator[tuple[str, Tensor]]:
    """Weights by the plain model's names, adapters added in; nothing in the model is changed."""
    from peft.tuners.lora import LoraLayer

    modules = model.get_base_model().named_modules()
    layers: dict[str, Any] = {name: module for name, module in modules if isinstance(module, LoraLayer)}
    for name, weight in model.get_base_model().named_parameters():
        layer, _, leaf = name.partition(".base_layer.")
        if ".lora_" in name:
            continue
        adapter = layers[layer].parameters() if leaf == "weight" else ()
        with gathered(weight, *(p for p in adapter if p is not weight)):
            delta = layers[layer].get_delta_weight("default") if leaf == "weight" else 0
            yield (f"{layer}.{leaf}" if leaf else name), (weight + delta if leaf else weight)


def without_adapter(model: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` as it was before training: the reference that costs no second model."""

    def call(*args: Any) -> Any:
        with model.disable_adapter():
            return forward(*args)

    return call
