"""What a run shows: a live table on a terminal, plain lines with the same facts anywhere else."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

import rlx
from rlx.view import View
from rlx_plugins.console_tracker import CUT, ConsoleTracker, distribution, sparkline
from rlx_sdk import Config, TrackerContext

from .conftest import line

METRICS = {"reward/mean": 0.5, "length/mean": 12.0, "kl/mean": 0.25, "loss/policy": 0.125, "memory/peak_gb": 71.5,
           "speed/generated_tokens_per_s": 1234.0, "time/rollout": 1.0, "time/update/policy": 1.25,
           "time/update/critic": 0.75, "time/update": 2.0, "time/step": 3.0, "reward/std": 0.375}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def tracker(stream, **of_the_run):
    """What shows a run, and what it shares the terminal with."""
    view = View(stream)
    return ConsoleTracker(Config(), TrackerContext("run", Path(), {}, terminal=view.terminal, **of_the_run)), view


@pytest.fixture(params=[io.StringIO, Terminal])
def stream(request, monkeypatch):
    for name, value in (("COLUMNS", "120"), ("LINES", "50"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    return request.param()


def test_the_same_facts_on_a_terminal_and_in_a_pipe(stream):
    console, view = tracker(stream, steps=4)
    console.samples(0, [line(0.5)], "chosen")
    console.log(1, METRICS)
    console.samples(1, [line(9.0)], "train")
    console.log(2, METRICS | {"reward/mean": 0.75})
    console.samples(2, [line(1.5)], "chosen")
    view.warn("something\x1b[2J")
    view.note("something else\x1b[2J")
    console.finish()
    shown = stream.getvalue()
    for fact in ("step 2", "0.750", "12.0", "0.250", "0.1250", "71.5", "1,234", "0.375",
                 "rollout 1.00s, update 2.00s (policy 1.25s, critic 0.75s)",
                 "after step 0", "after step 2", "reward 0.50", "reward 1.50", "5 tokens", "0.500 ▁█ 0.750", "left",
                 "warning: something"):
        assert fact in shown, fact
    assert "9.00" not in shown, "a step's own samples are in the folder"
    assert "\x1b[2J" not in shown, "a model does not steer the terminal"
    assert "[bold]" in shown, "nor is what it wrote taken for markup"


def test_long_samples_are_cut():
    stream = io.StringIO()
    console, _ = tracker(stream)
    console.samples(0, [line(0.0) | {"completion": "x" * 2000}], "chosen")
    console.samples(1, [line(0.0) | {"completion": "y" * 2000}], "chosen")
    assert max(map(len, stream.getvalue().splitlines())) < CUT + 80


def test_a_resumed_run_shows_the_first_completions_of_all():
    """What it needs of them is in the checkpoint, as JSON, and not as long as they are."""
    first, _ = tracker(io.StringIO(), steps=3)
    first.samples(0, [line(0.0) | {"completion": "the very first"}], "chosen")
    first.log(0, {"eval/reward/mean": 0.5})
    first.samples(0, [line(0.5, row) | {"prompt": "p" * 5000} for row in range(8)], "eval")
    first.log(1, {"reward/mean": 0.25, "time/step": 1.0})
    state = json.dumps(first.state_dict())
    assert len(state) < 4 * 5000

    stream = io.StringIO()
    console, _ = tracker(stream, steps=3, resumed=1, state=json.loads(state))
    console.log(2, METRICS)
    console.samples(2, [line(1.0) | {"completion": "now"}], "chosen")
    assert "after step 0 [reward 0.00, 5 tokens]: the very first" in stream.getvalue()
    assert "reward/mean 0.250 ▁█ 0.500" in stream.getvalue()
    console.log(3, {"eval/reward/mean": 1.0, "eval/kl/mean": -0.0001, "eval/pass@1": 0.75,
                    "eval/source/a/pass@1": 0.625})
    console.samples(3, [line(1.0 + row / 16, row) for row in range(8)], "eval")
    assert "kl/mean 0.000" in stream.getvalue(), "no minus before nothing"
    assert "reward/mean 1.000, pass@1 0.750, source/a/pass@1 0.625" in stream.getvalue()
    assert "  before [reward 0.50, 5 tokens]" in stream.getvalue(), "lines, no table"
    assert stream.getvalue().count("  after [") == 3
    assert "┃" not in stream.getvalue()
    assert "On 8 held-out prompts the reward went from 0.500 to 1.219: +0.719 a prompt" in stream.getvalue()


@pytest.mark.parametrize("split", ["chosen", "eval"])
def test_of_several_completions_a_prompt_one_is_shown(stream, split):
    console, _ = tracker(stream, steps=1)
    for step in (0, 1):
        console.samples(step, [line(step / 2 + row / 100 + i / 10, row) | {"prompt": f"prompt {row}"}
                               for row in range(4) for i in range(3)], split)
    shown = stream.getvalue()
    assert [shown.count(f"prompt {row}") for row in range(4)] == [1, 1, 1, 0]
    assert [fact for fact in ("0.00", "0.01", "0.02", "0.50", "0.51", "0.52") if f"reward {fact}" not in shown] == []


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    assert sparkline([0.0, 1.0, 0.5]) == "0.000 ▁█▅ 0.500"
    assert sparkline([2.0, 2.0]) == "2.000 ▁▁ 2.000"
    assert sparkline([math.nan]) == ""
    assert len(sparkline(list(range(1000))).split()[1]) == 48


def test_the_distribution_of_rewards_is_shown_with_an_evaluation():
    stream = io.StringIO()
    tracker(stream)[0].samples(0, [line(0.5), line(0.0), line(0.5), line(None)], "eval")
    assert "rewards of held-out prompts: 0 x 1, 0.5 x 2\n" in stream.getvalue()
    assert distribution([i / 100 for i in range(101)]) == (
        "lowest 0, a quarter up to 0.25, half up to 0.5, three quarters up to 0.75, highest 1")


def test_a_run_in_a_pipe_warns_once_and_shows_the_chosen_prompts(tmp_path, capsys):
    def flat(samples):
        return [1.0] * len(samples)

    rlx.train(algo="grpo", reward=flat, steps=5, run={"dir": str(tmp_path), "sample_every": 2}, data={"eval": 0},
              rollout={"max_completion": 4, "group_size": 2},
              train={"batch_size": 2, "minibatches": 1, "update_epochs": 1})
    shown = capsys.readouterr().out
    assert shown.count("warning: the reward has no variance") == 1
    assert shown.count("warning: most prompts are dead") == 1
    assert shown.count("after step 4 [reward 1.00, ") == 3
    assert "\x1b" not in shown


def test_a_notebook_shows_what_the_stream_gets_and_nothing_of_a_silent_view(monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    stream = io.StringIO()
    view = View(stream)
    view.note("one line")
    view.silent().note("another")
    assert stream.getvalue() == "one line\n"
    assert not view.terminal.is_jupyter
