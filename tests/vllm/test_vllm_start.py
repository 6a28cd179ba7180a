"""On which GPU a server starts and what it finds there; and servers that several ranks share."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlx_sdk import InputError, Request, RolloutContext, Sampling, TrainingError

from ..e2e.conftest import metrics_of
from ..engine.ranks import free_port

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed (.ci/install-vllm installs it for the CPU)", allow_module_level=True)

from rlx_plugins.options import VLLMServerOptions
from rlx_plugins.vllm_client import Server
from rlx_plugins.vllm_server import VLLMServerRollout
from rlx_plugins.vllm_start import environment, start_server, start_servers

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's imports warn of much
RANK = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1",
        "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "OMP_NUM_THREADS": "1", "GROUP_RANK": "0", "ROLE_RANK": "0"}


def test_a_server_finds_its_gpu_and_nothing_of_the_launcher():
    kept = {"PATH": "/bin", "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "eth0"}
    assert environment({**RANK, **kept}, 1) == {**kept, "CUDA_VISIBLE_DEVICES": "1"}
    assert environment({**RANK, **kept}, None) == kept
    assert environment({"CUDA_VISIBLE_DEVICES": "4,6"}, 1) == {"CUDA_VISIBLE_DEVICES": "6"}, "as the trainer counts"
    assert environment({"CUDA_VISIBLE_DEVICES": "GPU-a1,GPU-b2"}, 0) == {"CUDA_VISIBLE_DEVICES": "GPU-a1"}
    with pytest.raises(InputError, match=r"gpus has GPU 1.*CUDA_VISIBLE_DEVICES shows it 1 \('0'\)"):
        environment({"CUDA_VISIBLE_DEVICES": "0"}, 1)


@pytest.mark.parametrize(("gpus", "said"), [((0, 1), "has GPU 1, on which a rank trains"),
                                            ((), r"name running servers \(rollout.options.urls\), or the GPUs")])
def test_a_gpu_that_trains_gets_no_server(tmp_path, gpus, said):
    context = RolloutContext(None, "", (), 0, "cuda:1", "bfloat16", 64)
    with pytest.raises(InputError, match=said):
        start_servers(VLLMServerOptions(gpus=gpus), context, tmp_path, first=True)


def test_a_run_on_several_machines_must_name_its_servers(tmp_path, monkeypatch):
    """Else ranks elsewhere look for them on their own machine, and say so only after all models are loaded."""
    context = RolloutContext(None, "", (), 0, "cuda:1", "bfloat16", 64)
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    for first in (True, False):
        with pytest.raises(InputError, match=r"several machines, start the servers yourself .*options\.urls"):
            start_servers(VLLMServerOptions(gpus=(0,)), context, tmp_path, first=first)


def test_ranks_that_do_not_start_servers_know_their_addresses(tmp_path):
    context = RolloutContext(None, "", (), 0, "cuda:0", "bfloat16", 64)
    found = start_servers(VLLMServerOptions(gpus=(2, 3), port=9000), context, tmp_path, first=False)
    assert [one.url for one in found] == ["http://127.0.0.1:9000", "http://127.0.0.1:9001"]
    assert {one.process for one in found} == {None}


@pytest.mark.parametrize(("status", "answer"), [(404, b'{"detail": "Not Found"}'), (200, b""), (200, b"<html>")])
def test_a_server_of_another_kind_is_named_with_what_to_start(status, answer):
    """One that vLLM's own command started, or some other program's."""
    class Other(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        server = Server(f"http://127.0.0.1:{other.server_port}")
        for ask in (lambda: server.call("rlx_version", 5), lambda: server.forget(5)):
            with pytest.raises(InputError, match=rf"answers .* with {status}.*python -m rlx_plugins.vllm_serve"):
                ask()
        server.close()
        other.shutdown()


class Busy(BaseHTTPRequestHandler):
    """A server that never comes to an end with a completion."""

    def do_POST(self):
        if self.path == "/v1/completions":
            self.server.asked.set()
            self.server.over.wait(20)
        answer = json.dumps({"results": [{"version": -1, "run": self.server.run}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


def test_closing_waits_for_no_completion_that_somebody_s_server_is_at(capsys):
    """As when the trainer fails while a batch is sampled ahead: Python ends no process whose threads wait."""
    policy = LlamaForCausalLM(LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, vocab_size=9,
                                          num_attention_heads=1))
    others = {*threading.enumerate()}
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as busy, ThreadPoolExecutor(1, "test") as pool:
        busy.daemon_threads, busy.asked, busy.over = True, threading.Event(), threading.Event()
        threading.Thread(target=busy.serve_forever, daemon=True).start()
        options = VLLMServerOptions(urls=(f"http://127.0.0.1:{busy.server_port}",))
        backend = VLLMServerRollout(options, RolloutContext(policy, "", (), 0, "cpu", "float32", 64))
        backend._ready, busy.run = backend._servers, backend._run
        asked = Request((1, 2), Sampling(max_tokens=4), 1, 0)
        coming = pool.submit(lambda: [*backend.generate([asked])])
        assert busy.asked.wait(10)
        backend.close()
        assert coming.result(timeout=5) == []
        calls = [one for one in threading.enumerate() if one not in others and one.name.startswith("ThreadPool")]
        for call in calls:
            call.join(5)
        assert not any(call.is_alive() for call in calls)
        busy.over.set()
        busy.shutdown()
    assert "is lost" not in capsys.readouterr().err


def test_a_rank_that_reaches_no_server_says_what_to_do():
    policy = LlamaForCausalLM(LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, vocab_size=9,
                                          num_attention_heads=1))
    url = f"http://127.0.0.1:{free_port()}"
    backend = VLLMServerRollout(VLLMServerOptions(urls=(url,)), RolloutContext(policy, "", (), 0, "cpu", "float32", 64))
    backend._rank = 1
    with pytest.raises(InputError, match=rf"rank 1 reaches no server at {url}, and rank 0 does.*rollout.options.urls"):
        backend.sync(iter(policy.named_parameters()), 0)
    assert not Server(url).alive()


class Quick(BaseHTTPRequestHandler):
    """A server whose completions take a second, and nothing else."""

    def do_GET(self):
        self.answer(b"{}")

    def do_POST(self):
        if self.path == "/v1/completions":
            time.sleep(1)
            self.answer(json.dumps({"choices": [{"index": 0, "token_ids": [1], "finish_reason": "stop",
                                                 "logprobs": {"token_logprobs": [0.0]}}]}).encode())
        else:
            self.answer(json.dumps({"results": [{"version": -1, "run": self.server.run}]}).encode())

    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


@pytest.fixture
def quick():
    with ThreadingHTTPServer(("127.0.0.1", 0), Quick) as server:
        server.daemon_threads, server.run = True, ""
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def made_for(*urls):
    policy = LlamaForCausalLM(LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, vocab_size=9,
                                          num_attention_heads=1))
    return VLLMServerRollout(VLLMServerOptions(urls=urls), RolloutContext(policy, "", (), 0, "cpu", "float32", 64))


def test_a_server_is_not_lost_because_all_connections_wait_for_completions(quick, monkeypatch):
    monkeypatch.setattr("rlx_plugins.vllm_server.HEARTBEAT", 0.2)
    monkeypatch.setattr("rlx_plugins.vllm_client.HEARTBEAT", 0.2)
    monkeypatch.setattr("rlx_plugins.vllm_server.IN_FLIGHT", 4)
    monkeypatch.setattr("rlx_plugins.vllm_client.IN_FLIGHT", 4)
    backend = made_for(f"http://127.0.0.1:{quick.server_port}")
    quick.run, backend._ready = backend._run, backend._servers
    found = dict(backend.generate([Request((1, 2), Sampling(max_tokens=4), 1, i) for i in range(9)]))
    assert sorted(found) == [*range(9)]
    backend.close()


@pytest.mark.parametrize(("ranks", "prompts", "most"), [(8, 1, 1), (8, 4, 4), (24, 2, 6), (1, 9, 2)])
def test_prompts_of_all_ranks_are_spread_over_the_servers(monkeypatch, ranks, prompts, most):
    asked = Counter()

    def complete(server, request, stops, version):
        asked[server.url] += 1
        return []

    monkeypatch.setattr(Server, "complete", complete)
    monkeypatch.setattr(Server, "holds", lambda server, version, run: True)
    backend = made_for(*(f"http://127.0.0.1:{9000 + i}" for i in range(8)))
    for backend._rank in range(ranks):
        backend._ready = [*backend._servers]
        list(backend.generate([Request((1, 2), Sampling(max_tokens=4), 1, i) for i in range(prompts)]))
    assert sum(asked.values()) == ranks * prompts
    assert max(asked.values()) == most
    backend.close()


def test_a_server_that_another_run_has_started_at_the_same_address_is_not_taken_for_ours(quick, tmp_path):
    """Where both began before either listened."""
    backend = made_for()
    log = tmp_path / "log"
    log.write_text("address already in use")
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], start_new_session=True)
    process.wait()
    backend._servers = [Server(f"http://127.0.0.1:{quick.server_port}", process, log)]
    with pytest.raises(TrainingError, match=r"its process ended with exit code 3:\naddress already in use"):
        backend._await_servers()


def test_two_runs_of_a_machine_do_not_start_servers_at_the_same_address(tmp_path, monkeypatch):
    """vLLM takes some seconds until it listens, and 0.20 shares its port with whoever listens there too."""
    monkeypatch.setattr("subprocess.Popen", lambda *args, **settings: SimpleNamespace(pid=0, poll=lambda: 0))
    url, context = f"http://127.0.0.1:{free_port()}", RolloutContext(None, "", (), 0, "cpu", "float32", 64)
    first = start_server(url, None, VLLMServerOptions(), context, tmp_path)
    with pytest.raises(InputError, match=r"another run starts a server at .*; choose another rollout\.options\.port"):
        start_server(url, None, VLLMServerOptions(), context, tmp_path)
    first._claim.close()
    start_server(url, None, VLLMServerOptions(), context, tmp_path)._claim.close()


@pytest.mark.full
@pytest.mark.parametrize(("rollout", "stage"), [("vllm", 1), ("vllm_server", 1), ("vllm_server", 3)])
def test_two_ranks_train_what_one_does(tmp_path, rollout, stage):
    """An engine in each, or a server of both. In float32 every backend writes what HF generate does on one rank."""
    def train(name: str, *more: str) -> Path:
        done = subprocess.run(
            [sys.executable, "-m", "rlx", "train", "--algo", "grpo", "--reward", "polite_length", "--steps", "2",
             "--name", name, "--set", f"run.dir={tmp_path}", "--set", "rollout.max_completion=12", "--set",
             "train.batch_size=4", "--set", "data.eval=0", "--set", "run.sample_every=null", "--set",
             "algo.importance.level=null", "--set", "train.optim.policy.lr=1e-4", *more],
            capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        return tmp_path / name

    one = train("one", "--rollout", "hf")
    port = ["--set", f"rollout.options.port={free_port()}"] if rollout == "vllm_server" else []
    two = train("two", "--rollout", rollout, "--gpus", "2", "--set", f"engine.zero_stage={stage}", *port)
    kept = ("reward/", "length/", "loss/", "grad_norm/", "kl/")
    for a, b in zip(metrics_of(one), metrics_of(two), strict=True):
        assert {k: v for k, v in b.items() if k.startswith(kept)} == pytest.approx(
            {k: v for k, v in a.items() if k.startswith(kept)}, rel=1e-3, abs=2e-4)
    assert torch.tensor([line["loss/policy"] for line in metrics_of(one)]).isfinite().all()
