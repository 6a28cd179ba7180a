"""Start a vLLM server for `--rollout vllm_server`: ``python -m rlx_plugins.vllm_serve --model FOLDER --port 8000 …``.

Takes vLLM's own options and adds what rlx needs. Only the folder's config is read: the weights come from the trainer.
vLLM's development mode is on, which lets anybody who reaches the port call its functions: bind it to localhost, as is
the default, or to a private network.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import signal
import sys
from typing import Any

ENTRIES = ("vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server")
"""Of vLLM 0.32, and before."""
PARENT = "RLX_SERVER_OF"
"""Set to the process that started the server: with it the server ends."""
NEEDED = ["--served-model-name", "rlx", "--load-format", "dummy", "--skip-tokenizer-init",
          "--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"]
EXTENSION = ["--worker-extension-cls", "rlx_plugins.vllm_worker.RlxWorker",
             "--middleware", "rlx_plugins.vllm_serve.Forget"]
FORGET = "/rlx_forget"
"""Empties the prefix cache."""


class Forget:
    """Answers `FORGET` with whether the cache is empty now; vLLM 0.20's own call for it does not say."""

    def __init__(self, app: Any) -> None:
        """Stand before vLLM's server."""
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request, as ASGI has it."""
        if scope.get("path") != FORGET:
            await self._app(scope, receive, send)
            return
        forgotten = await scope["app"].state.engine_client.reset_prefix_cache()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps({"forgotten": forgotten is True}).encode()})


def main() -> None:
    """Become the server."""
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    if PARENT in os.environ:
        _end_with(int(os.environ.pop(PARENT)))
    entry = next(name for name in ENTRIES if _is_there(name))
    sys.argv = [entry, "--host", "127.0.0.1", *sys.argv[1:], *NEEDED, *EXTENSION]
    runpy.run_module(entry, run_name="__main__", alter_sys=True)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _end_with(parent: int) -> None:
    """Linux tells a process when its parent ends."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the trainer has ended")


if __name__ == "__main__":
    main()
