"""For given data the update and every metric are the same for any micro-batch, rank count, ZeRO stage and offload."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rlx.registry import Registry

from .invariance import EVERY_SETTING, GATE, SETTINGS, SOME_SETTINGS
from .ranks import run_ranks

WORKER = Path(__file__).with_name("invariance.py")


@pytest.fixture(scope="session")
def extent(request: pytest.FixtureRequest) -> str:
    """``full`` for every setting of every algorithm."""
    return "full" if request.config.option.markexpr == "full" else "gate"


@pytest.fixture(scope="session")
def results(extent: str, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What one rank and two ranks wrote."""
    folders = {world: tmp_path_factory.mktemp(f"ranks{world}") for world in (1, 2)}
    for world, folder in folders.items():
        run_ranks(world, str(WORKER), str(folder), "float32", extent)
    return folders


def baseline(setting: str) -> str:
    return "lora-zero1-whole" if setting.startswith("lora") else "zero1-whole"


def load(folder: Path, setting: str) -> tuple[dict, list[dict[str, float]]]:
    return load_file(folder / f"{setting}.safetensors"), json.loads((folder / f"{setting}.json").read_text())


@pytest.mark.parametrize("setting", [s if s in GATE else pytest.param(s, marks=pytest.mark.full) for s in SETTINGS])
@pytest.mark.parametrize("world", [1, 2])
def test_updates_and_metrics_are_the_same(results, extent, world, setting):
    cases = [folder for folder in results[world].iterdir() if (folder / f"{setting}.json").exists()]
    algorithms = {entry.name for entry in Registry.discover().entries("algorithm")}
    assert {c.name.partition("-")[0] for c in cases} == (
        algorithms if extent == "full" or setting in SOME_SETTINGS[world] else set(EVERY_SETTING))
    for case in cases:
        expected, expected_metrics = load(results[1] / case.name, baseline(setting))
        found, metrics = load(case, setting)
        assert found.keys() == expected.keys()
        size = math.sqrt(sum(float(x.double().norm()) ** 2 for x in expected.values()))
        off = math.sqrt(sum(float((found[name] - x).double().norm()) ** 2 for name, x in expected.items()))
        assert size > 0.1, "something must move"
        assert off <= 1e-4 * size, case.name
        assert len(metrics) == 3
        for one, other in zip(metrics, expected_metrics, strict=True):
            assert one == pytest.approx(other, rel=1e-4, abs=1e-5), case.name


def test_clipping_acts_and_every_role_moves(results):
    for case in results[1].glob("*-*"):
        moved, metrics = load(case, "zero1-whole")
        norms = [value for step in metrics for name, value in step.items() if name.startswith("grad_norm/")]
        assert max(norms) > 0.05, "the clipping of `invariance.py`"
        for role in {name.partition("/")[0] for name in moved}:
            assert any(change.abs().max() > 0 for name, change in moved.items() if name.startswith(role))
