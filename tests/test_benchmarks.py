"""Rlx's half of the comparisons still runs; the other half needs what is no dependency."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def from_the_checkout(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))


@pytest.mark.full
def test_a_step_beside_trl(tmp_path):
    from benchmarks import peers

    for side in ("rows", "rlx"):
        peers.main("dpo", side, "1", "4", str(tmp_path), str(tmp_path / f"{side}.json"))
    rows, found = (json.loads((tmp_path / f"{side}.json").read_text()) for side in ("rows", "rlx"))
    assert rows["pairs"] == 4
    assert found["loss"] == [pytest.approx(math.log(2), abs=1e-5)]
    assert found["seconds_a_step"] > 0
    assert found["peak_mib"] > found["grew_mib"] > 0


@pytest.mark.full
def test_a_file_of_each_layout_is_prepared(tmp_path):
    from benchmarks import data

    for layout in data.LAYOUTS:
        data.write(tmp_path / f"{layout}.jsonl", layout, 3)
        assert data.prepare(layout, str(tmp_path / f"{layout}.jsonl"), str(tmp_path))["rows"] == 3
