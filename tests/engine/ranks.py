"""Several processes in a test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def free_port() -> int:
    """One that nobody listens at now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def run_ranks(world: int, *arguments: str, timeout: float = 600) -> list[str]:
    """Run a Python program on each of ``world`` ranks; their outputs. All must end well, within so many seconds."""
    place = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(free_port())}
    ranks = [subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)})
             for rank in range(world)]
    outputs = [rank.communicate(timeout=timeout)[0] for rank in ranks]
    codes = [rank.returncode for rank in ranks]
    assert codes == [0] * world, f"{codes}\n" + "\n".join(outputs)
    return outputs
