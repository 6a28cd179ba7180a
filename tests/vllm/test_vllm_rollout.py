"""Rollouts by a real vLLM engine. `.ci/install-vllm` installs one for the CPU."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlx.batching import pad_sequences
from rlx.models import CausalLM
from rlx.ranks import start_distributed
from rlx_sdk import InputError, Request, RolloutContext, Sampling, TrainingError

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed (.ci/install-vllm installs it for the CPU)", allow_module_level=True)

from rlx_plugins import vllm_engine
from rlx_plugins.hf_rollout import HFRollout
from rlx_plugins.options import HFOptions, VLLMOptions
from rlx_plugins.vllm_rollout import VLLMRollout

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's imports and kernels warn of much

VOCAB, STOPS = 99, (5, 23, 41)
LONG = tuple(7 * i % VOCAB for i in range(200))
"""Longer than a block of the KV cache, 128 tokens on a CPU: its first block is kept for the next request."""
PROMPTS = [(1, 2, 3), (9,), LONG]


class Pair:
    """A policy with random weights, and the backend that samples from it."""

    def __init__(self, tied: bool) -> None:
        torch.manual_seed(0)
        self.policy = LlamaForCausalLM(LlamaConfig(
            hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=VOCAB, max_position_embeddings=256, initializer_range=0.2, tie_word_embeddings=tied,
            attention_bias=not tied, pad_token_id=0, bos_token_id=None, eos_token_id=None)).eval()
        self.model, self.version = CausalLM(self.policy), 0
        context = RolloutContext(self.policy, "no such folder", STOPS, 0, "cpu", "float32", 256)
        self.backend = VLLMRollout(VLLMOptions(), context)

    @torch.no_grad()
    def step(self, size):
        for weight in self.policy.parameters():
            weight.add_(size * torch.randn_like(weight).sign())

    def sync(self, weights=None):
        self.version += 1
        return self.backend.sync(self.policy.named_parameters() if weights is None else weights, self.version)

    def generate(self, *requests):
        return dict(self.backend.generate(requests))

    def mismatch(self, temperature=0.7):
        """The largest difference between the engine's and the trainer's logprobs."""
        asked = [Request(prompt, Sampling(temperature, 1.0, 24), 2, 10 + i) for i, prompt in enumerate(PROMPTS)]
        rows = [(asked[i].tokens, g) for i, group in self.generate(*asked).items() for g in group]
        seqs = pad_sequences([prompt for prompt, _ in rows], [g.tokens for _, g in rows], 0,
                             rollout_logprobs=[g.logprobs for _, g in rows])
        with torch.no_grad():
            logprobs, _ = self.model(seqs.tokens, seqs.mask, temperature)
        return (logprobs - seqs.per_token["rollout_logprobs"]).abs().max().item()


@pytest.fixture(scope="module", params=["untied", "tied", "tied, packed"])
def engine(request):
    """One engine for each kind of head; the last packs its linear layers, as vLLM for CPUs does by itself."""
    start_distributed()  # as the trainer has done
    with pytest.MonkeyPatch.context() as patch:
        if "packed" in request.param:
            from vllm import _custom_ops

            patch.setattr(vllm_engine, "_cpu_memory", lambda: {"kv_cache_memory_bytes": 1 << 30})
            patch.setattr(_custom_ops, "_supports_onednn", True)
        pair = Pair(tied="tied" in request.param)
        pair.packed = "packed" in request.param
        pair.sync()
        yield pair
        pair.backend.close()


@pytest.fixture
def pair(engine):
    """An engine that holds the policy's weights, whatever the test before did."""
    engine.sync()
    return engine


@pytest.fixture
def plain(pair):
    if pair.packed:
        pytest.skip("packed weights cannot be summed; names must do")
    return pair


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_logprobs_are_the_trainer_s(pair, temperature):
    assert pair.mismatch(temperature) < 1e-4


def test_after_a_sync_everything_comes_from_the_new_weights(pair):
    """Also a long prompt seen before, whose keys and values are cached, and a tied head, which is packed on its own."""
    pair.mismatch()
    pair.step(0.05)
    assert pair.mismatch() > 0.1  # the test can tell
    pair.sync()
    assert pair.mismatch() < 1e-4
    assert pair.mismatch() < 1e-4  # now from the cache


