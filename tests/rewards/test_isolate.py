"""A reward in a process of its own: what it does there, and what its death costs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlx.isolate import IsolatedReward
from rlx.rewards import Provider, RewardPanel
from rlx.spec import RewardSpec
from rlx_sdk import RewardContext, RewardError, Sample

from .conftest import ROWS

FILE = '''
import os, time
from datetime import date


def score(samples):
    out = []
    for s in samples:
        print("noise on stdout")
        if s.completion == "bb":
            os._exit(3)
        if s.completion == "ff":
            raise ValueError("no ff")
        out.append(float(isinstance(s.row["day"], date)) + s.row["bytes"][0])
    return out


def hangs(samples):
    for s in samples:
        while s.completion == "bb":
            time.sleep(0.1)
    return [1.0] * len(samples)
'''


@pytest.fixture
def isolated(tmp_path):
    """Makes a panel of one isolated reward."""
    made = []

    def make(name, **settings):
        spec = RewardSpec(name=name, isolate="process", **settings)
        made.append(RewardPanel([Provider("r", "'r' (case 1)", spec, IsolatedReward(
            name, {}, RewardContext(), spec.timeout))]))
        return made[-1]

    yield make
    for panel in made:
        panel.close()


def test_rewards_that_kill_their_process_cost_their_sample(isolated, samples, tmp_path, capfd):
    from dataclasses import replace
    from datetime import date

    (tmp_path / "deadly.py").write_text(FILE)
    panel = isolated(f"{tmp_path}/deadly.py:score", on_error="skip")
    rows = [replace(s, row={"day": date(2026, 1, 2), "bytes": b"\x01"}) for s in samples]
    judged = panel.score(rows, ROWS)
    assert judged.by_provider["r"] == [2.0, None, 2.0, 2.0, 2.0, None, 2.0, 2.0]
    assert judged.failed == 2
    assert "noise" not in capfd.readouterr().out


def test_a_stuck_reward_is_killed_and_the_sample_named(isolated, samples, tmp_path, capfd):
    (tmp_path / "deadly.py").write_text(FILE)
    panel = isolated(f"{tmp_path}/deadly.py:hangs", timeout=2.0)
    with pytest.raises(RewardError, match=r"sample 2 of 2 \(data row 12, completion 'bb'\): TimeoutError: no answer "
                                          r"within 2 s; its process was killed \(its stack is in the log\)"):
        panel.score(samples[:2], ROWS)
    assert ' in hangs' in capfd.readouterr().err
    assert panel.score(samples[2:], range(6)).rewards == [1.0] * 6


def test_what_cannot_be_built_there_is_said(isolated):
    with pytest.raises(RewardError, match="could not be built in its process: PluginError: reward 'nowhere_x:f'"):
        isolated("nowhere_x:f")


def test_it_finds_what_this_process_finds(isolated, samples, tmp_path, monkeypatch):
    (tmp_path / "only_here_rules.py").write_text("def one(samples):\n    return [1.0] * len(samples)\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert isolated("only_here_rules:one").score(samples, range(8)).rewards == [1.0] * 8
    assert isolated("polite_length").score([Sample("p", "Thank you")], [1]).rewards == [0.5]


def test_its_process_is_no_rank_of_the_run(isolated, samples, tmp_path, monkeypatch):
    """Else a reward that asks accelerate for a device would join the trainer's processes."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    (tmp_path / "asks.py").write_text(
        "import os\n\ndef alone(samples):\n"
        "    return [float(not {'RANK', 'WORLD_SIZE', 'MASTER_ADDR'} & os.environ.keys()) for _ in samples]\n")
    assert isolated(f"{tmp_path}/asks.py:alone").score(samples, range(8)).rewards == [1.0] * 8


def test_its_process_ends_with_a_run_that_is_killed_even_when_it_is_stuck(tmp_path):
    (tmp_path / "deadly.py").write_text("import os, time\ndef hangs(samples):\n    open('pid', "
                                        "'w').write(str(os.getpid()))\n    time.sleep(600)\n")
    code = ("from rlx.isolate import IsolatedReward; from rlx_sdk import RewardContext, Sample; IsolatedReward("
            "'deadly.py:hangs', {}, RewardContext(), 600).score([Sample('p', 'c')])")
    run = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    for _ in range(300):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
        time.sleep(0.1)
    child = int((tmp_path / "pid").read_text())
    run.send_signal(signal.SIGKILL)
    run.wait()
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":  # nobody waits for it here
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the reward's process is still there")
