"""What is particular to weights that are split: generating with them, and leaving that again."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlx.engine import Engine
from rlx.logs import library_log
from rlx.models import CausalLM
from rlx.ranks import start_distributed
from rlx.spec import EngineSpec, OptimSpec
from rlx_plugins.hf_rollout import HFRollout
from rlx_plugins.options import HFOptions
from rlx_sdk import Request, RolloutContext, Sampling

# DeepSpeed's own calls of torch.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.distributed.*is deprecated:FutureWarning")
CONFIG = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 64, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": None,
          "eos_token_id": None}


def make(**spec) -> tuple[Engine, HFRollout]:
    torch.manual_seed(0)
    with library_log(None):
        start_distributed()
        module = CausalLM(LlamaForCausalLM(LlamaConfig(**CONFIG)).eval())
        engine = Engine(module, OptimSpec(lr=0.1), 10, torch.float32, EngineSpec(**spec))
    context = RolloutContext(module.model, "", (5,), 0, "cpu", "float32", 64, engine.whole)
    return engine, HFRollout(HFOptions(), context)


def update(engine: Engine) -> list[torch.Tensor]:
    tokens = torch.arange(1, 13).reshape(2, 6)
    engine.backward(-engine(tokens, tokens > 2)[0].sum())
    engine.step(0)
    return [weight.clone() for _, weight in engine.policy_weights()]


REQUESTS = [Request([1, 2, 3], Sampling(max_tokens=6), n=2, seed=4), Request([7], Sampling(max_tokens=6), seed=5)]


def written(rollout: HFRollout) -> dict[int, list[list[int]]]:
    return {i: [list(g.tokens) for g in generations] for i, generations in rollout.generate(REQUESTS)}


def test_split_weights_write_what_whole_ones_write_before_and_after_an_update():
    (whole, whole_rollout), (split, split_rollout) = make(), make(zero_stage=3)
    for _ in range(2):
        assert written(split_rollout) == written(whole_rollout)
        for one, other in zip(update(whole), update(split), strict=True):
            torch.testing.assert_close(one, other)


def test_a_failure_while_generating_leaves_the_engine_as_it_was():
    (whole, _), (split, rollout) = make(), make(zero_stage=3)
    with pytest.raises(ZeroDivisionError), split.whole():
        raise ZeroDivisionError
    generating = rollout.generate(REQUESTS)
    next(generating)
    generating.close()
    for one, other in zip(update(whole), update(split), strict=True):
        torch.testing.assert_close(one, other)


def test_activation_checkpointing_keeps_less_and_leaves_generation_its_cache():
    def kept(engine: Engine) -> int:
        sizes: list[int] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        tokens = torch.randint(64, (4, 32))
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            engine(tokens, tokens > 2)
        return sum(sizes)

    (plain, plain_rollout), (recompute, rollout) = make(), make(activation_checkpointing=True)
    assert kept(recompute) < 0.5 * kept(plain)
    assert written(rollout) == written(plain_rollout)
    cached = recompute.module.model(torch.arange(1, 4)[None], use_cache=True)
    assert cached.past_key_values.get_seq_length() == 3
