"""Rows without padding, and pairs whose prompt is computed once, give what rows by themselves give."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from rlx.handles import Handle
from rlx.models import CausalLM
from rlx.models.rows import joined
from rlx_sdk import ModelError, Sequences

LENGTHS = [(3, 4), (1, 1), (6, 5), (2, 0), (1, 9), (5, 2)]
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3, "pad_token_id": 0,
         "bos_token_id": None, "eos_token_id": None}
CONFIGS = {
    "llama": LlamaConfig(**SMALL), "qwen2": Qwen2Config(**SMALL), "qwen3": Qwen3Config(**SMALL, head_dim=8),
    "mistral-window": MistralConfig(**SMALL, sliding_window=4),
    "gpt2": GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=64, initializer_range=0.3),
}


def model_of(name, attention="sdpa"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation=attention).eval()


def learned(module, answer):
    """What a handle answers, and the gradients of a weighted sum of it."""
    module.zero_grad()
    found = answer(Handle(module, torch.device("cpu"), 10_000, packed=module.packed))
    sum((x * torch.arange(1, 1 + x.numel()).reshape(x.shape)).sum() for x in found).div(100).backward()
    return [x.detach() for x in found], {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def assert_alike(one, other):
    for found, expected in zip(one[0], other[0], strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_rows_do_not_see_each_other(name, attention, sequences):
    seqs, plain, packed = sequences(LENGTHS), *(CausalLM(model_of(name, attention)) for _ in range(2))
    packed.pack()
    seen = []
    packed.model.get_decoder().register_forward_pre_hook(lambda m, args, kw: seen.append(kw["input_ids"].shape),
                                                         with_kwargs=True)
    both = [learned(m, lambda h: h.logprobs_and_entropy(seqs)) for m in (packed, plain)]
    assert_alike(*both)
    assert seen == [(1, int(seqs.length.sum()))]


def test_scores_and_values_can_be_packed_too(scorer, sequences):
    seqs, plain, packed = sequences([(p, max(c, 1)) for p, c in LENGTHS]), scorer(), scorer()
    packed.pack()
    assert_alike(*(learned(m, lambda h: (h.values(seqs), h.scores(seqs))) for m in (packed, plain)))


def test_a_model_whose_rows_would_see_each_other_is_refused():
    torch.manual_seed(0)
    mamba = AutoModelForCausalLM.from_config(MambaConfig(
        hidden_size=16, state_size=4, num_hidden_layers=1, vocab_size=64, initializer_range=0.3)).eval()
    module = CausalLM(mamba)
    assert not module.shares
    with pytest.raises(ModelError, match=r"train\.packing: MambaForCausalLM lets rows that lie behind each other see"):
        module.pack()


def pair(sequences, alike=True):
    """Both sides with the same prompts, or with prompts of which only a part is the same."""
    chosen, other = sequences(LENGTHS), sequences([(p, 1 + c // 2) for p, c in LENGTHS], seed=1)
    width, (prompts, _) = other.tokens.shape[1], zip(*LENGTHS, strict=True)
    same = torch.arange(width) < torch.tensor(prompts)[:, None] - (0 if alike else 1)
    return chosen, Sequences(torch.where(same, chosen.tokens[:, :width], other.tokens), other.length, other.mask)


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_prompt_that_both_sides_have_is_computed_once(name, alike, sequences):
    sides = pair(sequences, alike)
    model = CausalLM(model_of(name))
    assert model.shares is (name != "mistral-window")  # a window would be lost with a mask of our own
    apart = learned(model, lambda h: (h.logprobs(sides[0]), h.logprobs(sides[1])))
    assert_alike(learned(model, lambda h: h.pair_logprobs(*sides)), apart)
    with torch.no_grad():
        some = Handle(model, torch.device("cpu"), 30).pair_logprobs(*sides)
    for found, expected in zip(some, apart[0], strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    both, prompts = joined(*sides), [p for p, _ in LENGTHS]
    if alike:
        assert (sides[0].length + sides[1].length - both.length).tolist() == prompts
    assert len(joined(sides[0][:0], sides[1][:0])) == 0
