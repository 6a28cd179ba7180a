import copy
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlx.batching import pad_sequences
from rlx.models import CausalLM, add_lora, plain_model
from rlx_plugins import hf_decode, hf_rollout
from rlx_plugins.hf_rollout import HFRollout
from rlx_plugins.options import HFOptions
from rlx_sdk import Request, RolloutContext, Sampling

STOPS = (5, 23, 41)


@pytest.fixture(params=["generate", "steps"])
def backend(llama, request, monkeypatch):
    """A backend over a small model, as in a run: the model's head also answers with logprobs.

    With HF's ``generate``, and with the steps that a GPU would play again, here each run as it stands.
    """
    steps = request.param == "steps"
    monkeypatch.setattr(hf_rollout, "decode", partial(hf_decode.decode, record=False))
    monkeypatch.setattr(hf_decode, "ROOM", 5)
    monkeypatch.setattr(hf_decode, "LOOK", 2)

    def make(model=None, stops=STOPS, pad=0, dtype="float32", **options):
        policy = llama() if model is None else model
        CausalLM(policy)
        context = RolloutContext(policy, "folder", stops, pad, "cpu", dtype, 64)
        made = HFRollout(HFOptions(**options), context)
        assert hf_decode.can_record(plain_model(policy))
        made._records = steps
        made.sync(iter(()), version=7)
        yielded.append(made)
        return made

    yielded = []
    yield make
    assert all(made._records == steps for made in yielded) or "failure" in request.node.name

    return make


def requests(sampling, *prompts, n=2):
    return [Request(prompt, sampling, n, seed=100 + i) for i, prompt in enumerate(prompts)]


PROMPTS = [(1, 2, 3), (9,), (8, 7, 6, 5, 4, 3, 2), (11, 12), (60, 61, 62)]


def texts(generations):
    return [(list(g.tokens), g.finish_reason) for g in generations]


