"""Policy, reference, critic and reward models on top of HF modules."""

from rlx.hf import explain_load_failure
from rlx.models.loading import load_causal_lm, load_scorer, pick_device, pick_dtype
from rlx.models.lora import add_lora, plain_model, plain_weights, without_adapter
from rlx.models.policy import CausalLM, Scorer

__all__ = ["CausalLM", "Scorer", "add_lora", "explain_load_failure", "load_causal_lm", "load_scorer", "pick_device",
           "pick_dtype", "plain_model", "plain_weights", "without_adapter"]
