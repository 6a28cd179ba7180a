"""Every metric that a run logs is documented."""

import json

import pytest

import rlx
from rlx.looks.described import described
from rlx.registry import Registry

SMALL = {"quiet": True, "steps": 1, "train": {"batch_size": 4, "minibatches": 1, "update_epochs": 1},
         "rollout": {"max_completion": 6}}


def names(run):
    return {name for line in (run / "metrics.jsonl").read_text().splitlines() for name in json.loads(line)} - {"step"}


def test_every_metric_of_a_run_is_documented(run):
    assert [name for name in names(run) if described(name) is None] == []


@pytest.mark.full
@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize("algo", sorted(e.name for e in Registry.discover().entries("algorithm")))
def test_every_metric_of_every_algorithm_is_documented(algo, judged, tmp_path):
    settings = {**SMALL, "run": {"dir": str(tmp_path)}, "algo": algo}
    needs = Registry.discover().get("algorithm", algo)
    asked = needs.call("needs", needs.call("config")(), judged)
    if asked.rewards != judged:
        pytest.skip("there is no such way")
    if asked.data != "rollouts":
        del settings["rollout"]
    elif asked.rewards:
        settings["reward"] = "polite_length"
    if algo == "kto":
        data = tmp_path / "labelled.jsonl"
        data.write_text("".join(json.dumps({"prompt": f"p{i}", "completion": "ok", "label": i % 2 == 0}) + "\n"
                                for i in range(8)))
        settings["data"] = str(data)
    if algo == "distill":
        settings["model"] = {"reference": {"path": str(rlx.registry.__file__).replace("registry.py",
                                                                                    "quickstart/rlx-tiny")}}
    assert [name for name in names(rlx.train(**settings).run) if described(name) is None] == []
