"""One process of the checkpoint test: states go from every layout into every other.

    python resharding.py FOLDER

Saves the state of an engine after three steps for each layout of this many ranks, then loads every state in the folder
into every layout: what is loaded must be what was saved, bit for bit.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rlx.engine import Engine
from rlx.logs import library_log
from rlx.ranks import start_distributed
from rlx.spec import EngineSpec, OptimSpec

LAYOUTS = {"zero1": EngineSpec(), "zero2": EngineSpec(zero_stage=2), "zero3": EngineSpec(zero_stage=3),
           "zero2-offload": EngineSpec(zero_stage=2, offload="optimizer"),
           "zero3-offload": EngineSpec(zero_stage=3, offload="all")}
OPTIM = OptimSpec(lr=0.05, grad_clip=0.1, weight_decay=0.01)


class Net(torch.nn.Module):
    """Weights of odd sizes, which no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 77), torch.nn.Tanh(), torch.nn.Linear(77, 3))

    def example(self, device: torch.device) -> tuple[torch.Tensor]:
        return (torch.ones(1, 5, device=device),)

    def weights(self, gathered: Any) -> Any:
        for name, weight in self.model.named_parameters():
            with gathered(weight):
                yield name, weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(x).sum(1)
        return out


def make_engine(spec: EngineSpec, dtype: torch.dtype = torch.float32) -> Engine:
    with library_log(None):
        return Engine(Net(), OPTIM, 10, dtype, spec)


def train(engine: Engine, steps: range) -> None:
    for step in steps:
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step)).to(engine.module.model[0].weight.dtype)
        engine.backward((engine(x).float() ** 2).sum())
        engine.step(step)


def main(folder: Path) -> None:
    with library_log(None):
        ranks = start_distributed()
    for name, spec in LAYOUTS.items():
        engine = make_engine(spec)
        train(engine, range(3))
        state = dict(engine.state())
        if ranks.first:
            save_file(state, folder / f"{ranks.world}-{name}.safetensors")
    ranks.gather(None)
    for file in sorted(folder.glob("*.safetensors")):
        saved = load_file(file)
        for name, spec in LAYOUTS.items():
            engine = make_engine(spec)
            train(engine, range(7, 8))  # another state to be overwritten
            engine.load_state(saved, 3)
            loaded = dict(engine.state())
            assert loaded.keys() == saved.keys()
            for key, tensor in saved.items():
                assert torch.equal(loaded[key], tensor), f"{key} of {file.stem} in {ranks.world}-{name}"
            for key, weight in engine.policy_weights():
                assert torch.equal(weight, saved[f"weight/{key}"]), f"the working {key} in {ranks.world}-{name}"
            if file.stem == f"{ranks.world}-{name}":
                straight = make_engine(spec)
                train(straight, range(5))
                train(engine, range(3, 5))
                for (key, one), (_, other) in zip(engine.state(), straight.state(), strict=True):
                    assert torch.equal(one, other), f"{key} continued in {ranks.world}-{name}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # as rlx.launch ends: threads of torch may abort a process that is taken down in order
