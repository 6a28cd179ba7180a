"""A checkpoint goes from any rank count, ZeRO stage and offload to any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ranks import run_ranks
from .resharding import LAYOUTS

WORKER = str(Path(__file__).with_name("resharding.py"))


@pytest.mark.parametrize("worlds", [(1, 2, 1), pytest.param((1, 2, 3, 1), marks=pytest.mark.full)])
def test_states_cross_rank_counts_stages_and_offload_bit_for_bit(tmp_path, worlds):
    for world in worlds:
        run_ranks(world, WORKER, str(tmp_path))
    assert len(list(tmp_path.glob("*.safetensors"))) == len(set(worlds)) * len(LAYOUTS)
