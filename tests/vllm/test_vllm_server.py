"""Rollouts by real vLLM servers, started and restarted as users' are."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rlx
from rlx.batching import pad_sequences
from rlx.models import CausalLM
from rlx_sdk import InputError, Request, RolloutContext, Sampling, TrainingError

from ..engine.ranks import free_port

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed (.ci/install-vllm installs it for the CPU)", allow_module_level=True)

from rlx_plugins.options import VLLMServerOptions
from rlx_plugins.vllm_server import VLLMServerRollout
from rlx_plugins.vllm_start import start_server

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's imports warn of much

VOCAB, STOPS = 99, (5, 23, 41)
LONG = tuple(7 * i % VOCAB for i in range(200))
"""Longer than a block of the KV cache, 128 tokens on a CPU: its first block is kept for the next request."""
PROMPTS = [(1, 2, 3), (9,), LONG]


def gone(group):
    """Whether a server and its engine have ended, within a few seconds."""
    for _ in range(50):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if not [p for p in psutil.process_iter() if os.getpgid(p.pid) == group and p.status() != "zombie"]:
                return True
        time.sleep(0.2)
    return False


class Pair:
    """A policy with random weights, and the backend that samples from it."""

    def __init__(self, **options):
        torch.manual_seed(0)
        self.policy = LlamaForCausalLM(LlamaConfig(
            hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=VOCAB, max_position_embeddings=256, initializer_range=0.2, tie_word_embeddings=True,
            pad_token_id=0, bos_token_id=None, eos_token_id=None)).eval()
        self.model, self.version = CausalLM(self.policy), 0
        self.context = RolloutContext(self.policy, "no such folder", STOPS, 0, "cpu", "float32", 256)
        self.backend = VLLMServerRollout(VLLMServerOptions(port=free_port(), **options), self.context)

    @torch.no_grad()
    def step(self, size):
        for weight in self.policy.parameters():
            weight.add_(size * torch.randn_like(weight).sign())

    def sync(self, weights=None):
        self.version += 1
        return self.backend.sync(iter(self.policy.named_parameters()) if weights is None else weights, self.version)

    def generate(self, *requests):
        return dict(self.backend.generate(requests))

    def mismatch(self, temperature=0.7):
        """The largest difference between the server's and the trainer's logprobs."""
        asked = [Request(prompt, Sampling(temperature, 1.0, 24), 2, 10 + i) for i, prompt in enumerate(PROMPTS)]
        rows = [(asked[i].tokens, g) for i, group in self.generate(*asked).items() for g in group]
        assert {g.version for _, g in rows} == {self.version}
        assert all(g.tokens[-1] in STOPS if g.finish_reason == "stop" else len(g.tokens) == 24 for _, g in rows)
        seqs = pad_sequences([prompt for prompt, _ in rows], [g.tokens for _, g in rows], 0,
                             rollout_logprobs=[g.logprobs for _, g in rows])
        with torch.no_grad():
            logprobs, _ = self.model(seqs.tokens, seqs.mask, temperature)
        return (logprobs - seqs.per_token["rollout_logprobs"]).abs().max().item()


@pytest.fixture(scope="module")
def pair():
    made = Pair()
    yield made
    made.backend.close()


def test_after_a_sync_everything_comes_from_the_new_weights(pair):
    found = pair.sync()
    weights = [w.detach().double() for w in pair.policy.parameters()]
    assert (found.names, found.total) == (len(weights), pytest.approx(sum(w.sum().item() for w in weights), rel=1e-12))
    assert pair.mismatch() < 1e-4
    pair.step(0.05)
    assert pair.mismatch() > 0.1  # the test can tell
    pair.sync()
    assert pair.mismatch(1.5) < 1e-4
    assert pair.mismatch(1.5) < 1e-4  # now from the cache


def test_weights_that_are_one_small_step_old_or_not_sent_are_caught(pair):
    pair.sync()
    old = {name: weight.detach().clone() for name, weight in pair.policy.named_parameters()}
    pair.step(1e-6)
    send = pair.backend._servers[0].channel.send
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair.backend._servers[0].channel, "send",
                      lambda name, w: send(name, old[name] if "1.self_attn.k_proj" in name else w))
        with pytest.raises(TrainingError, match="does not sample with the current weights: Σw"):
            pair.sync()
    with pytest.raises(TrainingError, match=r"1 weights were never sent: model.layers.0.mlp.down_proj.weight"):
        pair.sync((n, w) for n, w in pair.policy.named_parameters() if n != "model.layers.0.mlp.down_proj.weight")
    pair.sync()
    assert pair.mismatch() < 1e-4


def test_a_cache_of_prompts_that_stays_is_caught(pair):
    """A server cannot empty it while it is at a request; vLLM 0.20 says nothing of that by itself."""
    pair.sync()
    server, asked = pair.backend._servers[0], [Request(LONG, Sampling(1.0, 1.0, 56), 8, seed) for seed in range(20)]
    assert server.forget(5)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(pair.generate, *asked)
        kept = False
        while not (kept or coming.done()):
            kept = not server.forget(5)
        coming.result()
    assert kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "forget", lambda seconds: False)
        with pytest.raises(TrainingError, match="the cache of old prompts could not be emptied"):
            pair.sync()


def test_seeds_decide_the_completions_and_many_are_asked_at_once(pair):
    pair.sync()
    asked = [Request((1, 2, 3), Sampling(1.0, 1.0, 10), 6, seed) for seed in (1, 2, 1)] * 20
    found = pair.generate(*asked)
    first, second, again = ([tuple(g.tokens) for g in found[i]] for i in range(3))
    assert first == again
    assert len(set(first)) == 6
    assert not set(first) & set(second)


def test_what_it_cannot_do_is_refused(pair):
    pair.sync()
    with pytest.raises(InputError, match="250 tokens and 10 more do not fit into the 256"):
        pair.generate(Request((1,) * 250, Sampling(max_tokens=10)))
    with pytest.raises(InputError, match=r"vllm_server http.* answers /v1/completions with 400: .*temperature"):
        pair.generate(Request((1,), Sampling(temperature=-1.0)))
    with pytest.raises(InputError, match="something listens at"):
        VLLMServerRollout(VLLMServerOptions(port=int(pair.backend._servers[0].url.rpartition(":")[2])), pair.context)


@pytest.mark.full
def test_a_dead_server_is_named_in_seconds_and_a_restarted_one_gets_the_weights_first(pair, capfd):
    """Last in this file: the server of the others is killed while it samples, and comes back."""
    pair.sync()
    [server] = pair.backend._servers
    running = pair.backend.generate([Request((i,), Sampling(1.0, 1.0, 250), 8) for i in range(64)])
    next(running)
    server.process.send_signal(signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(TrainingError, match=rf"no server is left: {server.url} its process ended with exit code -9"):
        list(running)
    assert time.monotonic() - began < 20
    assert gone(server.process.pid)
    server._claim.close()
    again = start_server(server.url, None, VLLMServerOptions(), pair.context, Path(pair.backend._folder.name))
    server.process, server.log, server._claim = again.process, again.log, again._claim
    pair.step(0.05)
    pair.sync()
    assert pair.mismatch() < 1e-4


def test_a_server_with_other_weights_is_not_used(pair, capfd):
    pair.sync()
    pair.backend._version += 1
    with pytest.raises(TrainingError, match="answers, but has not the current weights"):
        pair.mismatch()
    assert "was it restarted, or taken by another run?" in capfd.readouterr().err


def test_a_server_that_another_run_has_taken_is_not_used(pair):
    pair.sync()
    [server] = pair.backend._servers
    other = VLLMServerRollout(VLLMServerOptions(urls=(server.url,)), pair.context)
    other.sync(iter(pair.policy.named_parameters()), pair.version)  # the same version, and even the same weights
    with pytest.raises(TrainingError, match="answers, but has not the current weights"):
        pair.mismatch()
    with pytest.raises(InputError, match=rf"{server.url} was taken by another run; give each run servers of its own"):
        pair.sync()
    other.close()
    server.channel = None  # as of a new run
    pair.sync()
    assert pair.mismatch() < 1e-4


def test_closing_ends_the_server(pair):
    process = pair.backend._servers[0].process
    pair.backend.close()
    assert process.poll() is not None
    assert gone(process.pid)


@pytest.mark.full
def test_a_run_samples_with_a_server_while_it_trains(tmp_path):
    result = rlx.train("grpo", "polite_length", steps=4, quiet=True, run={"dir": str(tmp_path), "sample_every": None},
                       rollout={"name": "vllm_server", "ahead": True, "max_completion": 16,
                                "options": {"port": free_port()}})
    lines = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "loss/policy" in line]
    assert [line["rollout/staleness"] for line in lines] == [0, 1, 1, 1]
    assert all(line["rollout/logprob_diff"] < 0.5 for line in lines)
    assert ["time/rollout" in line for line in lines] == [True, False, False, False]
    assert all("time/wait" in line for line in lines)
