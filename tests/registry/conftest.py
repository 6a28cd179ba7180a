"""Case packages, installed for one test."""

import runpy
import sys
from pathlib import Path

import pytest

_INSTALL = runpy.run_path(str(Path(__file__).parents[1] / "cases/plugins/install.py"))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path, gone with its modules after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def install(site):
    """Installs case packages by name; returns their distributions' names."""
    return lambda *cases: [_INSTALL["install"](case, site) for case in cases]


@pytest.fixture
def publish(site):
    """Publishes a package made of one module's text."""

    def make(module: str, text: str, target: str = "") -> None:
        (site / f"{module}.py").write_text(text)
        _INSTALL["write_metadata"](site, module.replace("_", "-"), "0.1", {module: target or module})

    return make
