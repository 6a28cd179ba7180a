"""Every block of code in the documentation is run here, or stands below with the reason why not.

A block named ``text`` is only read. Of a ``console`` block the ``$`` lines are run, and what they print is compared;
``…`` stands for anything. Commands get a small batch: what is tested is that they work, not what they reach.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

import rlx
from rlx.spec import Spec

from .blocks import Block, Reader, commands, on_path, read_blocks

ROOT = Path(__file__).parents[1]
QUICK = Path(rlx.__file__).parent / "quickstart"
PAGES = {str(page.relative_to(ROOT)): page for pattern in ("*.md", "docs/**/*.md", "examples/**/README.md")
         for page in sorted(ROOT.glob(pattern)) if "```" in page.read_text(encoding="utf-8")}
ELSEWHERE = {
    "docs/writing-a-reward.md": "tests/test_docs.py",
    "docs/writing-an-algorithm.md": "tests/test_docs.py",
    "docs/writing-a-rollout.md": "tests/test_docs.py",
    "docs/en/tutorial.md": "tests/tutorial",
    "docs/zh/tutorial.md": "tests/tutorial",
}
"""Pages whose blocks another test runs, or a folder of tests, which names them."""
NOT_RUN = {
    "python3 -m venv": ".ci/run makes environments by the README's own lines, and trains and tests in them",
    "pip install": "its extras are looked up in pyproject.toml",
    "torchrun --nproc-per-node 8": "needs eight GPUs; tests/e2e/test_ranks.py has launched ranks",
    "torchrun --nnodes 4": "needs four machines; tests/e2e/test_machines.py has two torchruns",
    "printf 'node%d slots=8": "needs four machines", "deepspeed --hostfile": "needs four machines",
    "srun --ntasks-per-node 8": "needs SLURM; tests/cli/test_launch.py has its variables",
    "deepspeed --no_local_rank": "needs eight GPUs; tests/e2e/test_ranks.py has launched ranks",
    "python -m rlx_plugins.vllm_serve": "needs vLLM; tests/vllm/test_vllm_server.py starts it",
    "rlx train … --rollout vllm_server": "needs such servers; tests/vllm/test_vllm_server.py has them",
    "rlx train --algo grpo --reward concise": "needs the package beside it; .ci/stranger trains with it",
    "python examples/full_circle.py": "tests/e2e/test_examples.py runs it, in .ci/full",
    "ruff check .": ".ci/run", "mypy sdk": ".ci/run", "lint-imports": ".ci/run", "pytest": ".ci/run",
    "mkdocs build": "tests/test_site.py",
    "python -m benchmarks speed grpo --shape half_b": "needs a GPU, vLLM and TRL",
    "python -m benchmarks scaling": "takes long; tests/test_benchmarks.py has a job of it",
    "python docs/make_": "tests/test_pages.py",
}
"""Beginnings of command lines that are not run, and why."""
NEEDS = {"reasoning_gym": ("examples/reasoning_gym_tasks.py", "tasks.jsonl")}
"""Packages that no test environment must have, and what only works with them."""
PARSED = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
RUN = {"python", "bash", "console"}
MANY = 12
"""More steps than this are made two."""


class Visitor(Reader):
    """A reader of one page after the other, who does not do again what another page said already."""

    def __init__(self, done: set[str]) -> None:
        super().__init__(arguments=smaller)
        self.done = done

    def do(self, block: Block) -> None:
        if block.language == "bash":
            for line in commands(block.code):
                if line not in self.done:
                    code, printed = self.command(line)
                    assert code == 0, f"{line}\n{printed}"
                if not {".", "/"} & set(line) and "--name" not in line:  # it reads no file, and no later one needs it
                    self.done.add(line)
        elif block.language == "console":
            self.console(block.code)
        else:
            list(self.run(block))
            found = PARSED[block.language](block.code) if block.language in PARSED else {}
            if block.language == "yaml" and set(found) <= set(Spec.model_fields):
                for name, value in found.items():
                    TypeAdapter(Spec.model_fields[name].annotation).validate_json(json.dumps(value))

    def console(self, code: str) -> None:
        for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
            line, _, expected = part.partition("\n")
            _, printed = self.command(line)
            pattern = r".*".join(re.escape(" ".join(piece.split())) for piece in expected.split("…"))
            pattern = re.sub(r"(\\ )+", r"\\s*", pattern)
            assert re.search(pattern, " ".join(printed.split()), re.DOTALL), f"{line}\n{printed}\n---\n{expected}"

    def command(self, line: str) -> tuple[int, str]:
        """Exit code and output."""
        if any(line.startswith(beginning) for beginning in NOT_RUN):
            for extra in re.findall(r"rlx\[([\w,-]+)\]", line):
                assert set(extra.split(",")) <= set(project()["optional-dependencies"])
            return 0, ""
        for package, marks in NEEDS.items():
            if importlib.util.find_spec(package) is None and any(mark in line for mark in marks):
                return 0, ""
        return super().command(line)


def smaller(arguments: list[str]) -> list[str]:
    """The same command with less to do."""
    if arguments[0] in ("sample", "compare"):
        return [*arguments, "--max-completion", "8", "--limit", "2"]
    if arguments[0] not in ("train", "check"):
        return arguments
    steps = arguments.index("--steps") + 1 if "--steps" in arguments else None
    if steps and int(arguments[steps]) > MANY:
        arguments = [*arguments[:steps], "2", *arguments[steps + 1:]]
    if "--model" not in arguments:
        return arguments
    return [*arguments, "--set", "train.batch_size=4",
            *(["--set", "rollout.max_completion=8"] if "--reward" in arguments else [])]


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A quickstart of little to do."""
    settings = {"model": {"path": str(QUICK / "rlx-tiny")},
                "data": {"path": str(QUICK / "prompts.parquet"), "max_prompt": 96, "eval": 2},
                "rollout": {"max_completion": 8}, "run": {"sample_every": None},
                "train": {"steps": 2, "batch_size": 4, "optim": {"policy": {"lr": 5e-4}}}}
    file = tmp_path_factory.mktemp("quickstart") / "quickstart.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run, for pages that look at one."""
    return rlx.train(algo="grpo", reward="polite_length", quiet=True, steps=2, data={"eval": 2},
                     run={"dir": str(tmp_path_factory.mktemp("runs")), "name": "NAME"},
                     rollout={"max_completion": 8, "group_size": 2}, train={"batch_size": 4, "minibatches": 1}).run