def test_the_fingerprint_is_that_of_the_policy(pair):
    weights = [w.detach().double() for w in pair.policy.parameters()]
    found = pair.sync()
    assert found.names == len(weights)
    assert found.total == pytest.approx(sum(w.sum().item() for w in weights), rel=1e-12)
    assert found.total_squares == pytest.approx(sum((w * w).sum().item() for w in weights), rel=1e-12)


STALE = {"everything": "", "one projection": "layers.1.self_attn.k_proj", "one norm": "layers.0.input_layernorm",
         "the embedding": "embed_tokens"}


@pytest.mark.parametrize("part", STALE.values(), ids=STALE.keys())
def test_weights_that_are_one_small_step_old_are_caught(plain, monkeypatch, part):
    old = {name: weight.detach().clone() for name, weight in plain.policy.named_parameters()}
    plain.step(1e-6)
    load = plain.backend._engine.load
    monkeypatch.setattr(plain.backend._engine, "load",
                        lambda weights: load((name, old[name] if part in name else w) for name, w in weights))
    with pytest.raises(TrainingError, match="does not sample with the current weights: Σw"):
        plain.sync()


def test_a_part_of_a_fused_layer_that_is_not_loaded_is_caught(plain, monkeypatch):
    load = plain.backend._engine.load
    monkeypatch.setattr(plain.backend._engine, "load",
                        lambda weights: load((name, w) for name, w in weights if "1.self_attn.v_proj" not in name))
    with pytest.raises(TrainingError, match="Σw"):
        plain.sync()


def test_a_layer_that_is_not_loaded_is_named(pair, monkeypatch):
    load = pair.backend._engine.load
    monkeypatch.setattr(pair.backend._engine, "load",
                        lambda weights: load((name, w) for name, w in weights if "1.mlp.down_proj" not in name))
    with pytest.raises(TrainingError, match=r"1 weights were not loaded .*model.layers.1.mlp.down_proj.weight"):
        pair.sync()


def test_a_weight_that_is_not_sent_is_named(pair):
    weights = [(name, w) for name, w in pair.policy.named_parameters() if "0.self_attn.k_proj.weight" not in name]
    with pytest.raises(TrainingError, match=r"1 weights were never sent: model.layers.0.self_attn.k_proj.weight"):
        pair.sync(weights)
    with pytest.raises(TrainingError, match="it has no weights"):
        pair.generate(Request((1,), Sampling()))


def test_a_weight_the_engine_does_not_know_is_named(pair):
    with pytest.raises(TrainingError, match=r"vllm could not take the weights: .*surplus"):
        pair.sync([*pair.policy.named_parameters(), ("model.surplus.weight", torch.zeros(3))])


