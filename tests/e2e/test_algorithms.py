"""Every registered algorithm trains on the bundled model, and what is particular to some of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import rlx
from rlx.registry import Registry
from rlx_sdk import RewardError, Sample, Score, SpecError

from .conftest import metrics_of

QUICK = Path(rlx.__file__).parent / "quickstart"
TINY = str(QUICK / "rlx-tiny")
REGISTRY = Registry.discover()
TINY_JOB = {"train": {"steps": 2, "batch_size": 4}, "rollout": {"max_completion": 20}, "quiet": True}


def needs(name, rewards):
    entry = REGISTRY.get("algorithm", name)
    return entry.call("needs", entry.call("config")(), rewards)


@pytest.fixture
def labelled(tmp_path):
    """The bundled pairs as single answers, good and bad."""
    rows = pd.read_parquet(QUICK / "prompts.parquet").head(24)
    file = tmp_path / "labelled.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{row.instruction} {row.input}", "completion": row[side],
                                        "label": side == "chosen"}, ensure_ascii=False) + "\n"
                            for _, row in rows.iterrows() for side in ("chosen", "rejected")))
    return str(file)


@pytest.mark.parametrize("name", [entry.name for entry in REGISTRY.entries("algorithm")])
def test_it_trains(name, tmp_path, labelled):
    rewards = needs(name, True).rewards
    asked = needs(name, rewards)
    job = dict(TINY_JOB, run={"dir": str(tmp_path)}, reward="polite_length" if rewards else None)
    if asked.data != "rollouts":
        del job["rollout"]
    elif asked.min_group > 1:
        job["rollout"] = {**job["rollout"], "group_size": 3}
    if asked.data == "labelled" or asked.teacher:
        job |= {"model": TINY, "data": labelled}
    if asked.teacher:
        job["model"] = {"path": TINY, "reference": {"path": TINY}}
    result = rlx.train(algo=name, **job)

    lines = [line for line in metrics_of(result.run) if any(k.startswith("loss/") for k in line)]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert any((result.checkpoint / folder / "config.json").is_file() for folder in ("actor", "reward"))


@pytest.mark.full
def test_grpo_learns_and_a_group_is_one_prompt(tmp_path):
    def short(samples: list[Sample]) -> list[float]:
        return [-len(s.completion) / 50 for s in samples]

    result = rlx.train(algo="grpo", reward=short, quiet=True, run={"dir": str(tmp_path)},
                       rollout={"max_completion": 24, "group_size": 4},
                       train={"steps": 12, "batch_size": 8, "optim": {"policy": {"lr": 1e-3}}})
    rewards = [line["reward/mean"] for line in metrics_of(result.run) if "reward/mean" in line]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2
    table = pd.read_parquet(result.run / "samples" / "step_000001.parquet")
    assert table.groupby("row").size().tolist() == [4] * 8


def test_dapo_samples_past_dead_groups_and_resumes_in_the_same_place(tmp_path):
    def rare(samples: list[Sample]) -> list[float]:
        return [float(len(s.completion) % 4 == 0) for s in samples]

    job = {"algo": "dapo", "reward": rare, "quiet": True, "rollout": {"max_completion": 8, "group_size": 2},
           "run": {"dir": str(tmp_path), "name": "run", "save_every": 1, "keep": 9},
           "train": {"steps": 3, "batch_size": 6}}
    result = rlx.train(**job)
    lines = [line for line in metrics_of(result.run) if "groups/kept" in line]
    assert all(line["groups/dead"] == 0 for line in lines)
    assert any(1 < line["groups/rounds"] <= 4 for line in lines)
    assert all(line["groups/kept"] == 6 or line["groups/rounds"] == 4 for line in lines)
    state = json.loads((result.checkpoint / "state" / "trainer.json").read_text())
    sampled = sum(len(pd.read_parquet(f)) for f in (result.run / "samples").glob("step_*.parquet"))
    assert state["source"]["position"] > 18
    assert sampled > 0

    with pytest.raises(SpecError, match=r"train.epochs: dapo samples as many prompts as it needs"):
        rlx.train(**{**job, "train": {"epochs": 1}})


@pytest.mark.full  # the full circle has one in the gate
def test_a_reward_model_tells_good_from_bad_and_is_an_hf_classifier(tmp_path):
    result = rlx.train(
        algo="reward_model", quiet=True, run={"dir": str(tmp_path)}, model=TINY,
        data={"path": str(QUICK / "prompts.parquet"), "eval": 32},
        train={"steps": 24, "batch_size": 32, "optim": {"reward": {"lr": 1e-3, "warmup_steps": 2}}})
    evals = [line for line in metrics_of(result.run) if "eval/rewards/accuracy" in line]
    assert evals[0]["eval/rewards/accuracy"] == 0, "a new head says 0 to everything; a tie is not a win"
    assert evals[-1]["eval/rewards/accuracy"] > 0.9

    folder = result.checkpoint / "reward"
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    row = pd.read_parquet(QUICK / "prompts.parquet").iloc[-1]
    scores = []
    for side in ("chosen", "rejected"):
        chat = [{"role": "user", "content": f"{row.instruction}\n{row.input}".strip()},
                {"role": "assistant", "content": row[side]}]
        ids = tokenizer.apply_chat_template(chat, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            scores.append(float(model(**ids).logits))
    assert scores[0] > scores[1]


def test_a_critic_starts_from_a_reward_model(tmp_path):
    torch.manual_seed(0)
    scorer = AutoModelForSequenceClassification.from_pretrained(TINY, num_labels=1, pad_token_id=0)
    torch.nn.init.normal_(scorer.score.weight)
    scorer.save_pretrained(tmp_path / "scorer")
    values, lr = {}, 1e-6
    for name, critic in (("scorer", {"init": str(tmp_path / "scorer")}), ("new", {})):
        result = rlx.train(algo="ppo", reward="polite_length", quiet=True, run={"dir": str(tmp_path)},
                           model={"path": TINY, "critic": critic}, data=str(QUICK / "prompts.parquet"),
                           rollout={"max_completion": 8},
                           train={"steps": 1, "batch_size": 4, "optim": {"critic": {"lr": lr}}})
        values[name] = metrics_of(result.run)[-1]["critic/value"]
        saved = load_file(result.checkpoint / "critic" / "model.safetensors")
        begun = scorer.state_dict() if critic else {"score.weight": torch.zeros_like(scorer.score.weight)}
        for tensor, weight in begun.items():  # one step of Adam moves a weight by the learning rate at most
            torch.testing.assert_close(saved[tensor].float(), weight, atol=1.1 * lr, rtol=1e-6)
    assert values["new"] == 0
    assert abs(values["scorer"]) > 0.1


def steps(samples: list[Sample]) -> list[Score]:
    return [Score(0.0, spans=[(len(s.completion) // 2, 1.0), (len(s.completion), -0.5)]) for s in samples]


def test_rewards_of_steps_reach_the_tokens_of_those_who_read_them(tmp_path):
    result = rlx.train(algo="ppo", reward=steps, run={"dir": str(tmp_path)}, **TINY_JOB)
    last = [line for line in metrics_of(result.run) if "critic/return" in line][-1]
    assert last["critic/return"] != 0
    with pytest.raises(RewardError, match=r"and this algorithm learns from whole completions: leave them out, or"):
        rlx.train(algo="grpo", reward=steps, run={"dir": str(tmp_path)}, **TINY_JOB)


def test_distillation_needs_a_teacher():
    with pytest.raises(SpecError, match=r"distill learns from another model: name it with model.reference.path"):
        rlx.train(algo="distill", **TINY_JOB)
