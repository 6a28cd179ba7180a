from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

import rlx
from rlx.looks.samples import write_samples
from rlx.runs import RunFolder
from rlx_plugins.jsonl_tracker import JsonlTracker
from rlx_sdk import Config, TrackerContext

HOSTILE_NAME = "'\"><img src=x onerror=alert(1)> {{ 7 * 7 }} [bold]&lt;"
HOSTILE = "</script><script>document.title = 'owned'</script><img src=x onerror=alert(1)> {{ 7 * 7 }} [bold] \x1b[2J"


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short GRPO run on the bundled model, with held-out prompts."""
    return rlx.train(algo="grpo", reward="polite_length", quiet=True,
                     run={"dir": str(tmp_path_factory.mktemp("runs")), "name": "short", "sample_every": 2},
                     rollout={"max_completion": 12, "group_size": 2}, data={"eval": 4}, steps=3,
                     train={"batch_size": 6, "minibatches": 1, "update_epochs": 1}).run


@pytest.fixture
def written(tmp_path):
    """Writes the folder of a run that never ran, with hostile texts; returns it."""

    def write(name: str = "made", steps: int = 30, evals: bool = True) -> Path:
        folder = RunFolder(tmp_path / name)
        folder.make()
        tracker = JsonlTracker(Config(), TrackerContext(name, folder.path, {}))
        (folder.path / "spec.yaml").write_text(
            f"# rlx 0.1.0\n# torch 2\nalgo: {{name: ppo}}\nnote: {json.dumps(HOSTILE)}\n")
        for step in range(1, steps + 1):
            tracker.log(step, {"reward/mean": step / steps, "reward/std": 0.0, "length/mean": 20.0,
                               "kl/mean": 0.1 * step, "custom/thing": float("nan"),
                               f"reward/{HOSTILE_NAME}/mean": 1.0, f"time/{HOSTILE_NAME}": 1.0,
                               "time/rollout": 1.0, "time/update": 2.0, "time/step": 3.0})
            write_samples(folder.samples, step, [line(step * k / steps) for k in range(4)], "train")
        for step in (0, steps) if evals else ():
            tracker.log(step, {"eval/reward/mean": step / steps})
            write_samples(folder.samples, step, [line((step > 0) * (1 - k) + 0.5, k) for k in range(3)], "eval")
        return folder.path

    return write


def line(reward: float, number: int = 0) -> dict[str, object]:
    return {"sample": number, "row": number, "prompt": f"{HOSTILE} {number}", "completion": HOSTILE, "reward": reward,
            "reward/mine": reward, "advantage": None, "length": 5, "finish_reason": "stop", "logprob_diff": 0.0}


class Page(HTMLParser):
    """The elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = [*self._inside, tag] if tag in ("script", "style") else self._inside

    def handle_endtag(self, tag):
        self._inside = self._inside[:-1] if tag in ("script", "style") else self._inside

    def handle_data(self, data):
        self.text += "" if self._inside else data

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.tags if name in (attrs.get("class") or "").split()]
