import copy
import shutil
import weakref

import pytest
import torch
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.modeling_outputs import CausalLMOutput

from rlx.models import CausalLM
from rlx.models.logprobs import Kernels, install_logprob_head
from rlx_sdk import ModelError

CHUNKS = [1, 3, 7, 10_000]
"""Rows a chunk; a batch below has 10 completion tokens."""


@pytest.fixture(params=CHUNKS)
def chunk(request, monkeypatch):
    """Sets how many rows are computed at once, for a vocabulary of 64."""
    monkeypatch.setattr("rlx.models.logprobs.CHUNK_ELEMENTS", {"cpu": 64 * request.param})


def plain_logprobs(model, seqs, temperature):
    """Logprobs and entropy of completion tokens from all logits at once."""
    logits = model(input_ids=seqs.tokens, use_cache=False).logits.float() / temperature
    logp = torch.log_softmax(logits, -1)[:, :-1]
    entropy = -(logp.exp() * logp).sum(-1)
    logprobs = logp.gather(2, seqs.tokens[:, 1:, None])[..., 0]
    pad = torch.nn.functional.pad
    return tuple(torch.where(seqs.mask, pad(x, (1, 0)), 0) for x in (logprobs, entropy))


def head_and_inputs(dtype=torch.float32, bias=True):
    torch.manual_seed(0)
    head, hidden = nn.Linear(16, 64, bias=bias).to(dtype), torch.randn(10, 16, dtype=dtype, requires_grad=True)
    return head, hidden, torch.randint(64, (10,)), torch.randn(10), torch.randn(10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("wanted", ["logprobs", "entropy", "both"])
def test_the_head_alone(chunk, bias, temperature, wanted):
    head, hidden, targets, d_logprobs, d_entropy = head_and_inputs(bias=bias)
    inputs = [hidden, *head.parameters()]

    def objective(logprobs, entropy):
        parts = {"logprobs": (logprobs * d_logprobs).sum(), "entropy": (entropy * d_entropy).sum()}
        return sum(parts.values()) if wanted == "both" else parts[wanted]

    logp = torch.log_softmax(head(hidden) / temperature, -1)
    plain = logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(1)
    expected = torch.autograd.grad(objective(*plain), inputs)
    install_logprob_head(head)
    found = head(hidden, targets=targets, temperature=temperature)
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(objective(*found), inputs), expected, atol=1e-5, rtol=1e-5)


def test_temperature_divides_the_logits(case):
    m50 = case("M50_temperature_logps")
    head = nn.Linear(4, 4, bias=False)
    nn.init.eye_(head.weight)
    install_logprob_head(head)
    hidden = torch.tensor([m50["inputs"]["logits"]]).expand(4, 4)
    logprobs, _ = head(hidden, targets=torch.arange(4), temperature=m50["inputs"]["temperature"])
    assert logprobs.tolist() == pytest.approx(m50["expected"]["all"], abs=1e-6)
    for wrong in m50["known_wrong_values"].values():
        assert logprobs[m50["inputs"]["token"]].item() != pytest.approx(wrong, abs=1e-3)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_whole_model(chunk, llama, sequences, tied, temperature):
    model, seqs = llama(tie_word_embeddings=tied), sequences([(3, 4), (1, 1), (6, 5)])
    weights = torch.randn(2, *seqs.tokens.shape, generator=torch.Generator().manual_seed(0))

    def gradients(both):
        return torch.autograd.grad((torch.stack(both) * weights).sum(), list(model.parameters()))

    plain = plain_logprobs(model, seqs, temperature)
    expected = gradients(plain)
    found = CausalLM(model)(seqs.tokens, seqs.mask, temperature)
    torch.testing.assert_close(found, plain, atol=1e-4, rtol=0)
    torch.testing.assert_close(gradients(found), expected, atol=1e-4, rtol=1e-4)


def test_without_entropy_the_logprobs_are_the_same_and_entropy_is_no_variable(chunk, llama, sequences):
    model, seqs = CausalLM(llama()), sequences([(3, 4), (1, 1), (6, 5)])
    expected = model(seqs.tokens, seqs.mask, 0.7)[0]
    logprobs, entropy = model(seqs.tokens, seqs.mask, 0.7, False)
    assert torch.equal(logprobs, expected)
    assert not entropy.any()
    assert not entropy.requires_grad
    weights = list(model.parameters())
    torch.testing.assert_close(torch.autograd.grad(logprobs.sum(), weights),
                               torch.autograd.grad(expected.sum(), weights))


