"""vLLM on a machine without a GPU, with whatever torch is there."""

from __future__ import annotations

import torch

if torch.version.cuda and not torch.cuda.is_available():  # vLLM 0.20 for CPUs waits for a GPU that torch is built for
    torch.accelerator.synchronize = lambda *_: None
