"""Servers that rlx starts itself, for `vllm_server`: on which GPU, with which options, in which environment."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import torch

from rlx.models import plain_model
from rlx_plugins.options import VLLMServerOptions
from rlx_plugins.vllm_client import Server
from rlx_plugins.vllm_serve import PARENT
from rlx_sdk import InputError, RolloutContext

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "OMP_NUM_THREADS")
"""What a launcher tells the trainer's processes: not for others. NCCL's settings stay as they are."""


def start_servers(options: VLLMServerOptions, context: RolloutContext, folder: Path, first: bool) -> list[Server]:
    """A server a GPU of ``options.gpus``, or one on this machine's CPU; they load while the trainer does.

    Args:
        options: say where.
        context: of the policy.
        folder: for the policy's config and the servers' logs.
        first: start them; else they are only named.

    Raises:
        InputError: nothing says where, this rank trains on such a GPU, or the run has ranks on other machines.
    """
    if os.environ.get("WORLD_SIZE", "1") != os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")):
        raise InputError("vllm_server: of a run on several machines, start the servers yourself (python -m "
                         "rlx_plugins.vllm_serve --host ADDRESS …) and name them by addresses that all machines reach "
                         "(rollout.options.urls)")
    gpus: list[int | None] = [*options.gpus] or [None]
    mine = torch.device(context.device).index
    if context.device != "cpu" and (None in gpus or mine in gpus):
        why = (f"rollout.options.gpus has GPU {mine}, on which a rank trains; name others" if mine in gpus else
               "name running servers (rollout.options.urls), or the GPUs to start some on (rollout.options.gpus)")
        raise InputError(f"vllm_server: {why}")
    urls = [f"http://127.0.0.1:{options.port + i}" for i in range(len(gpus))]
    if not first:
        return [Server(url) for url in urls]
    config = copy.deepcopy(plain_model(context.policy).config)
    config.architectures = [type(plain_model(context.policy)).__name__]
    config.save_pretrained(folder)
    return [start_server(url, gpu, options, context, folder) for url, gpu in zip(urls, gpus, strict=True)]


def start_server(url: str, gpu: int | None, options: VLLMServerOptions, context: RolloutContext,
                 folder: Path) -> Server:
    """One server; where ``gpu`` is None, on the CPU.

    Raises:
        InputError: something listens there already, or will, or there is no such GPU.
    """
    port = urlsplit(url).port
    with contextlib.closing(socket.socket()) as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise InputError(f"vllm_server: something listens at {url} already; name it with rollout.options.urls, "
                             "or choose another rollout.options.port")
    claim = socket.socket(socket.AF_UNIX)  # a name of the kernel's, gone with this process; vLLM is long in listening
    try:
        claim.bind(f"\0rlx-vllm-server-{port}")
    except OSError:
        claim.close()
        raise InputError(f"vllm_server: another run starts a server at {url}; choose another "
                         "rollout.options.port") from None
    log = folder / f"server-{port}.log"
    more, memory = [], options.gpu_memory_utilization
    if memory is not None:
        more += ["--gpu-memory-utilization", str(memory)]
    if options.enforce_eager or gpu is None:
        more += ["--enforce-eager"]
    command = [sys.executable, "-m", "rlx_plugins.vllm_serve", "--model", str(folder), "--port", str(port),
               "--dtype", context.dtype, "--max-model-len", str(context.max_length), *more]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
                                   start_new_session=True,
                                   env={**environment(os.environ, gpu), PARENT: str(os.getpid())})
    return Server(url, process, log, claim)


def environment(own: Mapping[str, str], gpu: int | None) -> dict[str, str]:
    """What a server finds: no trace of a launcher, and one GPU, numbered as this process numbers those it sees.

    Raises:
        InputError: this process does not see so many.
    """
    kept = {name: value for name, value in own.items() if not name.startswith(LAUNCHER)}
    if gpu is None:
        return kept
    seen = own.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        return {**kept, "CUDA_VISIBLE_DEVICES": str(gpu)}
    names = [name for name in seen.split(",") if name]
    if not 0 <= gpu < len(names):
        raise InputError(f"vllm_server: rollout.options.gpus has GPU {gpu}, counted from 0 among those that the "
                         f"trainer sees, and CUDA_VISIBLE_DEVICES shows it {len(names)} ('{seen}'). Let it see the "
                         "servers' GPUs too: it trains on the first ones; or start the servers yourself "
                         "(rollout.options.urls)")
    return {**kept, "CUDA_VISIBLE_DEVICES": names[gpu]}