def test_a_cache_of_prompts_that_stays_is_caught(pair, monkeypatch):
    monkeypatch.setattr(pair.backend._engine._llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(TrainingError, match="the cache of old prompts could not be emptied"):
        pair.sync()


def test_the_sender_may_write_over_its_memory_at_once(pair):
    """As gathered weights do: each is only valid until the next is asked for."""

    def reused():
        for name, weight in pair.policy.named_parameters():
            buffer = weight.detach().clone()
            yield name, buffer
            buffer.fill_(torch.nan)

    pair.sync(reused())
    assert pair.mismatch() < 1e-4


def test_seeds_decide_the_completions(pair):
    asked = [Request((1, 2, 3), Sampling(1.0, 1.0, 10), 6, seed) for seed in (1, 2, 1)]
    found = pair.generate(*asked)
    first, second, again = ([tuple(g.tokens) for g in found[i]] for i in range(3))
    assert first == again
    assert len(set(first)) == 6
    assert not set(first) & set(second)
    alone = pair.generate(asked[1])[0]
    assert [tuple(g.tokens) for g in alone] == second


def test_a_seed_means_the_same_to_hf(pair):
    """In float32 token by token, whatever else is sampled beside it."""
    context = RolloutContext(pair.policy, "no such folder", STOPS, 0, "cpu", "float32", 256)
    hf = HFRollout(HFOptions(), context)
    hf.sync(iter(()), 0)
    asked = [Request(prompt, Sampling(0.7, 1.0, 24), 3, 50 + i) for i, prompt in enumerate(PROMPTS)]
    expected = {i: [g.tokens for g in group] for i, group in hf.generate(asked)}
    assert {i: [g.tokens for g in group] for i, group in pair.generate(*asked).items()} == expected
    assert [g.tokens for g in pair.generate(asked[1])[0]] == expected[1]


def test_every_stop_id_ends_a_completion_and_stays_in_it(pair):
    drawn = pair.generate(Request((1, 2, 3), Sampling(2.0, 1.0, 40), 100, 0))[0]
    for g in drawn:
        *before, last = g.tokens
        assert not set(before) & set(STOPS)
        assert g.finish_reason == ("stop" if last in STOPS else "length")
        assert len(g.tokens) == 40 or last in STOPS
        assert len(g.logprobs) == len(g.tokens)
        assert g.version == pair.version
    assert {g.tokens[-1] for g in drawn if g.finish_reason == "stop"} == set(STOPS)
    assert {g.finish_reason for g in drawn} == {"stop", "length"}


def test_requests_come_as_they_finish(pair):
    order = [i for i, _ in pair.backend.generate([Request((1, 2), Sampling(1.0, 1.0, n)) for n in (40, 1)])]
    assert order == [1, 0]


def test_a_consumer_may_stop_early(pair):
    running = pair.backend.generate([Request((1, 2), Sampling(1.0, 1.0, n)) for n in (1, 40)])
    assert next(running)[0] == 0
    running.close()
    pair.sync()  # a running request would hold on to the cache
    assert pair.mismatch() < 1e-4


def test_global_random_state_is_neither_used_nor_moved(pair):
    request, found = Request((1, 2, 3), Sampling(1.0, 1.0, 10), 3, 4), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        pair.sync()
        found.append([g.tokens for g in pair.generate(request)[0]])
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())
    assert found[0] == found[1]


@pytest.mark.parametrize(("request_", "message"), [
    (Request((1,), Sampling(temperature=1e-3)), "temperature 0 or from 0.01"),
    (Request((1,), Sampling(temperature=-1.0)), "temperature must be"),
    (Request((1,) * 250, Sampling(max_tokens=10)), "250 tokens and 10 more do not fit into the model's 256"),
])
def test_what_it_cannot_do_is_refused(pair, request_, message):
    with pytest.raises(InputError, match=message):
        pair.generate(request_)


def test_temperature_0_takes_the_likeliest_token(pair):
    first, second = pair.generate(Request((1, 2, 3), Sampling(0.0, 1.0, 8), 2))[0]
    assert first.tokens == second.tokens
    ids = [1, 2, 3, *first.tokens]
    with torch.no_grad():
        assert pair.policy(torch.tensor([ids])).logits[0, 2:-1].argmax(-1).tolist() == list(first.tokens)


@pytest.mark.parametrize("cut", [{"top_k": 4}, {"top_p": 0.3}])
def test_cuts_of_the_distribution_are_those_of_hf(pair, cut):
    with torch.no_grad():
        p, ids = torch.softmax(pair.policy(torch.tensor([[1, 2, 3]])).logits[0, -1], 0).sort(descending=True)
    kept = 4 if "top_k" in cut else int((p.cumsum(0) < 0.3).sum()) + 1
    drawn = pair.generate(Request((1, 2, 3), Sampling(max_tokens=1, **cut), 300))[0]
    assert {g.tokens[0] for g in drawn} == set(ids[:kept].tolist())


def test_release_is_nothing_on_a_cpu(pair):
    pair.backend.release()
    assert pair.mismatch() < 1e-4


def test_no_requests_give_nothing(pair):
    assert pair.generate() == {}


@pytest.mark.parametrize("option", [{"gpu_memory_utilization": 0.5}, {"kv_cache_gib": 2.0}])
def test_an_option_of_the_gpu_is_refused_on_a_cpu(option):
    policy = Pair(tied=True).policy
    with pytest.raises(InputError, match="do nothing on a CPU"):
        VLLMRollout(VLLMOptions(**option), RolloutContext(policy, "", (), 0, "cpu", "float32", 256))
