"""An evaluation's own figures: mean reward by source, and pass@k."""

from __future__ import annotations

import itertools
import json

import pandas as pd
import pytest

import rlx
from rlx.checkpoint import complete_checkpoints
from rlx.looks.described import described
from rlx.looks.held_out import SOURCES, HeldOut, pass_at
from rlx.plan import resolve
from rlx.ranks import Ranks
from rlx.registry import Registry
from rlx_sdk import Sampling, SpecError


class Two(Ranks):
    """The first of two ranks, the other of which said this."""

    world = 2

    def __init__(self, theirs):
        super().__init__()
        self.theirs = iter(theirs)

    def gather(self, mine):
        return [mine, next(self.theirs)]


@pytest.mark.parametrize(("n", "right"), [(n, right) for n in range(1, 6) for right in range(n + 1)])
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(n, right):
    for k in range(1, n + 1):
        draws = list(itertools.combinations([i < right for i in range(n)], k))
        assert pass_at(k, n, right) == pytest.approx(sum(map(any, draws)) / len(draws))


def measured(rows, n=4, success=1.0, column="data_source", ranks=None):
    return HeldOut(Sampling(), n, success, column).measure(rows, ranks or Ranks())


ROWS = [(0, {"data_source": "openai/gsm8k"}, reward) for reward in (1.0, 0.0, 0.0, 0.0)] + [
    (1, {"data_source": "code"}, reward) for reward in (0.5, 1.0, 1.5, None)] + [
    (2, {"data_source": None}, reward) for reward in (0.0, 0.0, 0.0, 0.0)]


def test_rewards_by_source_and_pass_at_k():
    """The second prompt has three judged completions, so it tells nothing of k = 4."""
    found = measured(ROWS)
    assert found == pytest.approx({
        "pass@1": (1 / 4 + 2 / 3 + 0) / 3, "pass@2": (1 / 2 + 1 + 0) / 3, "pass@4": 1 / 2,
        "source/openai_gsm8k/reward/mean": 0.25, "source/code/reward/mean": 1.0,
        "source/openai_gsm8k/pass@1": 1 / 4, "source/openai_gsm8k/pass@2": 1 / 2, "source/openai_gsm8k/pass@4": 1.0,
        "source/code/pass@1": 2 / 3, "source/code/pass@2": 1.0})
    assert all(described(f"eval/{name}") for name in found)


def test_nothing_is_measured_that_was_not_asked_for():
    assert measured(ROWS, success=None, column=None) == {}
    assert set(measured(ROWS, n=3, column=None)) == {"pass@1", "pass@2", "pass@3"}


def test_many_sources_do_not_flood_the_metrics():
    rows = [(i, {"data_source": f"s{i % 50}"}, 1.0) for i in range(60)]
    found = measured(rows, success=None)
    assert len(found) == SOURCES
    assert {f"source/s{i}/reward/mean" for i in range(10)} <= set(found), "the largest ones"


def test_all_ranks_count():
    """The sources of both decide which are the largest, and sums are added before they are divided."""
    theirs = [["b"] * 3], [{"source/b/reward/mean": [3.0, 3.0]}], [{}], [{}]
    ranks = Two([theirs[0][0], ({"source/b/reward/mean": [3.0, 3.0], "source/a/reward/mean": [0.0, 1.0]}, {}, {})])
    found = measured([(0, {"data_source": "a"}, 1.0)], success=None, ranks=ranks)
    assert found == {"source/b/reward/mean": 1.0, "source/a/reward/mean": 0.5}


@pytest.fixture
def data(tmp_path):
    rows = [{"prompt": f"Say {word}.", "data_source": source} for source in ("words", "numbers")
            for word in ("one", "two", "three", "four")]
    file = tmp_path / "held_out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def train(data, tmp_path, algo, evaluation, solved=(0, 1, 2), **more):
    """Two steps; in the evaluations ``solved`` all of the source "words" is right."""
    evaluations = itertools.count()

    def sources(samples):
        if "data_source" not in samples[0].row:
            return [len(s.completion) / 100 for s in samples]
        right = next(evaluations) in solved
        return [float(right and s.row["data_source"] == "words") for s in samples]

    return rlx.train(algo=algo, reward=sources, quiet=True, steps=2, data={"eval": str(data)},
                     run={"dir": str(tmp_path / "runs"), "eval_every": 1, "sample_every": None, **more},
                     rollout={"max_completion": 4, "group_size": 2, "eval": evaluation},
                     train={"batch_size": 4, "minibatches": 1, "update_epochs": 1})


def test_a_run_measures_them_under_names_of_their_own(data, tmp_path):
    result = train(data, tmp_path, "grpo", {"group_size": 4, "success": 1.0, "temperature": 0.7}, solved=[0, 1],
                   best="eval/pass@4", save_every=1, keep=1)
    lines = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    held_out = [line for line in lines if "time/step" not in line]
    assert [line["step"] for line in held_out] == [0, 1, 2]
    for line, share in zip(held_out, (1.0, 1.0, 0.0), strict=True):
        assert line["eval/source/words/reward/mean"] == share
        assert line["eval/source/numbers/reward/mean"] == 0.0
        assert [line[f"eval/pass@{k}"] for k in (1, 2, 4)] == [share / 2] * 3
        assert line["eval/source/words/pass@4"] == share
    assert not [name for line in lines if "time/step" in line for name in line if "pass@" in name or "source/" in name]
    table = pd.read_parquet(result.run / "samples" / "eval_000001.parquet")
    assert table.groupby("row").size().tolist() == [4] * 8
    assert table["sample"].is_unique
    assert [c.name for c in complete_checkpoints(result.run / "checkpoints")] == ["global_step_1", "global_step_2"], (
        "the best and the newest")


@pytest.mark.parametrize("algo", ["grpo", "dpo"])
def test_greedy_completions_are_made_once(data, tmp_path, algo):
    result = train(data, tmp_path, algo, {"temperature": 0.0, "success": 1.0})
    table = pd.read_parquet(result.run / "samples" / "eval_000002.parquet")
    assert table.groupby("row").size().tolist() == [1] * 8
    assert result.metrics["eval/pass@1"] == 0.5


def settings(**more):
    return {"algo": {"name": "grpo"}, "rewards": [{"name": "polite_length"}], **more}


def test_settings_that_cannot_act_are_refused(data, tmp_path):
    for given, said in (
            (settings(data={"eval": 4}, rollout={"eval": {"temperature": 0.0, "group_size": 4}}),
             "rollout.eval.group_size can have no effect: greedy ones are all alike"),
            (settings(data={"eval": 0, "source": "a"}), "data.source can have no effect: there is no data.eval"),
            ({"algo": {"name": "sft"}, "data": {"eval": 4, "source": "a"}},
             "data.source can have no effect: sft learns from demonstrations")):
        with pytest.raises(SpecError) as error:
            resolve(Registry.discover(), given)
        assert said in str(error.value)
    with pytest.raises(SpecError, match=r"has no column 'data_sourc', it has prompt, data_source\. Did you mean "
                                        r"'data_source'\?"):
        rlx.train(algo="grpo", reward="polite_length", quiet=True, steps=1, run={"dir": str(tmp_path / "runs")},
                  data={"eval": str(data), "source": "data_sourc"})
    assert not (tmp_path / "runs").exists()
