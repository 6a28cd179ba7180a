"""Help and the list of plugins answer at once, whatever is installed."""

import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HEAVY = ["torch", "transformers", "deepspeed", "numpy", "pyarrow", "rlx.spec", "rlx_sdk.config", "rlx_plugins.ppo"]
BARE = "import typer, pydantic"


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


@pytest.mark.parametrize(("arguments", "also"), [(["--help"], ["pydantic"]), ([], ["pydantic"]),
                                                 (["plugins"], ["pydantic"]), (["plugins", "--json"], ["pydantic"])])
def test_nothing_heavy_is_loaded(arguments, also):
    code = f"""
import sys
sys.argv = {["rlx", *arguments]}
from rlx.cli import main
try:
    main()
except SystemExit:
    pass
print([m for m in {HEAVY + also} if m in sys.modules], file=sys.stderr)
"""
    assert run("-c", code).stderr.strip().endswith("[]")


def cpu_seconds(*arguments):
    """User and system time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(*arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("command", ["--help", "plugins"])
def test_the_answer_costs_little_more_than_typer_and_pydantic(command):
    # By turns, so that a busy machine slows both down; the best of five is what the work itself takes.
    pairs = [(cpu_seconds("-m", "rlx", command), cpu_seconds("-c", BARE)) for _ in range(5)]
    ours, theirs = (min(times) for times in zip(*pairs, strict=True))
    assert ours < 1.5 * theirs


def test_the_module_is_the_program():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["rlx"] == "rlx.cli:main"
    called = "import sys; sys.argv = ['rlx', '--help']; from rlx.cli import main; main()"
    assert run("-m", "rlx", "--help").stdout == run("-c", called).stdout
    assert "Usage: rlx [OPTIONS] COMMAND" in run("-m", "rlx", "--help").stdout


BROKEN = ["P01_import_fails", "P01_missing_attr", "P03_unknown_hook", "P05_wrong_argument", "P02_same_name_a",
          "P02_same_name_b", "P00_good"]


def test_broken_packages_break_nothing(rlx, install):
    install(*BROKEN)
    assert rlx("--help").code == 0
    listed = rlx("plugins")
    assert listed.code == 0
    lines = {line.split()[1]: line for line in listed.out.splitlines()}
    assert lines["case_good"].split(maxsplit=4)[2:] == ["rlx-case-good", "0.1", "One for everything."]
    assert lines["broken"].startswith("broken     broken           rlx-case-import-fails: ModuleNotFoundError: No mod")
    assert "rlx-case-missing-attr: AttributeError: " in lines["missing"]
    assert "Did you mean 'rlx_rewards'?" in lines["unknown_hook"]
    assert "{'register'}" in lines["wrong_arg"]
    assert lines["ppo"].startswith("algorithm")
