"""Faults are made for real: signals, full disks, processes that hang."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..e2e.conftest import train

__all__ = ["train"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A file system of so many MiB; called again it is made larger."""
    place = tmp_path / "disk"
    place.mkdir()

    def mounted(size: int) -> Path:
        how = ["-o", f"remount,size={size}m"] if place.is_mount() else ["-t", "tmpfs", "-o", f"size={size}m", "tmpfs"]
        if subprocess.run(["mount", *how, str(place)], capture_output=True, check=False).returncode:
            pytest.skip("a small file system cannot be mounted here")
        return place

    yield mounted
    if place.is_mount():
        subprocess.run(["umount", "-l", str(place)], check=True)