@pytest.fixture(scope="module")
def done():
    """Commands that were run."""
    return set()


@pytest.fixture
def reader(tmp_path, monkeypatch, small, done):
    """In a folder of its own, with what the pages take for granted: the repository, a model, a data file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("rlx.plan.QUICKSTART", small)
    for name in ("core", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "path" / "or").mkdir(parents=True)
    (tmp_path / "path" / "or" / "hub-name").symlink_to(QUICK / "rlx-tiny")
    (tmp_path / "BASE").symlink_to(QUICK / "rlx-tiny")
    shutil.copy(QUICK / "prompts.parquet", tmp_path / "prompts.parquet")
    with on_path(tmp_path):
        yield Visitor(done)


@pytest.mark.parametrize("page", [name for name in PAGES if name not in ELSEWHERE])
def test_the_blocks_of_a_page_run(page, reader, request):
    text = PAGES[page].read_text(encoding="utf-8")
    for name in ("runs/NAME", "RUN2", "RUN"):
        if name in text:
            Path("runs").mkdir(exist_ok=True)
            shutil.copytree(request.getfixturevalue("run"), name)
    for block in read_blocks(PAGES[page]):
        reader.do(block)


@pytest.mark.parametrize("page", PAGES)
def test_each_block_says_what_it_is(page):
    text = PAGES[page].read_text(encoding="utf-8")
    found = read_blocks(PAGES[page])
    assert len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)) == 2 * len(found), "a fence that nobody sees"
    assert {block.language for block in found} - RUN - set(PARSED) - {"text"} == set()


def test_what_is_run_elsewhere_is_run_there():
    for page, test in ELSEWHERE.items():
        if page in PAGES:
            files = [ROOT / test] if (ROOT / test).is_file() else (ROOT / test).glob("*.py")
            assert any(Path(page).name in file.read_text(encoding="utf-8") for file in files), page


def test_what_is_not_run_is_still_there():
    lines = [line for page in PAGES.values() for block in read_blocks(page) if block.language in ("bash", "console")
             for line in commands(block.code)]
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)] == []
    for why in NOT_RUN.values():
        for file in re.findall(r"[\w/.]+\.(?:py|toml)\b|\.ci/\w+", why):
            assert (ROOT / file).exists(), file


def strings() -> Iterator[str]:
    """Every text in the code, cut where a value is filled in, with blanks made one."""
    for folder in ("core/rlx", "plugins/rlx_plugins", "sdk/rlx_sdk"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield " ".join(node.value.split())


def test_messages_of_the_troubleshooting_page_are_in_the_code_and_their_tests_exist():
    page = ROOT / "docs/troubleshooting.md"
    said = "\n".join(strings())
    for block in read_blocks(page):
        if block.language == "text":
            for piece in block.code.split("…"):
                for part in re.split(r"'[\w\[\]]+'", " ".join(piece.split())):  # a name that was filled in
                    assert part.strip(" :'") in said, part
    sections = page.read_text(encoding="utf-8").split("```text\n")[1:]
    assert [said.split("\n")[0] for said in sections if not re.search(r"Test:\s+`tests/", said)] == []
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8"))
    assert len(tests) > 15
    for file, name in tests:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), name