@settings(deadline=None, max_examples=8, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(5)), size=st.integers(1, 5), batch_tokens=st.sampled_from([1, 60, 65_536]))
def test_a_request_has_the_same_completions_in_any_company(backend, order, size, batch_tokens):
    asked = requests(Sampling(0.7, 0.9, 10), *PROMPTS)
    alone = [next(iter(backend().generate([request])))[1] for request in asked]
    chosen = order[:size]
    together = dict(backend(batch_tokens=batch_tokens).generate([asked[i] for i in chosen]))
    assert sorted(together) == list(range(size))
    for k, i in enumerate(chosen):
        assert texts(together[k]) == texts(alone[i])
        for one, other in zip(together[k], alone[i], strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_requests_of_different_sampling_do_not_mix(backend):
    prompt = (1, 2, 3)
    asked = [Request(prompt, Sampling(0.7, 1.0, 3), 1, 5), Request(prompt, Sampling(0.7, 1.0, 9), 1, 5),
             Request(prompt, Sampling(5.0, 1.0, 9), 1, 5), Request(prompt, Sampling(5.0, 1e-9, 9), 1, 5)]
    together = dict(backend(stops=(99,)).generate(asked))
    alone = [next(iter(backend(stops=(99,)).generate([request])))[1] for request in asked]
    assert [texts(together[i]) for i in range(4)] == [texts(one) for one in alone]
    assert [len(one[0].tokens) for one in alone] == [3, 9, 9, 9]
    assert len({tuple(one[0].tokens) for one in alone[1:]}) == 3


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_logprobs_are_the_trainer_s(backend, llama, top_p):
    """At the sampling temperature, over the whole vocabulary, whatever top_p cuts."""
    model = llama()
    made = backend(model)
    asked = requests(Sampling(0.7, top_p, 12), *PROMPTS, n=4)
    rows = [(asked[i].tokens, g) for i, group in made.generate(asked) for g in group]
    seqs = pad_sequences([prompt for prompt, _ in rows], [g.tokens for _, g in rows], 0,
                         rollout_logprobs=[g.logprobs for _, g in rows])
    with torch.no_grad():
        logprobs, _ = CausalLM(model)(seqs.tokens, seqs.mask, 0.7)
    torch.testing.assert_close(seqs.per_token["rollout_logprobs"], logprobs, atol=1e-4, rtol=0)
    assert logprobs[seqs.mask].max() < 0


def expected_first_token(model, prompt, temperature):
    with torch.no_grad():
        return torch.softmax(model(torch.tensor([prompt])).logits[0, -1].float() / temperature, 0)


def misfit(counts, expected):
    """χ² a degree of freedom, over tokens expected at least five times."""
    often = expected >= 5
    return ((counts - expected)[often] ** 2 / expected[often]).sum().item() / (int(often.sum()) - 1)


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_first_tokens_follow_the_softmax(backend, llama, temperature):
    prompt, n = (1, 2, 3), 2000
    (_, drawn), = backend().generate([Request(prompt, Sampling(temperature, 1.0, 1), n, 3)])
    counts = torch.bincount(torch.tensor([g.tokens[0] for g in drawn]), minlength=64)
    assert misfit(counts, n * expected_first_token(llama(), prompt, temperature)) < 2
    assert misfit(counts, n * expected_first_token(llama(), prompt, 1.0)) > 4  # the test can tell


def test_top_p_keeps_the_smallest_set_of_that_mass(backend, llama):
    prompt, n, top_p = (1, 2, 3), 2000, 0.8
    (_, drawn), = backend().generate([Request(prompt, Sampling(1.0, top_p, 1), n, 3)])
    counts = torch.bincount(torch.tensor([g.tokens[0] for g in drawn]), minlength=64)
    p, ids = expected_first_token(llama(), prompt, 1.0).sort(descending=True)
    kept = int((p.cumsum(0) < top_p).sum()) + 1
    assert 1 < kept < 30
    expected = torch.zeros(64).index_put((ids[:kept],), p[:kept] / p[:kept].sum() * n)
    assert counts[expected == 0].sum() == 0
    assert counts[ids[kept - 1]] > 0  # the one that crosses the mass belongs to the set
    assert misfit(counts, expected) < 2


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_top_k_keeps_the_likeliest_tokens_and_top_p_the_likeliest_of_these(backend, llama, top_p):
    prompt, n, k = (1, 2, 3), 2000, 5
    (_, drawn), = backend().generate([Request(prompt, Sampling(1.0, top_p, 1, k), n, 7)])
    counts = torch.bincount(torch.tensor([g.tokens[0] for g in drawn]), minlength=64)
    p, ids = expected_first_token(llama(), prompt, 1.0).topk(k)
    p = p / p.sum()
    kept = int((p.cumsum(0) < top_p * (1 - 1e-6)).sum()) + 1
    assert kept == k if top_p == 1 else 1 < kept < k
    expected = torch.zeros(64).index_put((ids[:kept],), p[:kept] / p[:kept].sum() * n)
    assert counts[expected == 0].sum() == 0
    assert misfit(counts, expected) < 2.5


def test_temperature_0_takes_the_likeliest_token(backend, llama):
    model = llama()
    (_, (first, second)), = backend(model, stops=(99,)).generate([Request((1, 2, 3), Sampling(0.0, 1.0, 8), 2, 3)])
    assert first.tokens == second.tokens
    ids = [1, 2, 3, *first.tokens]
    with torch.no_grad():
        assert model(torch.tensor([ids])).logits[0, 2:-1].argmax(-1).tolist() == first.tokens


def test_no_random_number_leads_out_of_the_set(backend, llama, monkeypatch):
    """Not even the largest there is, which the product with the mass may round up to the mass itself."""
    highest = 1 - 2**-24
    monkeypatch.setattr("rlx_plugins.hf_rollout._uniforms",
                        lambda r: torch.full((r.n, r.sampling.max_tokens), highest))
    for top_p in (0.3, 0.5, 0.8, 0.95):
        for first in range(6):
            (_, drawn), = backend().generate([Request((first, 2), Sampling(1.0, top_p, 1), 1, 0)])
            p, ids = expected_first_token(llama(), (first, 2), 1.0).sort(descending=True)
            kept = ids[: int((p.cumsum(0) < top_p).sum()) + 1]
            assert drawn[0].tokens[0] == kept[-1]


def test_completions_of_one_request_differ_and_the_seed_decides_them(backend):
    def drawn(seed):
        (_, group), = backend().generate([Request((1, 2, 3), Sampling(1.0, 1.0, 10), 6, seed)])
        return [tuple(g.tokens) for g in group]

    assert len(set(drawn(1))) == 6
    assert drawn(1) == drawn(1)
    assert not set(drawn(1)) & set(drawn(2))


def test_global_random_state_is_neither_used_nor_moved(backend):
    made, asked, found = backend(), requests(Sampling(1.0, 1.0, 6), *PROMPTS), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        found.append({i: texts(group) for i, group in made.generate(asked)})
        assert torch.equal(torch.get_rng_state(), state)
    assert found[0] == found[1]


def test_every_stop_id_ends_a_completion_and_stays_in_it(backend):
    (_, drawn), = backend().generate([Request((1, 2, 3), Sampling(1.5, 1.0, 20), 60, 0)])
    for g in drawn:
        *before, last = g.tokens
        assert not set(before) & set(STOPS)
        assert g.finish_reason == ("stop" if last in STOPS else "length")
        assert len(g.tokens) == 20 or last in STOPS
        assert len(g.logprobs) == len(g.tokens)
    assert {g.tokens[-1] for g in drawn if g.finish_reason == "stop"} == set(STOPS)
    assert {g.finish_reason for g in drawn} == {"stop", "length"}


def chain(llama, follow):
    """A model whose next token depends on the last one alone, each of the given ones with equal probability."""
    model = llama(vocab_size=272, hidden_size=272, intermediate_size=8, num_attention_heads=4, num_key_value_heads=4,
                  num_hidden_layers=1)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        torch.nn.init.eye_(model.model.embed_tokens.weight)
        model.lm_head.weight.zero_()
        for token, following in follow.items():
            model.lm_head.weight[list(following), token] = 10.0
    return model


def test_reasons_of_the_recorded_completions(case, backend, llama):
    """A chain that can write exactly the recorded completions."""
    m53 = case("M53_stop_reasons")["inputs"]
    rows = {tuple(row["ids"]): row["reason"] for row in m53["rows"] if "stop_token_not_returned" not in row}
    made = backend(chain(llama, {1: [5], 5: [6, 258], 6: [7, 260], 7: [8, 260]}), stops=tuple(m53["eos_ids"]))
    (_, drawn), = made.generate([Request((1,), Sampling(1.0, 1.0, m53["max_new"]), 64, 0)])
    assert {tuple(g.tokens): g.finish_reason for g in drawn} == rows
    only_one = backend(chain(llama, {1: [5], 5: [6, 258], 6: [7, 260], 7: [8, 260]}), stops=(258,))
    (_, mistaken), = only_one.generate([Request((1,), Sampling(1.0, 1.0, m53["max_new"]), 64, 0)])
    assert Counter(g.finish_reason for g in mistaken)["length"] > Counter(g.finish_reason for g in drawn)["length"]


@pytest.mark.parametrize("pad", [0, 5, 33])
def test_the_padding_id_does_not_matter(backend, pad):
    """Also one that is a stop id or an ordinary token, which a completion may well contain."""
    asked = requests(Sampling(1.0, 1.0, 10), *PROMPTS, n=3)
    expected = {i: texts(group) for i, group in backend(pad=0).generate(asked)}
    assert {i: texts(group) for i, group in backend(pad=pad).generate(asked)} == expected


def test_the_model_s_own_generation_settings_have_no_influence_and_stay(backend, llama):
    asked = requests(Sampling(0.7, 1.0, 10), *PROMPTS)
    expected = {i: texts(group) for i, group in backend().generate(asked)}
    model = llama()
    own = GenerationConfig(repetition_penalty=5.0, top_k=1, temperature=0.01, do_sample=True, min_new_tokens=9,
                           eos_token_id=[1, 2, 3], no_repeat_ngram_size=2, suppress_tokens=[4, 9], num_beams=1)
    model.generation_config, before = own, copy.deepcopy(own.to_dict())
    assert {i: texts(group) for i, group in backend(model).generate(asked)} == expected
    assert model.generation_config is own
    assert own.to_dict() == before


def test_the_model_s_own_settings_stay_after_a_failure_too(backend, llama):
    model = llama()
    own = model.generation_config
    made = backend(model)
    with pytest.raises(IndexError):
        list(made.generate([Request((64,), Sampling(), 1, 0)]))  # no such token
    assert model.generation_config is own


def test_generations_carry_the_version_of_the_last_sync(backend):
    made = backend()
    assert {g.version for _, group in made.generate(requests(Sampling(), (1, 2))) for g in group} == {7}
    assert made.sync(iter(()), version=8) is None
    assert {g.version for _, group in made.generate(requests(Sampling(), (1, 2))) for g in group} == {8}


def test_changed_weights_show_at_once(backend, llama):
    model = llama()
    made, asked = backend(model), requests(Sampling(1.0, 1.0, 8), *PROMPTS)
    before = {i: texts(group) for i, group in made.generate(asked)}
    with torch.no_grad():
        model.lm_head.weight.neg_()
    assert {i: texts(group) for i, group in made.generate(asked)} != before


def test_an_adapter_is_part_of_the_policy(backend, llama):
    torch.manual_seed(0)
    model, asked = add_lora(CausalLM(llama()).model, 4, 8, "all-linear"), requests(Sampling(1.0, 1.0, 12), *PROMPTS)
    before = {i: texts(group) for i, group in backend(model).generate(asked)}
    assert before == {i: texts(group) for i, group in backend(llama()).generate(asked)}
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    rows = [(asked[i].tokens, g) for i, group in backend(model).generate(asked) for g in group]
    seqs = pad_sequences([prompt for prompt, _ in rows], [g.tokens for _, g in rows], 0,
                         rollout_logprobs=[g.logprobs for _, g in rows])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(seqs.tokens).logits.float(), -1)[:, :-1].gather(2, seqs.tokens[:, 1:, None])
    wanted = torch.nn.functional.pad(logprobs[..., 0], (1, 0)) * seqs.mask
    torch.testing.assert_close(seqs.per_token["rollout_logprobs"] * seqs.mask, wanted, atol=1e-4, rtol=0)
    assert {i: texts(group) for i, group in backend(model).generate(asked)} != before


