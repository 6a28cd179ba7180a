"""`rlx report`: one file that shows runs, whatever their models wrote."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlx.cli import app
from rlx.looks.report import read_story

from .conftest import HOSTILE, HOSTILE_NAME, Page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBE = """<script>
const root = document.documentElement;
root.dataset.overflow = root.scrollWidth - root.clientWidth;
root.dataset.back = getComputedStyle(document.body).backgroundColor;
const which = document.getElementById("which"); which.value = "down"; which.dispatchEvent(new Event("input"));
root.dataset.shown = document.getElementById("count").textContent;
</script>"""


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_one_file_that_loads_nothing_and_escapes_what_models_wrote(written, tmp_path):
    done = report(written())
    assert done.exit_code == 0, done.output
    text = (tmp_path / "made" / "report.html").read_text(encoding="utf-8")
    page = Page(text)

    assert HOSTILE.replace("\x1b", "\x1b") in page.text, "shown as it was written"
    assert [tag for tag, _ in page.tags if tag in ("img", "link", "iframe", "base", "object")] == []
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert not [a for _, a in page.tags if "src" in a or "href" in a or any(k.startswith("on") for k in a)]
    assert "default-src 'none'" in next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert len(page.of_class("sample")) == 3
    assert [a["data-change"] for a in page.of_class("sample")] == ["up", "same", "down"]
    assert {a["data-name"] for a in page.of_class("curve")} == {
        "reward/mean", "reward/std", "eval/reward/mean", "length/mean", "kl/mean", "custom/thing",
        f"reward/{HOSTILE_NAME}/mean"}
    assert len(page.of_class("spread")) == 2
    assert "the reward has no variance" in page.text
    assert "On 3 held-out prompts the reward went from 0.500 to 0.500" in page.text
    assert "rlx 0.1.0, torch 2" in page.text


def test_several_runs_in_one_page(written, tmp_path):
    done = report(written("one"), written("two", evals=False), "--out", tmp_path / "both.html")
    assert done.exit_code == 0, done.output
    page = Page((tmp_path / "both.html").read_text(encoding="utf-8"))
    assert len(page.of_class("phases")) == 2
    assert len(page.of_class("spread")) == 4
    assert "No rewards of held-out prompts were measured before and after" in page.text
    assert "prompts of training, not the same ones, after step 1 and after step 30" in page.text


def test_names_of_runs_and_rewards_are_escaped(written, tmp_path):
    """On the command line a run may be called anything, and a reward's name is a stranger's."""
    done = report(written(HOSTILE_NAME, steps=3), written("plain", steps=3), "--out", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.text.count(HOSTILE_NAME) > 5, "shown as it is called"
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    assert sum(tag == "script" for tag, _ in page.tags) == 3


def test_what_is_no_run_is_refused(written, tmp_path):
    (tmp_path / "other").mkdir()
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "spec.yaml").write_text("algo: {name: ppo}\n")
    for folder, why in ((tmp_path / "other", "is not a run folder"), (empty, "has no metrics yet")):
        done = report(folder)
        assert (done.exit_code, why in done.stderr) == (2, True), done.stderr
    run = written()
    assert "given twice" in report(run, run).stderr


def test_a_run_that_was_killed_in_the_middle_of_a_line_is_read(written):
    run = written(steps=5)
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 6, "reward/me')
    assert [line["step"] for line in read_story(run).train] == [1, 2, 3, 4, 5]


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_the_page_in_a_browser_on_a_phone_in_the_dark(written, tmp_path):
    run = written()
    report(run)
    page = run / "report.html"
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", PROBE + "</body>"), encoding="utf-8")
    dom = _browse("--window-size=500,900", "--blink-settings=preferredColorScheme=0", "--dump-dom", page=page,
                  home=tmp_path)

    root = dict(re.findall(r'data-(\w+)="([^"]*)"', dom[: dom.index("<head")]))
    assert int(root["drawn"]) >= 8, "plots were drawn"
    assert root["overflow"] == "0", "nothing is wider than the phone"
    assert root["back"] == "rgb(15, 19, 24)", "dark"
    assert root["shown"] == "1 of 3", "the filter leaves one sample"
    assert re.search(r"<title>(.*?)</title>", dom)[1] == "made", "no script of the model's ran"
    shot = tmp_path / "shot.png"
    _browse("--window-size=1200,2400", f"--screenshot={shot}", page=page, home=tmp_path)
    assert shot.stat().st_size > 30_000


def _browse(*flags: str, page: Path, home: Path) -> str:
    done = subprocess.run([str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu",
                           f"--user-data-dir={home}/browser", "--virtual-time-budget=5000", *flags, page.as_uri()],
                          capture_output=True, text=True, timeout=120, check=True)
    return done.stdout
