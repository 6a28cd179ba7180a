"""samples/: what the policy wrote in each step, and what was made of it."""

import pandas as pd
import pytest


def test_all_samples_of_a_run_are_read_in_one_line(run):
    table = pd.read_parquet(run / "samples")

    assert sorted(f.name for f in (run / "samples").iterdir()) == [
        "chosen_000000.parquet", "chosen_000002.parquet", "eval_000000.parquet", "eval_000003.parquet",
        *(f"step_00000{i}.parquet" for i in (1, 2, 3))]
    assert set(table) == {"step", "split", "sample", "row", "prompt", "completion", "reward", "reward/polite_length",
                          "advantage", "length", "finish_reason", "logprob_diff"}
    assert table.groupby(["split", "step"]).size().to_dict() == {
        ("chosen", 0): 3, ("chosen", 2): 3, ("eval", 0): 8, ("eval", 3): 8,
        ("train", 1): 12, ("train", 2): 12, ("train", 3): 12}


def test_each_completion_has_its_own_advantage(run):
    table = pd.read_parquet(run / "samples").query("split == 'train'")

    for _, group in table.groupby(["step", "row"]):
        better = group.reward - group.reward.mean()
        assert group.advantage.tolist() == pytest.approx((better / (group.reward.std() + 1e-4)).tolist(), abs=2e-3)
    assert table.advantage.abs().max() > 0.5
    assert (table.logprob_diff == 0).all(), "the hf backend samples from the policy itself"


def test_the_chosen_prompts_are_the_first_held_out_ones_each_time(run):
    table = pd.read_parquet(run / "samples")
    chosen, held_out = (table.query(f"split == '{split}' and step == 0") for split in ("chosen", "eval"))
    assert chosen.prompt.tolist() == held_out.prompt.drop_duplicates().head(3).tolist()
    assert chosen.completion.tolist() == held_out.groupby("row").completion.first().head(3).tolist(), "the same seeds"
