"""On which GPU a server starts and what it finds there; and servers that several ranks share."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlx_sdk import InputError, Request, RolloutContext, Sampling

from ..e2e.conftest import metrics_of
from ..engine.ranks import free_port

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed (.ci/install-vllm installs it for the CPU)", allow_module_level=True)

from rlx_plugins.options import VLLMServerOptions
from rlx_plugins.vllm_client import Server
from rlx_plugins.vllm_server import VLLMServerRollout
from rlx_plugins.vllm_start import environment, start_servers

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
        answer = b'{"results": [{"version": -1}]}'
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
        backend._ready = backend._servers
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
