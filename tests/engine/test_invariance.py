"""For given data the update and every metric are the same for any micro-batch, rank count, ZeRO stage and offload.

The gate runs some of it. The rest takes seconds a setting: ``pytest -n 0 -m full tests/engine/test_invariance.py``,
or a part, such as ``-k "[2-kto-"`` (two ranks, one algorithm) or ``-k zero3-packed``.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rlx.registry import Registry

from .invariance import SETTINGS, cases, fits, in_gate
from .ranks import run_ranks

WORKER = Path(__file__).with_name("invariance.py")
REGISTRY = Registry.discover()
COMBINATIONS = [pytest.param(world, case, setting, marks=[] if in_gate(world, case, setting) else pytest.mark.full)
                for world in (1, 2) for case in cases(REGISTRY) for setting in SETTINGS
                if fits(REGISTRY, case, setting)]


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What one rank and two ranks wrote of the tests that were chosen, and of what these are compared with."""
    chosen = [item.callspec.params for item in request.session.items if "setting" in getattr(
        getattr(item, "callspec", None), "params", {}) and item.path.name == Path(__file__).name]
    wanted = [(p["world"], f"{p['case']}/{p['setting']}") for p in chosen]
    wanted += [(1, f"{p['case']}/{baseline(p['setting'])}") for p in chosen]
    if any(item.name == "test_clipping_acts_and_every_role_moves" for item in request.session.items):
        wanted += [(1, f"{case}/zero1-whole") for case in cases(REGISTRY)]
    folders = {world: tmp_path_factory.mktemp(f"ranks{world}") for world in (1, 2)}
    for world, folder in folders.items():
        if names := dict.fromkeys(name for w, name in wanted if w == world):
            run_ranks(world, str(WORKER), str(folder), "float32", ",".join(names), timeout=600 + 60 * len(names))
    return folders


def baseline(setting: str) -> str:
    return "lora-zero1-whole" if setting.startswith("lora") else "zero1-whole"


def load(folder: Path, setting: str) -> tuple[dict, list[dict[str, float]]]:
    return load_file(folder / f"{setting}.safetensors"), json.loads((folder / f"{setting}.json").read_text())


@pytest.mark.parametrize(("world", "case", "setting"), COMBINATIONS)
def test_updates_and_metrics_are_the_same(results, world, case, setting):
    expected, expected_metrics = load(results[1] / case, baseline(setting))
    found, metrics = load(results[world] / case, setting)
    assert found.keys() == expected.keys()
    size = math.sqrt(sum(float(x.double().norm()) ** 2 for x in expected.values()))
    off = math.sqrt(sum(float((found[name] - x).double().norm()) ** 2 for name, x in expected.items()))
    assert size > 0.1, "something must move"
    assert off <= 1e-4 * size
    assert len(metrics) == 3
    for one, other in zip(metrics, expected_metrics, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


def test_clipping_acts_and_every_role_moves(results):
    found = list(results[1].glob("*/zero1-whole.json"))
    assert {file.parent.name for file in found} == set(cases(REGISTRY))
    for file in found:
        moved, metrics = load(file.parent, "zero1-whole")
        norms = [value for step in metrics for name, value in step.items() if name.startswith("grad_norm/")]
        assert max(norms) > 0.05, "the clipping of `invariance.py`"
        for role in {name.partition("/")[0] for name in moved}:
            assert any(change.abs().max() > 0 for name, change in moved.items() if name.startswith(role))
