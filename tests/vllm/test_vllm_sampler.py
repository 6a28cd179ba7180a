"""Generators on a CPU that count what is drawn, without an engine."""

from __future__ import annotations

import torch

from rlx_plugins.vllm_sampler import OFFSET, Draw


def generator(seed: int) -> torch.Generator:
    made = torch.Generator()
    made.manual_seed(seed)
    return made


def test_a_request_that_waits_a_while_goes_on_where_it_was_and_those_that_ended_are_forgotten():
    draw, logits, waits = Draw(None), torch.randn(1, 9), generator(0)
    draw(logits, {0: waits}, None, None)
    for seed in range(1, 200):  # each ends after its first token
        draw(logits, {0: generator(seed)}, None, None)
    assert len(draw._counted) < 100
    rows = {0: waits}
    draw(logits, rows, None, None)
    assert rows[0].get_offset() == 2 * OFFSET
