"""Where a process stands, as each launcher says it, and what is told of processes that failed."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys

import psutil
import pytest
from torch.distributed.launcher import api

from rlx.launch import _REPORT, STARTED, Place, _pass_on, launch, place_of, report

SLURM = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2",
         "SLURM_STEP_NODELIST": "gpu[07-09,12]", "SLURM_JOB_ID": "123456"}


@pytest.mark.parametrize(("environ", "place"), [
    ({}, Place()),
    ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1",
      "MASTER_PORT": "1234"}, Place(3, 4, 1, 2, "n1", 1234)),
    ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "MASTER_ADDR": "n1"},
     Place(1, 2, 1, 2, "n1", 29500)),
    ({**SLURM, "RANK": "5", "WORLD_SIZE": "8"}, Place(5, 8, 1, 8)),
    (SLURM, Place(5, 8, 1, 4, "gpu07", 20000 + 123456 % 20000)),
    ({**SLURM, "SLURM_STEP_NODELIST": "login,gpu3", "MASTER_PORT": "77"}, Place(5, 8, 1, 4, "login", 77)),
    ({**SLURM, "SLURM_STEP_NODELIST": "rack[1-2]node[03,7].cluster,b", "MASTER_PORT": "77"},
     Place(5, 8, 1, 4, "rack1node03.cluster", 77)),
    ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1", "SLURM_STEP_NUM_TASKS": "1"}, Place()),
], ids=["none", "torchrun", "deepspeed", "by-hand", "slurm", "slurm-list", "slurm-racks", "slurm-allocation-only"])
def test_a_place_is_read_off_the_environment(environ, place):
    assert place_of(environ) == place


def test_deepspeed_finds_the_same_place():
    place = Place(5, 8, 1, 4, "gpu07", 1234)
    assert place_of(place.environment()) == place


@pytest.mark.parametrize("knows", [True, False])
def test_ranks_start_with_a_torch_that_cannot_be_told_how_long_to_wait(monkeypatch, knows):
    """As 2.11, which vLLM 0.20 brings."""
    named = {*inspect.signature(api.LaunchConfig).parameters} - {"shutdown_timeout"}
    named |= {"shutdown_timeout"} if knows else set()
    given = {}

    def config(*args, **settings):
        assert settings.keys() <= named
        given.update(settings)

    if knows:
        config.shutdown_timeout = 30
    monkeypatch.setattr(api, "LaunchConfig", config)
    monkeypatch.setattr(api, "elastic_launch", lambda config, entry: lambda *args: None)
    monkeypatch.setattr(signal, "signal", lambda number, act: None)
    monkeypatch.setenv(STARTED, "1")
    assert launch(2, None) == 0
    assert given["signals_to_handle"] == "SIGHUP,SIGQUIT"
    assert given.get("shutdown_timeout") == (10 if knows else None)


def test_a_signal_is_passed_on_to_the_ranks_that_are_still_there(monkeypatch):
    with subprocess.Popen([sys.executable, "-c", ""]) as gone, subprocess.Popen(["sleep", "60"]) as there:
        ranks = [psutil.Process(process.pid) for process in (gone, there)]
        gone.wait()
        monkeypatch.setattr(psutil.Process, "children", lambda self: ranks)
        _pass_on(signal.SIGTERM, None)
    assert there.returncode == -signal.SIGTERM


def test_an_error_that_cannot_be_handed_over_is_printed(monkeypatch):
    monkeypatch.setenv(STARTED, "1")
    monkeypatch.setenv(_REPORT, "/dev/full")
    assert not report("what happened")
