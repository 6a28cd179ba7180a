"""What a run shows: a live table on a terminal, plain lines with the same facts anywhere else."""

from __future__ import annotations

import io
import math

import pytest

import rlx
from rlx.runs import RunFolder
from rlx.view import CUT, View, distribution, sparkline

from .conftest import line

METRICS = {"reward/mean": 0.5, "length/mean": 12.0, "kl/mean": 0.25, "loss/policy": 0.125, "memory/peak_gb": 71.5,
           "speed/generated_tokens_per_s": 1234.0, "time/rollout": 1.0, "time/update/policy": 1.25,
           "time/update/critic": 0.75, "time/update": 2.0, "time/step": 3.0, "reward/std": 0.375}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[io.StringIO, Terminal])
def stream(request, monkeypatch):
    for name, value in (("COLUMNS", "120"), ("LINES", "50"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    return request.param()


def test_the_same_facts_on_a_terminal_and_in_a_pipe(stream):
    view = View(stream)
    with view.live(0, 4):
        view.chosen(0, [line(0.5)])
        view.step(1, METRICS)
        view.step(2, METRICS | {"reward/mean": 0.75})
        view.chosen(2, [line(1.5)])
        view.warn("something")
    shown = stream.getvalue()
    for fact in ("step 2", "0.750", "12.0", "0.250", "0.1250", "71.5", "1,234", "0.375",
                 "rollout 1.00s, update 2.00s (policy 1.25s, critic 0.75s)",
                 "after step 0", "after step 2", "reward 0.50", "reward 1.50", "5 tokens", "0.500 ▁█ 0.750", "left",
                 "warning: something"):
        assert fact in shown, fact
    assert "\x1b[2J" not in shown, "a model does not steer the terminal"
    assert "[bold]" in shown, "nor is what it wrote taken for markup"


def test_long_samples_are_cut():
    stream = io.StringIO()
    view = View(stream)
    view.chosen(0, [line(0.0) | {"completion": "x" * 2000}])
    view.chosen(1, [line(0.0) | {"completion": "y" * 2000}])
    assert max(map(len, stream.getvalue().splitlines())) < CUT + 80


def test_a_resumed_run_shows_the_first_completions_of_all(tmp_path):
    stream = io.StringIO()
    view, folder = View(stream), RunFolder(tmp_path)
    folder.make()
    folder.log(1, {"reward/mean": 0.25, "time/step": 1.0})
    folder.write_samples(0, [line(0.0) | {"completion": "the very first"}], "chosen")
    folder.write_samples(0, [line(0.5, row) for row in range(8)], "eval")
    view.resumed(folder)
    view.step(2, METRICS)
    view.chosen(2, [line(1.0) | {"completion": "now"}])
    assert "after step 0 [reward 0.00, 5 tokens]: the very first" in stream.getvalue()
    assert "reward/mean 0.250 ▁█ 0.500" in stream.getvalue()
    with view.live(1, 3):
        view.evaluated(3, {"eval/reward/mean": 1.0, "eval/pass@1": 0.75, "eval/source/a/pass@1": 0.625},
                       [line(1.0 + row / 16, row) for row in range(8)])
    assert "reward/mean 1.000, pass@1 0.750, source/a/pass@1 0.625" in stream.getvalue()
    assert "On 8 held-out prompts the reward went from 0.500 to 1.219: +0.719 a prompt" in stream.getvalue()


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    assert sparkline([0.0, 1.0, 0.5]) == "0.000 ▁█▅ 0.500"
    assert sparkline([2.0, 2.0]) == "2.000 ▁▁ 2.000"
    assert sparkline([math.nan]) == ""
    assert len(sparkline(list(range(1000))).split()[1]) == 48


def test_the_distribution_of_rewards_is_shown_with_an_evaluation():
    stream = io.StringIO()
    View(stream).evaluated(0, {"eval/reward/mean": 0.5}, [line(0.5), line(0.0), line(0.5), line(None)])
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
    View(stream).note("one line")
    assert stream.getvalue() == "one line\n"
    assert not View(stream).silent()._console.is_jupyter
