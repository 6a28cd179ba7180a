"""The program in this process, a model folder, and case packages."""

import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from rlx.cli import app

CASES = Path(__file__).parents[1] / "cases"
_INSTALL = runpy.run_path(str(CASES / "plugins/install.py"))["install"]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A model folder with a context of 256 tokens."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    shutil.copytree(CASES / "models/tiny", folder)
    shutil.copytree(CASES / "tok/T00_base", folder, dirs_exist_ok=True)
    return str(folder)


@pytest.fixture
def rlx(tmp_path, monkeypatch):
    """Runs a command in a folder of its own; a traceback fails the test."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))  # of the cache

    def run(*arguments):
        result = CliRunner().invoke(app, [str(a) for a in arguments], prog_name="rlx")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.output
        return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)

    return run


@pytest.fixture
def refused(rlx):
    """Runs a command that must be refused as bad input, before anything is written; returns the message."""

    def run(*arguments):
        result = rlx(*arguments)
        assert result.code == 2, result
        assert result.out == ""
        assert list(Path().iterdir()) == []
        return result.err

    return run


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs case packages by name, for one test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield lambda *cases: [_INSTALL(case, tmp_path / "site") for case in cases]
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
