"""rlx: train language models after pretraining, from plugins.

``rlx.train(algo="ppo", reward=my_function, data="train.parquet", model="path")`` is the whole of it. Importing rlx
loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.api import train
    from rlx.run import Result

__all__ = ["Result", "__version__", "train"]


def __getattr__(name: str) -> Any:
    """Import on first use."""
    if name == "train":
        from rlx.api import train

        return train
    if name == "Result":
        from rlx.run import Result

        return Result
    if name == "__version__":
        from importlib.metadata import version

        return version("rlx")
    raise AttributeError(f"module 'rlx' has no attribute '{name}'")
