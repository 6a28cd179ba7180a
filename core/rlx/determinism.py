"""Training that gives the same bits each time it is run on the same machine, on a GPU too."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from rlx_sdk import TrainingError


@contextlib.contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """While it is entered, torch takes the same sums in the same order, or refuses; afterwards all is as it was.

    cuBLAS gets workspaces of its own, and attention is never cuDNN's, whose backward pass adds in any order.

    Raises:
        TrainingError: an operation of the model has no deterministic implementation.
    """
    if not wanted:
        yield
        return
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    flags = cudnn.deterministic, cudnn.benchmark, cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    strict, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when it is first used
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    cuda.enable_cudnn_sdp(False)
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise TrainingError(f"engine.deterministic: {str(error).partition('.')[0]}. Leave the setting out.") from error
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        cudnn.deterministic, cudnn.benchmark = flags[:2]
        cuda.enable_cudnn_sdp(flags[2])
