"""Trackers follow a run, go on in it after a resume, and never stop it."""

from __future__ import annotations

from rlx.registry import Registry
from rlx_sdk import Config, TrackerPlugin, hookimpl


class Failing:
    """A tracker whose service is down."""

    calls: list[str]

    def __init__(self) -> None:
        self.calls = []

    def log(self, step, metrics):
        self.calls.append(f"log {step}")
        raise ConnectionError("the service is down")

    def samples(self, step, table):
        self.calls.append(f"samples {step}")

    def state_dict(self):
        return {}

    def finish(self):
        self.calls.append("finish")


def test_a_tracker_that_fails_never_stops_the_training(train, monkeypatch):
    tracker = Failing()

    class Package:
        @hookimpl
        def rlx_trackers(self):
            return [TrackerPlugin(name="down", summary="", config=lambda: Config, build=lambda *_: tracker)]

    real = Registry.discover

    def discover() -> Registry:
        registry = real()
        registry.add(Package(), "test")
        return registry

    monkeypatch.setattr(Registry, "discover", discover)
    result = train("ppo", trackers=[{"name": "down"}], train={"steps": 2})

    assert result.steps == 2
    assert tracker.calls == ["log 0", "samples 1", "log 1", "log 2", "log 2", "finish"]


def test_wandb_offline_records_the_run_and_a_resume_goes_on_in_it(train):
    settings = {"trackers": [{"name": "wandb", "options": {"mode": "offline"}}]}
    first = train("sft", **settings, train={"steps": 2}, run={"name": "tracked"})
    again = train("sft", **settings, train={"steps": 3}, run={"name": "tracked", "resume": "auto"})

    assert again.run == first.run
    records = sorted((first.run / "wandb").glob("offline-run-*/*.wandb"))
    assert len(records) == 2, "one file a part of the run"
    assert len({r.stem.removeprefix("run-") for r in records}) == 1, "and one wandb run"
    text = b"".join(r.read_bytes() for r in records)
    assert b"loss/policy" in text
    assert b"batch_size" in text
