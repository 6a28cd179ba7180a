"""Trackers follow a run, go on in it after a resume, and never stop it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlx.registry import Registry
from rlx.rewards import DRY_COMPLETION
from rlx_sdk import Config, RewardError, TrackerPlugin, hookimpl


class Failing:
    """A tracker whose service is down."""

    calls: list[str]

    def __init__(self) -> None:
        self.calls = []

    def log(self, step, metrics):
        self.calls.append(f"log {step}")
        raise ConnectionError("the service is down")

    def samples(self, step, table, split):
        self.calls.append(f"{split} {step}")

    def state_dict(self):
        return {}

    def finish(self):
        self.calls.append("finish")


@pytest.fixture
def offered(monkeypatch):
    """Offers a tracker of the test's own as the plugin ``mine``."""
    def offer(build):
        class Package:
            @hookimpl
            def rlx_trackers(self):
                return [TrackerPlugin(name="mine", summary="", config=lambda: Config, build=build)]

        real = Registry.discover

        def discover() -> Registry:
            registry = real()
            registry.add(Package(), "test")
            return registry

        monkeypatch.setattr(Registry, "discover", discover)

    return offer


def test_a_tracker_that_fails_never_stops_the_training(train, offered, capsys):
    tracker = Failing()
    offered(lambda *_: tracker)
    result = train("ppo", trackers=[{"name": "mine"}], data={"eval": 2}, train={"steps": 2}, quiet=False)

    assert result.steps == 2
    assert tracker.calls == ["log 0", "eval 0", "chosen 0", "log 1", "train 1", "log 2", "log 2", "eval 2", "finish"]
    assert capsys.readouterr().out.count("tracker 'mine' failed: ConnectionError: the service is down") == 1


def test_a_tracker_that_cannot_start_is_left_out(train, offered, capsys):
    def build(*_):
        raise ConnectionError("no route")

    offered(build)
    assert train("sft", trackers=[{"name": "mine"}], data={"eval": 0}, train={"steps": 1}, quiet=False).steps == 1
    shown = capsys.readouterr().out
    assert "ConnectionError: no route" in shown
    assert "the training goes on without it" in shown


def test_a_state_that_no_checkpoint_can_hold_is_left_out(train, offered, capsys):
    class Odd(Failing):
        def log(self, step, metrics):
            """Nothing."""

        def samples(self, step, table, split):
            """Nothing."""

        def state_dict(self):
            return {"best": float("nan")}

    offered(lambda *_: Odd())
    result = train("sft", trackers=[{"name": "mine"}], data={"eval": 0}, train={"steps": 1}, quiet=False)
    assert "mine" not in json.loads((result.checkpoint / "state" / "trainer.json").read_text())["trackers"]
    assert "tracker 'mine' failed: ValueError" in capsys.readouterr().out


def test_a_tracker_is_finished_when_the_training_fails(train, offered):
    tracker = Failing()
    offered(lambda *_: tracker)

    def broken(samples):
        if samples[0].completion != DRY_COMPLETION:
            raise ValueError("broken")
        return [0.0] * len(samples)

    with pytest.raises(RewardError):
        train("ppo", reward=broken, trackers=[{"name": "mine"}], data={"eval": 0}, train={"steps": 1})
    assert tracker.calls == ["finish"]


def records(file: Path) -> Iterator[Any]:
    """What wandb wrote, in its log format: a header of 7 bytes, then blocks of 32 KiB with pieces of records."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def wandb_rows(run: Path) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """What wandb wrote of a run: the records of each part of it, and the lines of its history in order."""
    import wandb

    wandb.teardown()  # a run that has finished may still be written
    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.parent.name)
    parts = [list(records(file)) for file in files]
    return parts, [{(item.key or "/".join(item.nested_key)): json.loads(item.value_json)
                    for item in record.history.item}
                   for part in parts for record in part if record.WhichOneof("record_type") == "history"]


def tensorboard_events(run: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return events


def test_what_wandb_and_tensorboard_recorded_is_read_back_and_a_resume_goes_on_in_it(train):
    settings = {"trackers": [{"name": "wandb", "options": {"mode": "offline", "project": "mine"}},
                             {"name": "tensorboard"}], "data": {"eval": 4}}
    first = train("ppo", **settings, train={"steps": 2}, run={"name": "tracked"})
    again = train("ppo", **settings, train={"steps": 3}, run={"name": "tracked", "resume": "auto"})

    assert again.run == first.run
    parts, logged = wandb_rows(first.run)
    assert len(parts) == 2, "one file a part of the run"
    runs = [record.run for part in parts for record in part if record.WhichOneof("record_type") == "run"]
    assert len({run.run_id for run in runs}) == 1, "and one wandb run"
    assert {(run.project, run.display_name) for run in runs} == {("mine", "tracked")}
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["train"]["batch_size"] == 8

    assert [line["step"] for line in logged if "loss/policy" in line] == [1, 2, 3]
    lines = [json.loads(line) for line in (first.run / "metrics.jsonl").read_text().splitlines()]
    wanted = [(line["step"], line["reward/mean"]) for line in lines if "reward/mean" in line]
    assert [(line["step"], line["reward/mean"]) for line in logged if "reward/mean" in line] == wanted
    tables = {file.name.partition("_")[0]: json.loads(file.read_text()) for file in (
        first.run / "wandb").glob("*/files/media/table/samples/*.json")}
    assert tables.keys() == {"train", "eval", "chosen"}
    assert {"prompt", "completion", "reward", "advantage"} <= set(tables["train"]["columns"])
    assert len(tables["train"]["data"]) == 8

    events = tensorboard_events(first.run)
    points = events.Scalars("reward/mean")
    assert [point.step for point in points] == [step for step, _ in wanted]
    assert [point.value for point in points] == pytest.approx([value for _, value in wanted])
    for split, shown in (("train", b"completion"), ("eval", b"polite")):
        assert shown in events.Tensors(f"samples/{split}/text_summary")[0].tensor_proto.string_val[0]
