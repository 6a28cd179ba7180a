"""``rlx data``: what a file is, how it was understood, and what is wrong with it."""

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlx import view
from rlx.cli import app
from rlx.data.look import lines, look_at
from rlx_sdk import DataError, SpecError

DATA = Path(__file__).parents[1] / "cases/data"


@pytest.fixture(scope="module")
def look(model_folder, tmp_path_factory):
    """Looks at a file with the base tokenizer."""
    folder, cache = str(model_folder("T00_base")), str(tmp_path_factory.mktemp("cache"))
    return lambda file, kind=None, row=1, **data: look_at({"path": str(DATA / file), "cache": cache, **data}, folder,
                                                          kind, row)


def test_a_row_is_shown_with_its_trained_tokens(look):
    report = look("D15_sharegpt_system.jsonl", row=3)
    assert (report["kind"], report["row"], report["usable"]) == ("demonstrations", "row 3", 3)
    assert report["rendered"].endswith("Capital of Kenya?<|im_end|>\n<|im_start|>assistant\n⟦Nairobi<|im_end|>⟧")
    assert report["understood"] == "conversations makes the prompt; conversations ends with the answer"
    assert "row 3   (trained: ⟦…⟧)" in "\n".join(lines(report))


def test_earlier_turns_that_are_trained_are_marked_too(look, tmp_path):
    chat = [{"role": role, "content": text} for role, text in (
        ("user", "1+1"), ("assistant", "2"), ("user", "2+2"), ("assistant", "4"))]
    (tmp_path / "d.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    shown = look(tmp_path / "d.jsonl", "demonstrations")["rendered"]
    assert "assistant\n⟦2<|im_end|>⟧\n<|im_start|>user\n2+2" in shown
    assert shown.endswith("assistant\n⟦4<|im_end|>⟧")


def test_pairs_lengths_and_duplicates(look, tmp_path):
    row = {"prompt": "Why?", "chosen": "So.", "rejected": "No"}
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (row, row, {**row, "chosen": "Because."})))
    report = look(tmp_path / "d.jsonl")
    assert report["could be"] == ["pairs", "rollouts"]
    assert report["duplicates"] == {"prompts": 2, "rows": 1}
    assert report["lengths"]["chosen"] == {"1": 4, "50": 4, "90": 9, "99": 9, "100": 9}
    assert report["rendered"] == "Why?\nchosen: ⟦So.<|im_end|>⟧\nrejected: ⟦No<|im_end|>⟧"


@pytest.mark.parametrize(("file", "data", "problem"), [
    ("D20_zero_tokens.jsonl", {}, "3 rows cannot be used: row 2: column 'prompt' is empty; row 3: "),
    ("D22_chosen_equals_rejected.jsonl", {}, "2 rows have equal answers on both sides"),
    ("D29_long_row.jsonl", {"max_prompt": 256}, "1 row too long: row 2: the prompt has 42,000 tokens, the limit"),
    ("base_prompts.jsonl", {"columns": {"truth": "answr"}}, "data.columns names answr, which no row has"),
])
def test_problems_are_listed_not_raised(look, file, data, problem):
    assert any(found.startswith(problem) for found in look(file, **data)["problems"])


@pytest.mark.parametrize(("file", "kind", "data", "error", "said"), [
    ("D37_wrong_layout.jsonl", None, {}, DataError, "needs a prompt column"),
    ("base_prompts.jsonl", "pairs", {}, DataError, "chosen and rejected"),
    ("base_prompts.jsonl", "paris", {}, SpecError, "--kind paris: it is one of pairs, labelled, "),
    ("base_prompts.jsonl", None, {"max_promt": 1}, SpecError, "Did you mean 'max_prompt'?"),
    ("base_prompts.jsonl", None, {"path": {str(DATA / "base_prompts.jsonl"): math.inf}}, SpecError, "finite number"),
])
def test_what_cannot_be_looked_at_is_refused(look, file, kind, data, error, said):
    with pytest.raises(error, match=said.replace("?", r"\?")):
        look(file, kind, **data)


def test_a_row_that_is_not_there_is_refused(look):
    with pytest.raises(SpecError, match=r"--row 9: '.*base_prompts\.jsonl' has 8 rows"):
        look("base_prompts.jsonl", row=9)


def test_what_rewards_also_see(look, tmp_path):
    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": "p", "scores": [1], "completion": "c", "system": "s"}))
    understood = look(tmp_path / "d.jsonl", "rollouts")["understood"]
    assert understood == "prompt makes the prompt; rewards also see scores, completion, system"


def test_progress_is_shown_beside_the_report_and_not_to_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(view, "MOMENT", 0)
    monkeypatch.setattr(view, "EVERY", 0)
    (tmp_path / "d.jsonl").write_text('{"prompt": "p"}\n' * 1500)
    for flags, shown in ((["--json"], False), ([], True)):
        (tmp_path / "d.jsonl").write_text(f'{{"prompt": "{shown}"}}\n' * 1500)
        found = CliRunner().invoke(app, ["data", str(tmp_path / "d.jsonl"), *flags])
        lines = [line for line in found.stderr.replace(str(tmp_path), "").splitlines() if "ing /" in line]
        assert lines == ["reading /d.jsonl: 0 rows", "reading /d.jsonl: 1,024 rows",
                         "preparing /d.jsonl: 0 of 1,500 rows", "preparing /d.jsonl: 1,024 of 1,500 rows"] * shown
        assert "ing /" not in found.stdout.replace(str(tmp_path), "")


def test_a_terminal_has_one_line_that_moves(monkeypatch):
    monkeypatch.setattr(view, "MOMENT", 0)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    assert list(view.View(screen).progress(range(3), "reading [x]", 9000)) == [0, 1, 2]
    assert "reading [x]: 2,048 of 9,000 rows" in screen.getvalue()


def test_what_takes_a_moment_only_is_not_shown():
    screen = io.StringIO()
    assert list(view.View(screen).progress(range(3), "reading")) == [0, 1, 2]
    assert screen.getvalue() == ""


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    arguments = ["data", str(DATA / "D37_wrong_layout.jsonl"), "--set", "data.columns.prompt=Question", "--set",
                 "data.columns.completion=Answer"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0
    assert "understood  as demonstrations: prompt makes the prompt; completion is the answer" in shown.stdout
    assert "problem     none found" in shown.stdout
    report = json.loads(CliRunner().invoke(app, [*arguments, "--json", "--kind", "rollouts"]).stdout)
    assert (report["rows"], report["kind"], report["row"]) == (2, "rollouts", "row 1")
    assert CliRunner().invoke(app, [*arguments, "--kind", "x"]).exit_code == 2


def test_any_text_can_be_printed_under_a_plain_locale():
    """D27: whatever the file holds, and whatever the terminal says of itself."""
    plain = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "rlx", "data", str(DATA / "D27_unicode.jsonl")],
                          capture_output=True, check=False, env={**os.environ, **plain})
    assert done.returncode == 0, done.stderr
    assert b"9 rows, 9 usable" in done.stdout
    assert done.stderr == b""
