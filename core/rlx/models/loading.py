"""Load HF models: weights from safetensors or GGUF only, remote code only when asked for, errors that name the path."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch

from rlx.hf import explain_load_failure, pretrained_args
from rlx_sdk import ModelError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def pick_device() -> str:
    """The current GPU, or the CPU."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"


def pick_dtype(wanted: str, device: str) -> torch.dtype:
    """``auto`` is bfloat16 on a GPU and float32 on a CPU."""
    return DTYPES["bfloat16" if device.startswith("cuda") else "float32"] if wanted == "auto" else DTYPES[wanted]


def load_causal_lm(path: str, dtype: torch.dtype, trust_remote_code: bool = False) -> Any:
    """An HF causal language model in ``eval`` mode."""
    from transformers import AutoModelForCausalLM

    model = _load(AutoModelForCausalLM, path, dtype, trust_remote_code)
    _make_savable(model.generation_config)
    return model


def _make_savable(settings: Any) -> None:
    """Take out of the settings of `generate` what is inert: HF loads it, and raises when it is to be saved."""
    try:
        settings.validate(strict=True)
    except ValueError as error:
        for name in re.findall(r"^- `(\w+)`", str(error), re.MULTILINE):
            setattr(settings, name, getattr(type(settings)(), name))


def load_scorer(path: str, dtype: torch.dtype, trust_remote_code: bool = False) -> Any:
    """An HF sequence-classification model with one label; a head that is not in the checkpoint starts at zero.

    So a critic begun from a language model values everything at 0.
    """
    from transformers import AutoModelForSequenceClassification

    with _missing_head_is_expected():
        model, info = _load(AutoModelForSequenceClassification, path, dtype, trust_remote_code, num_labels=1,
                            output_loading_info=True)
    if not isinstance(getattr(model, "score", None), torch.nn.Module):
        raise ModelError(f"model '{path}' ({type(model).__name__}) has no head named 'score'; rlx trains critics of "
                         "decoder-only architectures such as Llama, Qwen, Mistral or Gemma.")
    if any(name.startswith("score") for name in info["missing_keys"]):
        torch.nn.init.zeros_(model.score.weight)
    return model


def _load(auto_class: Any, path: str, dtype: torch.dtype, trust_remote_code: bool, **extra: Any) -> Any:
    args = {"dtype": dtype, "trust_remote_code": trust_remote_code, **pretrained_args(path), **extra}
    args["use_safetensors"] = True if "gguf_file" not in args else None
    try:
        loaded = auto_class.from_pretrained(**args)
    except Exception as error:
        raise ModelError(explain_load_failure(path, "model", error)) from error
    _at_full_precision(loaded[0] if isinstance(loaded, tuple) else loaded, path)
    return loaded


def _at_full_precision(model: Any, path: str) -> None:
    """GGUF weights are expanded while they are read, yet HF still takes the model for a quantised one."""
    if path.endswith(".gguf"):
        model.hf_quantizer, model.is_quantized = None, False
        del model.config.quantization_config
    elif getattr(model, "is_quantized", False):
        raise ModelError(f"model '{path}' is quantised; its weights cannot be trained. Give the unquantised model.")


@contextlib.contextmanager
def _missing_head_is_expected() -> Iterator[None]:
    """A warning that the new head is untrained: here it always is, on purpose."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