def test_bfloat16(chunk, llama, sequences):
    """Logits come in bfloat16 from the head, as in the plain model; from there on everything is float32."""
    model, seqs = llama().bfloat16(), sequences([(3, 4), (1, 1), (6, 5)])
    plain = plain_logprobs(model, seqs, 0.7)
    expected = torch.autograd.grad(plain[0].sum(), list(model.parameters()))
    found = CausalLM(model)(seqs.tokens, seqs.mask, 0.7)
    assert found[0].dtype == found[1].dtype == torch.float32
    torch.testing.assert_close(found, plain, atol=0.05, rtol=0)
    for one, other in zip(torch.autograd.grad(found[0].sum(), list(model.parameters())), expected, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.float() - other.float()).norm() <= 0.05 * other.float().norm()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU"))])
def test_the_gradient_of_a_bfloat16_head_is_summed_in_float32(device, monkeypatch):
    """Over 512 chunks: summed in bfloat16 it would lose what is small beside the sum so far."""
    monkeypatch.setattr("rlx.models.logprobs.CHUNK_ELEMENTS", {device: 64})
    torch.manual_seed(0)
    head, hidden = nn.Linear(16, 64, bias=False).to(device, torch.bfloat16), torch.rand(512, 16) + 0.5
    seen, inputs = [], hidden.to(device, torch.bfloat16)

    def backward(*arguments):
        seen.append(Kernels().backward(*arguments))
        return seen[-1]

    install_logprob_head(head)
    logprobs, _ = head(inputs, targets=torch.full((512,), 5, device=device), entropy=False,
                       kernels=Kernels(backward=backward))
    logprobs.sum().backward()
    expected = torch.cat(seen).float().T @ inputs.float()
    assert len(seen) == 512
    torch.testing.assert_close(head.weight.grad.float(), expected, rtol=1e-2, atol=0)


def test_a_chunks_logits_and_their_gradient_are_gone_before_the_next(monkeypatch):
    """Each is as large as all that is held at once is meant to be."""
    monkeypatch.setattr("rlx.models.logprobs.CHUNK_ELEMENTS", {"cpu": 64})
    head, hidden, targets, *_ = head_and_inputs()
    earlier, held = [], []

    def watched(kernel):
        def call(logits, *rest):
            held.extend(one for one in earlier if one() is not None)
            found = kernel(logits, *rest)
            earlier.append(weakref.ref(logits))
            if isinstance(found, torch.Tensor):
                earlier.append(weakref.ref(found))
            return found
        return call

    install_logprob_head(head)
    head(hidden, targets=targets, kernels=Kernels(*map(watched, Kernels())))[0].sum().backward()
    assert len(earlier) == 10 + 2 * 10
    assert not held


def test_garbage_in_the_padding_changes_nothing(llama, sequences):
    model, seqs = CausalLM(llama()), sequences([(2, 3), (4, 6)])
    other = torch.where(torch.arange(10) < seqs.length[:, None], seqs.tokens, 63 - seqs.tokens)
    assert not torch.equal(other, seqs.tokens)
    torch.testing.assert_close(model(other, seqs.mask), model(seqs.tokens, seqs.mask))


def test_the_first_token_has_logprob_zero_even_if_the_policy_wrote_it(llama, sequences):
    seqs = sequences([(0, 4)])
    logprobs, entropy = CausalLM(llama())(seqs.tokens, seqs.mask)
    assert seqs.mask[0, 0]
    assert logprobs[0, 0] == entropy[0, 0] == 0
    assert (logprobs[0, 1:] < 0).all()


def test_a_batch_without_a_completion_token_still_has_a_gradient(llama, sequences):
    """Of zero, for every parameter: under ZeRO each rank takes part in each reduction."""
    model, seqs = CausalLM(llama()), sequences([(5, 0), (2, 0)])
    logprobs, entropy = model(seqs.tokens, seqs.mask)
    assert not logprobs.any()
    assert not entropy.any()
    (logprobs.sum() + entropy.sum()).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_generation_and_logits_stay_as_they_were(llama):
    model = llama()
    before = copy.deepcopy(model)
    CausalLM(model)
    prompt = torch.tensor([[5, 9, 33]])
    options = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    assert torch.equal(model(prompt).logits, before(prompt).logits)
    assert model.generate(prompt, **options).tolist() == before.generate(prompt, **options).tolist()


