"""``rlx new-reward``: what it writes works as it is, and is found once it is installed."""

import importlib
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

INSTALL = runpy.run_path(str(Path(__file__).parents[1] / "cases/plugins/install.py"))["write_metadata"]


@pytest.fixture
def published(monkeypatch):
    """Puts a written package on the path, as an installer would."""
    def put(folder):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        monkeypatch.syspath_prepend(folder)
        INSTALL(folder, project["name"], project["version"], project["entry-points"]["rlx"])
        importlib.invalidate_caches()

    return put


def test_the_package_passes_its_test_and_is_found(rlx, published):
    done = rlx("new-reward", "short-answer")
    assert done.out.startswith("wrote rlx-short-answer\nnext: cd rlx-short-answer && pip install -e '.[test]'")
    folder = Path("rlx-short-answer").absolute()
    files = {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}
    assert files == {"pyproject.toml", "README.md", "rlx_short_answer/__init__.py", "tests/test_short_answer.py",
                     ".github/workflows/test.yml"}
    assert not any("{{" in (folder / f).read_text() for f in files - {".github/workflows/test.yml"})
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"], check=True,
                   cwd=folder, env={"PYTHONPATH": str(folder), "PATH": ""})
    published(folder)
    checked = rlx("check", "--algo", "grpo", "--reward", "short-answer=2", "--steps", "1")
    assert (checked.code, "short-answer [1.0, 1.0, 1.0, 1.0]" in checked.out) == (0, True)
    assert "max_words: integer (>= 1) = 40  Most words for the full score." in rlx("show", "short-answer").out
    [spec] = re.findall(r"```yaml\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    Path("spec.yaml").write_text(spec)
    checked = rlx("check", "spec.yaml", "--steps", "1")
    assert (checked.code, "short-answer [" in checked.out) == (0, True), checked.err
    refused = rlx("check", "--algo", "grpo", "--reward", "short-answer:20", "--steps", "1")
    assert "no reward of that name that takes an argument" in refused.err


@pytest.mark.parametrize(("name", "said"), [
    ("Short", "'Short' cannot be the name of a reward"), ("a/b", "cannot be the name"), ("_x", "cannot be the name"),
    ("format", "a reward 'format' is installed already, by rlx; choose another name"),
])
def test_names_that_cannot_be(rlx, name, said):
    refused = rlx("new-reward", name)
    assert (refused.code, said in refused.err) == (2, True)
    assert list(Path().iterdir()) == []


def test_nothing_is_overwritten(rlx):
    assert rlx("new-reward", "short").code == 0
    assert "'rlx-short' is there already" in rlx("new-reward", "short").err
