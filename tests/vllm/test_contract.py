"""Both vLLM backends pass the contract test that strangers use."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

import rlx
from rlx.ranks import start_distributed
from rlx.registry import Registry
from rlx_sdk import RolloutContext
from rlx_sdk.testing import check_rollout

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed (.ci/install-vllm installs it for the CPU)", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's imports and kernels warn of much
TINY = Path(rlx.__file__).parent / "quickstart/rlx-tiny"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("name", ["vllm", pytest.param("vllm_server", marks=pytest.mark.full)])
def test_a_vllm_backend_keeps_the_contract(name):
    start_distributed()  # as the trainer has done
    model = AutoModelForCausalLM.from_pretrained(TINY)
    stops = model.generation_config.eos_token_id
    context = RolloutContext(model, str(TINY), tuple(stops) if isinstance(stops, list) else (stops,), 0, "cpu",
                             "float32", 128)
    check_rollout(Registry.discover().get("rollout", name).plugin, context, model.named_parameters,
                  [[5, 6, 7], [8, 9], [10, 11, 12, 13]], {"port": free_port()} if name == "vllm_server" else None)
