"""Sampling from a file: only what is asked for is prepared."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rlx
from rlx import view
from rlx.cli import app
from rlx.data import open_rows
from rlx.sample import first_rows

TINY = str(Path(rlx.__file__).parent / "quickstart/rlx-tiny")


def test_the_first_rows_of_several_files(tmp_path):
    for name, n in (("a", 2), ("b", 3), ("c", 1)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"prompt": "{name}{i}"}}\n' for i in range(n)))
    rows = open_rows(str(tmp_path), tmp_path / "cache")
    for n in range(1, 8):
        found = first_rows(rows, n)
        assert [found[i]["prompt"] for i in range(len(found))] == ["a0", "a1", "b0", "b1", "b2", "c0"][:n]
    assert first_rows(rows, 4).place(3) == "b.jsonl, row 2"
    assert len({rows.fingerprint, *(first_rows(rows, n).fingerprint for n in range(1, 4))}) == 4


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_large_file_is_read_with_progress_and_only_its_first_rows_are_prepared(tmp_path, monkeypatch, flags):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(view, "MOMENT", 0)
    monkeypatch.setattr(view, "EVERY", 0)
    (tmp_path / "d.jsonl").write_text('{"prompt": "Say hello."}\n' * 1200 + '{"prompt": null}\n')
    found = CliRunner().invoke(app, ["sample", TINY, "--prompts", str(tmp_path / "d.jsonl"), "--limit", "2",
                                     "--max-completion", "4", *flags])
    assert found.exit_code == 0, found.output
    assert ("d.jsonl: 1,024 rows" in found.stderr) is not bool(flags)
    assert "preparing" not in found.stderr
    assert len(json.loads(found.stdout) if flags else found.stdout.split("> ")[1:]) == 2


@pytest.mark.parametrize("command", [["sample"], ["compare", TINY]])
def test_columns_that_are_not_known_are_not_to_be_mapped_by_a_flag_that_is_not_there(tmp_path, command):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "Why?"}\n')
    done = CliRunner().invoke(app, [*map(str, command), str(TINY), "--prompts", str(file)])
    assert done.exit_code == 2
    assert done.stderr.endswith("it has the columns question. Rename one of them to prompt.\n")


def test_a_page_without_its_package_says_so_and_nothing_of_a_spec(monkeypatch, run):
    monkeypatch.setattr("rlx.looks.page.is_installed", lambda module: module != "plotly")
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == 2
    assert done.stderr == ("error: pages need the package 'plotly', which is not installed: pip install "
                           "'rlx[report]'\n")
