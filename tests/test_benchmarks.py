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


@pytest.mark.full
def test_growth_with_rows_completions_and_plugins(tmp_path):
    from benchmarks import growth
    from benchmarks.peers import QUICK
    from benchmarks.speed import write_model

    from rlx.ranks import start_distributed

    ranks, model = start_distributed(), write_model(tmp_path / "model", "llama_6m", str(QUICK / "rlx-tiny"))
    few, more = growth.rows([70, 80], model, "llama_6m", tmp_path, ranks)
    assert few["tokens"] < more["tokens"]
    assert all(one[key] > 0 for one in (few, more) for key in ("prepare_us", "cached_us", "start_s", "step_us"))
    short, long = growth.completions([4, 16], model, "llama_6m", tmp_path, ranks)
    assert 0 < short["train_attention_flops"] < long["train_attention_flops"] < 1
    assert 0 < short["decode_attention"] < 1
    assert 0 < short["train_attention"] < 1
    assert all(one[key] > 0 for one in (short, long) for key in ("rollout_us", "prepare_us", "update_us", "rest_us"))
    assert [one["packages"] for one in growth.plugins([3], 1)] == [1, 3]


def test_the_page_on_scaling_shows_what_is_calculated():
    from benchmarks.paper import SHAPES, table

    rows = ["| " + " | ".join(str(value) for value in one.values()) + " |" for one in table(SHAPES["7B"])]
    page = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if line.startswith(("| sft | ", "| grpo | ", "| ppo | "))
             and line.count("|") == 9]
    assert len(shown) > 8
    assert [line for line in shown if line not in rows] == [], "run: python -m benchmarks paper"


def test_seconds_on_paper_follow_what_is_split_and_sent():
    from benchmarks.paper import SHAPES, Work, seconds

    from rlx.spec import EngineSpec

    shape, work = SHAPES["7B"], Work("ppo")
    one, two = (seconds(shape, work, EngineSpec(zero_stage=1), ranks, 1e30) for ranks in (1, 2))
    assert one["update"] / two["update"] == pytest.approx(2)  # over an endless link nothing is lost
    assert 1 < one["rollout"] / two["rollout"] < 1.5
    sent = [seconds(shape, work, EngineSpec(zero_stage=stage), 2, 1e9)["update"] - two["update"] for stage in (1, 2, 3)]
    passes = work.tokens // (2 * work.micro_tokens)
    bytes_sent = [6 * shape.weights, 2 * shape.weights * (passes + 1), 6 * shape.weights * passes]
    assert sent == pytest.approx([2 * each / 2 / 1e9 for each in bytes_sent], rel=1e-6)  # policy and critic, half of it


def test_runs_are_compared_with_the_first_of_their_job():
    from benchmarks.scaling import compare, table

    def run(ranks, stage=1, loss=0.5, speed=100.0, **more):
        return {"algo": "sft", "zero_stage": stage, "ranks": ranks, "noise": False, "batch": 8,
                "memory_gib": 2.0 / ranks, "median": {"time/step": 1.0, "speed/trained_tokens_per_s": speed},
                "steps": [{"step": 1, "loss/policy": loss, "reward/mean": None}], **more}

    first, second, other, failed = compare([run(1), run(2, loss=0.75, speed=190.0), run(1, stage=3),
                                            {**run(2, stage=3), "failed": "many words\nout of memory"}])
    assert "apart" not in first
    assert (second["update"], second["loss_apart"], second["memory_gib"]) == (1.9, 0.25, 1.0)
    assert second["most_apart"] == ("loss/policy", 0.25)
    assert "update" not in other
    assert failed["failed"] == ["out of memory"]
    assert "apart" not in compare([run(1), run(2, batch=16)])[1]
    assert table([first, second, other, failed]).splitlines()[2].split()[3:] == [
        "1.000", "1.90", "x", "1.00", "2.5e-01", "2.5e-01", "(loss/policy)"]


@pytest.mark.full
def test_two_ranks_beside_one(tmp_path):
    from benchmarks.peers import QUICK
    from benchmarks.scaling import compare, measure, model_of
    from benchmarks.speed import Job

    job = Job("", "", 4, 8, 2, 1)
    runs = list(measure(job, model_of("", str(QUICK / "rlx-tiny"), tmp_path), ["grpo"], [3], [1, 2], False, False))
    one, two = compare(runs)
    assert one["memory_gib"] > 0
    assert two["update"] > 0
    assert two["rollout"] > 0
    assert two["most_apart"][1] < 1e-3, two["apart"]
    assert list(measure(job, "", ["grpo"], [3], [1, 2], False, False, runs)) == []