def test_it_is_exact_in_float32_only(backend):
    assert backend().exact
    assert not backend(dtype="bfloat16").exact


def test_no_requests_give_nothing(backend):
    assert list(backend().generate([])) == []


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_keys_are_not_copied_for_the_heads_that_share_them(backend, llama, monkeypatch, shared):
    """And logprobs are those of one pass over the whole; HF's own way is taken where there is more than one token."""
    copies, model = [], llama(num_attention_heads=4, num_key_value_heads=4 // shared)
    made = backend(model, stops=(99,))
    monkeypatch.setattr("transformers.integrations.sdpa_attention.repeat_kv",
                        lambda states, n: copies.append(states.shape) or states.repeat_interleave(n, 1))
    asked = requests(Sampling(1.0, 1.0, 12), *PROMPTS, n=4)
    rows = [(asked[i].tokens, g) for i, group in made.generate(asked) for g in group]
    layers = model.config.num_hidden_layers
    assert len(copies) == (0 if shared == 1 else 2 * layers), "the prompts' pass alone"
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    seqs = pad_sequences([prompt for prompt, _ in rows], [g.tokens for _, g in rows], 0,
                         rollout_logprobs=[g.logprobs for _, g in rows])
    with torch.no_grad():
        logprobs, _ = CausalLM(model)(seqs.tokens, seqs.mask, 1.0)
    torch.testing.assert_close(logprobs, seqs.per_token["rollout_logprobs"] * seqs.mask, atol=1e-5, rtol=0)


def test_the_cache_of_a_layer_grows_in_place(monkeypatch):
    """HF's own would copy all of it for each new token; what it does to a cache besides stays possible."""
    monkeypatch.setattr(hf_rollout, "ROOM", 4)
    plain, layer, places = DynamicLayer(), DynamicLayer(), []
    for i, new in enumerate([3, 1, 1, 1, 1, 1, 1, 2, 1]):
        if i == 6:
            for one in (plain, layer):
                one.batch_select_indices(torch.tensor([1, 0, 1]))
        if i == 7:
            for one in (plain, layer):
                one.crop(-2)
        keys, values = torch.randn(2, 3 if i > 5 else 2, 2, new, 4)
        wanted, found = plain.update(keys, values), hf_rollout._append(layer, keys, values)
        assert [part.tolist() for part in found] == [part.tolist() for part in wanted]
        assert layer.get_seq_length() == plain.get_seq_length()
        places.append(found[0].data_ptr())
    assert len(set(places[1:6])) == 1
    assert len(set(places)) == 4


def test_generation_grows_caches_in_place_and_gives_hf_s_class_back(backend, monkeypatch):
    plain, used, made = DynamicLayer.update, [], backend(stops=(99,))
    monkeypatch.setattr(hf_rollout, "ROOM", 5)
    wanted = list(made.generate(requests(Sampling(0.7, 1.0, 12), *PROMPTS)))
    assert DynamicLayer.update is plain
    monkeypatch.setattr(hf_rollout, "_append", lambda *args: used.append(1) or plain(*args))
    assert list(made.generate(requests(Sampling(0.7, 1.0, 12), *PROMPTS))) == wanted
    assert len(used) == 2 * (1 if made._records else 12), "of both layers; steps have a cache of their own"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("sampling", [Sampling(0.7, 1.0, 300), Sampling(1.0, 0.8, 40, 20), Sampling(0.0, 1.0, 40)])
@pytest.mark.parametrize("shared", [1, 2])
def test_a_step_played_again_writes_what_generate_does(llama, capsys, sampling, shared):
    """Longer than one recording has room for, most rows ending earlier; and weights that change are seen at once."""
    model = llama(num_key_value_heads=4 // shared, max_position_embeddings=512).cuda()
    CausalLM(model)
    context = RolloutContext(model, "folder", STOPS[:1], 0, "cuda", "float32", 512)
    ways = [HFRollout(HFOptions(enforce_eager=eager), context) for eager in (True, False)]
    assert not ways[0]._records
    asked, found = requests(sampling, *PROMPTS, n=8), []
    for _ in range(2):
        for made in ways:
            made.sync(iter(()), 0)
            found.append(dict(made.generate(asked)))
        with torch.no_grad():
            model.lm_head.weight.neg_()
    assert ways[1]._records
    assert "without CUDA graphs" not in capsys.readouterr().err
    for plain, played in (found[:2], found[2:]):
        for i in range(len(asked)):
            assert texts(played[i]) == texts(plain[i])
            for one, other in zip(played[i], plain[i], strict=True):
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert found[1] != found[3]