def test_a_copy_has_a_head_of_its_own(llama):
    model = llama()
    CausalLM(model)
    copied, prompt = copy.deepcopy(model), torch.tensor([[5, 9, 33]])
    before = copied(prompt).logits
    torch.nn.init.zeros_(model.get_output_embeddings().weight)
    assert torch.equal(copied(prompt).logits, before)


def test_another_architecture(sequences):
    """With a decoder and a head of other names."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                       initializer_range=0.3, bos_token_id=None, eos_token_id=None)).eval()
    seqs = sequences([(3, 4), (1, 1)])
    plain = plain_logprobs(model, seqs, 1.0)
    torch.testing.assert_close(CausalLM(model)(seqs.tokens, seqs.mask), plain, atol=1e-4, rtol=0)


SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0}


@pytest.mark.parametrize("spread", [0.02, 0.5])
@pytest.mark.parametrize(("config", "model"), [
    (Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=30.0), Gemma2ForCausalLM),
    (GraniteConfig(**SMALL, logits_scaling=8.0), GraniteForCausalLM),
])
def test_a_model_that_changes_its_logits_is_refused(config, model, spread):
    """Also if its logits are still so small that a cap hardly shows, as in a model not trained yet."""
    config.initializer_range = spread
    with pytest.raises(ModelError, match=f"{model.__name__} changes its logits"):
        CausalLM(model(config))


class ScaledBefore(LlamaForCausalLM):
    """Scales what its head reads, as MiniCPM does."""

    def forward(self, input_ids, use_cache):
        hidden = self.model(input_ids=input_ids, use_cache=use_cache).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(hidden / 4))


class HeadAside(LlamaForCausalLM):
    """Computes its logits without calling its head."""

    def forward(self, input_ids, use_cache):
        hidden = self.model(input_ids=input_ids, use_cache=use_cache).last_hidden_state
        return CausalLMOutput(logits=hidden @ self.lm_head.weight.T)


@pytest.mark.parametrize("model", [ScaledBefore, HeadAside])
def test_so_is_one_that_goes_around_its_head(model):
    with pytest.raises(ModelError, match=f"{model.__name__} changes its logits"):
        CausalLM(model(LlamaConfig(**SMALL)))


def test_the_same_architectures_without_the_change_are_taken(sequences):
    seqs = sequences([(3, 4)])
    for config, model in ((Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=None), Gemma2ForCausalLM),
                          (GraniteConfig(**SMALL, logits_scaling=1.0), GraniteForCausalLM)):
        plain = model(config).eval()
        expected = plain_logprobs(plain, seqs, 1.0)
        torch.testing.assert_close(CausalLM(plain)(seqs.tokens, seqs.mask), expected, atol=1e-5, rtol=0)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
@pytest.mark.filterwarnings("ignore")  # of the compiler's own
@pytest.mark.parametrize("checkpointed", [False, True])
def test_fused_kernels_change_nothing_but_the_time(monkeypatch, llama, sequences, checkpointed):
    """But for float32's rounding: against float64, both are wrong by up to 6e-6 of a tensor's largest gradient."""
    monkeypatch.setattr("rlx.models.logprobs.CHUNK_ELEMENTS", {"cpu": 64 * 4})
    model, seqs = CausalLM(llama()), sequences([(3, 4), (1, 1), (6, 5)])
    weights = torch.randn(2, *seqs.tokens.shape, generator=torch.Generator().manual_seed(0))

    def outcome():
        both = torch.stack(model(seqs.tokens, seqs.mask, 0.7))
        return [both, *torch.autograd.grad((both * weights).sum(), list(model.parameters()))]

    def generated():
        return model.model.generate(seqs.tokens[:1, :3], max_new_tokens=4, do_sample=False)

    expected, written = outcome(), generated()
    if checkpointed:
        model.checkpoint_activations()
    model.fuse()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for found, plain in zip(outcome(), expected, strict=True):
        torch.testing.assert_close(found, plain, atol=1e-5 * float(plain.abs().max()), rtol=0)
    frames = dict(torch._dynamo.utils.counters["frames"])
    assert frames["ok"] == frames["total"] > 0, "all was compiled"
    assert torch.equal(generated(), written)
    assert torch._dynamo.utils.counters["frames"] == frames, "generation compiles nothing"
