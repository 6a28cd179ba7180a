"""What a machine has, as far as it can be known before torch is loaded."""

from __future__ import annotations

import os
from pathlib import Path


def gpu_is_there() -> bool:
    """Whether torch will find one; asked of the driver, since torch is not loaded yet."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1") and Path("/dev/nvidiactl").exists()


def expanded(path: str | Path) -> Path:
    """With ``~`` and ``~user`` written out; as it is where there is no such user."""
    return Path(os.path.expanduser(path))
