"""What the processes of a machine share, and what they must not."""

from __future__ import annotations

import socket

import pytest
import torch

from rlx.ranks import Ranks, _divide
from rlx_sdk import SpecError


class Told(Ranks):
    """A rank that hears what the others are said to say."""

    others: tuple[tuple[str, set[int], str | None], ...] = ()

    def gather(self, value):
        return [value, *self.others]


@pytest.fixture
def threads(monkeypatch):
    """The number that is set."""
    found: list[int] = []
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    return found


@pytest.mark.parametrize(("others", "number"), [
    ([set(range(8))], 4), ([set(range(8))] * 7, 1), ([set(range(8))] * 20, 1), ([set(range(8, 16))] * 7, 8),
    ([{7, 8}, {9}], 4)], ids=["all-see-all", "one-each", "more-than-cores", "bound-by-srun", "in-part"])
def test_cores_are_divided_among_those_that_share_them(threads, others, number):
    ranks = Told(0, 1 + len(others), 0, 1 + len(others))
    Told.others = tuple((socket.gethostname(), cores, None) for cores in others)
    _divide(ranks, None)
    assert threads == [number]


def test_other_machines_share_nothing(threads):
    Told.others = (("elsewhere", set(range(8)), "gpu-0"),)
    _divide(Told(0, 2, 0, 1), "gpu-0")
    assert threads == [8]


def test_two_processes_on_one_gpu_are_refused(threads):
    Told.others = ((socket.gethostname(), set(range(8)), "gpu-0"),)
    _divide(Told(0, 2, 0, 2), "gpu-1")
    with pytest.raises(SpecError, match=r"several processes of .* have the same GPU \(gpu-0\): give each its own"):
        _divide(Told(0, 2, 0, 2), "gpu-0")
