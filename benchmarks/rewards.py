"""Rewards: what listing many packages costs, what rules cost, and how an HTTP reward compares with bare httpx."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlx.registry import Registry
from rlx.rewards import Provider, RewardPanel, measure
from rlx.spec import RewardSpec
from rlx_sdk import RewardContext, Sample
from rlx_sdk.wire import dump_samples

PACKAGE = '''
from pydantic import Field
from rlx_sdk import Config, reward


class Options(Config):
    """Options."""

    least: int = Field(1, ge=0)
    """Characters."""


@reward("bench_{i}", config=Options)
def bench(samples, options):
    """1 for some characters."""
    return [float(len(s.completion) >= options.least) for s in samples]
'''
RULES = {"polite_length": {}, "format": {}, "exact_match": {}}
SERVER = """
import asyncio, sys
from benchmarks.rewards import slow_service
asyncio.run(slow_service(int(sys.argv[1]), float(sys.argv[2])))
"""


def listing(packages: int = 20, runs: int = 5) -> dict[str, float]:
    """CPU seconds of ``rlx plugins`` with so many packages more, and of only importing typer and pydantic."""
    with installed(packages) as env:
        command, last = [sys.executable, "-m", "rlx", "plugins"], f"bench_{packages - 1}"
        found = [cpu_seconds(command, env, last) for _ in range(runs + 1)][1:]
        bare = [cpu_seconds([sys.executable, "-c", "import typer, pydantic"], env, "") for _ in range(runs)]
    return {"packages": packages, "cpu_s": statistics.median(found), "cpu_s_best": min(found), "bare_cpu_s": min(bare)}


@contextmanager
def installed(packages: int) -> Iterator[dict[str, str]]:
    """An environment in which so many packages more are installed, with a reward each, bench_0 and so on."""
    with tempfile.TemporaryDirectory() as folder:
        for i in range(packages):
            (Path(folder) / f"rlx_bench_{i}.py").write_text(PACKAGE.replace("{i}", str(i)))
            info = Path(folder) / f"rlx_bench_{i}-0.1.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rlx-bench-{i}\nVersion: 0.1\n")
            (info / "entry_points.txt").write_text(f"[rlx]\nbench_{i} = rlx_bench_{i}:bench\n")
        yield {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))}


def cpu_seconds(command: list[str], env: dict[str, str], wanted: str) -> float:
    """Of a command, whose output must have what is wanted."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if wanted not in done.stdout:
        raise RuntimeError(f"{command} did not list {wanted}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rules(samples: int = 10_000, group: int = 8) -> dict[str, float]:
    """Seconds that three rules add for so many samples, their figures included."""
    registry = Registry.discover()
    given = [Sample("What is 2 + 2?", "<think>Two and two.</think><answer>4</answer> Thank you. " * (1 + i % 5),
                    row={"ground_truth": "4"}) for i in range(samples)]
    rows, groups = [f"row {i + 1}" for i in range(samples)], [i // group for i in range(samples)]
    providers = []
    for name, options in RULES.items():
        entry = registry.get("reward", name)
        reward = entry.call("build", entry.call("config")(**options), RewardContext())
        providers.append(Provider(name, entry.label, RewardSpec(name=name), reward))
    panel, took = RewardPanel(providers), []
    for _ in range(3):
        begin = time.perf_counter()
        measure(panel.score(given, rows, groups), groups)
        took.append(time.perf_counter() - begin)
    panel.close()
    return {"samples": samples, "rewards": len(RULES), "seconds": statistics.median(took)}


async def slow_service(port: int, delay: float) -> None:
    """Answers each request after a while, as a judge does; HTTP/1.1 with connections that stay."""
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n")
                              if line.lower().startswith(b"content-length"))
                await reader.readexactly(length)
                await asyncio.sleep(delay)
                body = b'{"scores": [0.5]}'
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port, backlog=512)
    async with server:
        await server.serve_forever()


def http(requests: int = 640, in_flight: int = 64, delay: float = 0.1, rounds: int = 3) -> dict[str, float]:
    """Requests a second of the HTTP reward and of a bare httpx loop, by turns, one sample a request."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port), str(delay)], cwd=Path(__file__).parents[1])
    url = f"http://127.0.0.1:{port}/"
    samples = [Sample("What is 2 + 2?", f"It is {i}.") for i in range(requests)]
    entry = Registry.discover().get("reward", "http")
    options = entry.call("config")(url=url, batch=1, concurrency=in_flight)
    panel = RewardPanel([Provider("http", entry.label, RewardSpec(name="http"),
                                  entry.call("build", options, RewardContext()))])
    try:
        _wait(port)
        ours, bare = [], []
        for _ in range(rounds):
            ours.append(requests / _timed(lambda: panel.score(samples, [""] * requests)))
            bare.append(requests / _timed(lambda: asyncio.run(_bare(url, samples, in_flight))))
    finally:
        panel.close()
        server.terminate()
        server.wait()
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    return {"in_flight": in_flight, "service_s": delay, "ours_per_s": statistics.median(ours),
            "bare_per_s": statistics.median(bare), "ratio": ratio}


async def _bare(url: str, samples: list[Sample], in_flight: int) -> None:
    import httpx

    limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    free = asyncio.Semaphore(in_flight)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:
        async def one(sample: Sample) -> Any:
            async with free:
                response = await client.post(url, content=dump_samples([sample]))
            return response.json()["scores"]

        await asyncio.gather(*map(one, samples))


def _timed(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _wait(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the service did not start")
