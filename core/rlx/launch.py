"""Several processes: found where a launcher made them, or started here. Imports no torch before it starts any."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

STARTED = "RLX_STARTED_BY_RLX"
"""Set in the processes that `launch` starts: they hand their error to it instead of printing it."""
_REPORT = "TORCHELASTIC_ERROR_FILE"
_LOST_A_PEER = ("Connection closed by peer", "Connection reset by peer", "NCCL", "Broken pipe", "Socket Timeout")


class Place(NamedTuple):
    """Where this process stands among those that a launcher started, and where they meet."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    address: str = "127.0.0.1"
    port: int = 29500

    def environment(self) -> dict[str, str]:
        """The same as the variables that torch and DeepSpeed read."""
        return {"RANK": str(self.rank), "WORLD_SIZE": str(self.world), "LOCAL_RANK": str(self.local_rank),
                "LOCAL_WORLD_SIZE": str(self.local_world), "MASTER_ADDR": self.address,
                "MASTER_PORT": str(self.port)} if self.world > 1 else {"LOCAL_RANK": str(self.local_rank)}


def place_of(environ: Mapping[str, str]) -> Place:
    """What torchrun, the deepspeed launcher or SLURM's srun say of this process; without them it is alone.

    A SLURM allocation alone does not count: only a step of several tasks has started several processes.
    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        world = int(environ["WORLD_SIZE"])
        return Place(int(environ["RANK"]), world, int(environ.get("LOCAL_RANK") or environ.get("SLURM_LOCALID") or 0),
                     int(environ.get("LOCAL_WORLD_SIZE") or environ.get("LOCAL_SIZE") or world),
                     environ.get("MASTER_ADDR", Place().address), int(environ.get("MASTER_PORT", Place().port)))
    if int(environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        world, nodes = int(environ["SLURM_STEP_NUM_TASKS"]), int(environ.get("SLURM_STEP_NUM_NODES", 1))
        return Place(int(environ["SLURM_PROCID"]), world, int(environ["SLURM_LOCALID"]), -(-world // nodes),
                     environ.get("MASTER_ADDR") or _first_host(environ.get("SLURM_STEP_NODELIST", "127.0.0.1")),
                     int(environ.get("MASTER_PORT") or 20000 + _step(environ) % 20000))
    return Place()


def _step(environ: Mapping[str, str]) -> int:
    """A number for each step of each SLURM job."""
    return int(environ.get("SLURM_JOB_ID", 0)) + 7919 * int(environ.get("SLURM_STEP_ID", 0))


def _first_host(nodes: str) -> str:
    """Of a SLURM list of nodes such as ``gpu[07-09,12].cluster,login1``."""
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", re.match(r"(?:[^\[,]|\[[^\]]*\])+", nodes)[0])  # type: ignore[index]


def launch(processes: int, plan: Any) -> int:
    """Run this very command once a GPU (without any: once a share of the cores); the exit code of the whole.

    One that fails ends all; what is printed of it is its own error, not what the others then see.

    Raises:
        InputError: there are fewer GPUs.
    """
    import torch
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if 0 < (gpus := torch.cuda.device_count()) < processes:
        from rlx.check import check_plan
        from rlx.problems import Problems
        from rlx_sdk import SpecError

        found = Problems(SpecError([f"--gpus {processes}: this machine has {gpus}"]))
        found.of(lambda: check_plan(plan, ranks=processes))
        found.end()
    for name in ("torch.distributed.elastic", "torch.distributed.launcher"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ[STARTED] = "1"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _pass_on)
    with tempfile.TemporaryDirectory(prefix="rlx-") as folder:
        logs = DefaultLogsSpecs(folder, redirects={rank: Std.ALL for rank in range(1, processes)})
        newer: dict[str, Any] = {"shutdown_timeout": 10} if hasattr(LaunchConfig, "shutdown_timeout") else {}
        config = LaunchConfig(1, 1, processes, logs, "rlx", rdzv_backend="c10d", rdzv_endpoint="localhost:0",
                              # At SIGTERM and SIGINT torch would end the ranks; 2.11 cannot be told how long to wait.
                              max_restarts=0, local_addr="localhost", signals_to_handle="SIGHUP,SIGQUIT", **newer)
        try:
            # As in this process, files of the working folder are not modules unless they were before.
            safe = () if sys.path[0] in ("", os.getcwd()) else ("-P",)
            elastic_launch(config, sys.executable)("-u", *safe, "-m", "rlx", *sys.argv[1:])
        except ChildFailedError as error:
            return _tell(error.failures, folder)
        except SignalException as error:
            return 128 + int(error.sigval)
        finally:
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[?25h")  # rank 0 may have been stopped while the cursor was hidden
    return 0


def _pass_on(number: int, frame: Any) -> None:
    """A signal to the ranks, which are in sessions of their own: they finish their step and save, and this waits."""
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            child.send_signal(number)


def _last_words(folder: str, rank: int) -> str:
    """The end of what a rank wrote to its standard error: crashes below Python speak only there."""
    logs = sorted(Path(folder).rglob(f"{rank}/stderr.log"))
    return logs[-1].read_text(encoding="utf-8", errors="replace")[-2000:].strip() if logs else ""


def _tell(failures: Mapping[int, Any], folder: str) -> int:
    """Print the error of the process that failed first, and only that."""
    rank, first = min(failures.items(), key=lambda item: item[1].timestamp)
    data = first.error_file_data.get("message") if isinstance(first.error_file_data, dict) else None
    message = data.get("message", "") if isinstance(data, dict) else ""
    if not message and first.exitcode < 0:
        message = f"it was killed by {signal.Signals(-first.exitcode).name}"
        message += " (out of memory? the system log tells)" if -first.exitcode == signal.SIGKILL else ""
    where, words = f"rank {rank}: " if rank else "", _last_words(folder, rank)
    if not message or first.exitcode < 0:
        message = "\n".join(filter(None, (message or f"ended with exit code {first.exitcode}", words)))
    print(f"{'' if first.exitcode > 128 else 'error: '}{where}{message}", file=sys.stderr)
    return int(first.exitcode) if first.exitcode > 0 else 1


def report(message: str) -> bool:
    """Hand the error of this process to the `launch` that started it, if one did.

    One that only lost a peer waits a moment, so that the peer's error is the first.
    """
    if place_of(os.environ).world > 1 and any(sign in message for sign in _LOST_A_PEER):
        time.sleep(5)
    if STARTED not in os.environ or _REPORT not in os.environ:
        return False
    said = {"message": message, "extraInfo": {"timestamp": str(int(time.time())), "py_callstack": ""}}
    with contextlib.suppress(OSError):  # a full disk: then it is printed
        Path(os.environ[_REPORT]).write_text(json.dumps({"message": said}), encoding="utf-8")
        return True
    return False


def die(message: str, who: str = "") -> NoReturn:
    """End this process at once, from any thread, with an error that is handed over or printed."""
    try:
        if not report(message):
            print(f"error: {who}{message}", file=sys.__stderr__, flush=True)
    finally:  # whatever becomes of the text
        os._exit(1)


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Hand bugs over too, and end a process that has peers at once."""
    alone = place_of(os.environ).world == 1
    try:
        yield
        code: Any = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str) and not alone:
            if not report(code):
                print(code, file=sys.stderr)
            code = 1
    except Exception:
        if alone:
            raise
        if not report(traceback.format_exc()):
            traceback.print_exc()
        code = 1
    if alone:
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)  # threads of torch may abort a process that is taken down in order
