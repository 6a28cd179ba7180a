"""Fenced blocks of a page, and a reader who does what they say in the current folder, as a person would."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from typer.testing import CliRunner

from rlx.cli import app

FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')
BOX = set("─━│┃┏┓└┘┡┩├┤┼")
INSTALLS = ("python3 -m venv", "pip install", "mkdir")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``section`` is the anchor it stands behind."""

    language: str
    code: str
    section: str

    @property
    def file(self) -> str | None:
        """The file it is, if its first line says so; None of what is to run."""
        named = re.match(r"# ([\w./-]+\.\w+)\n", self.code)
        return named[1] if named else None

    @property
    def installs(self) -> bool:
        """Whether it sets up the reader's machine."""
        return self.language == "bash" and self.code.startswith(INSTALLS)

    def bare(self) -> str:
        """The code without what may be said in another language: comments and docstrings."""
        if self.language != "python":
            return self.code if self.language == "text" else re.sub(r"\s*#.*", "", self.code)
        tree = ast.parse(self.code)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.Module) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return f"{self.file}\n{ast.unparse(tree)}"


def read_blocks(page: Path) -> list[Block]:
    """All of a page, in order."""
    text = page.read_text(encoding="utf-8")
    anchors = [(m.start(), m[1]) for m in ANCHOR.finditer(text)]
    return [Block(m[1].strip(), m[2], next((name for at, name in reversed(anchors) if at < m.start()), ""))
            for m in FENCE.finditer(text)]


def commands(code: str) -> Iterator[str]:
    """The lines of a shell block, without comments."""
    lines = code.replace("\\\n", " ").splitlines()
    yield from filter(None, (re.sub(r"(^|\s+)# .*", "", line).strip() for line in lines))


@contextlib.contextmanager
def on_path(folder: Path) -> Iterator[None]:
    """Modules of a folder can be imported, and are forgotten after."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@dataclass
class Reader:
    """Does what blocks say in the current folder, and remembers nothing but files from one to the next.

    Attributes:
        instead: text in the place of other text.
        arguments: what rlx is given in the place of a command's words.
    """

    instead: Mapping[str, str] = field(default_factory=dict)
    arguments: Callable[[list[str]], list[str]] = list

    def write(self, block: Block) -> None:
        """The file that a block is; one in a folder lies in the repository."""
        if block.file and "/" not in block.file:
            Path(block.file).write_text(block.code, encoding="utf-8")

    def run(self, block: Block) -> Iterator[tuple[int, str]]:
        """Exit code and output of each of its commands, or of its Python code; nothing of a file, which is written."""
        self.write(block)
        if block.language == "bash":
            yield from map(self.command, commands(block.code))
        elif block.language == "python" and not block.file:
            yield 0, _python(lambda: exec(compile(self._said(block.code), "<block>", "exec"), {"__name__": "__main__"}))

    def command(self, line: str) -> tuple[int, str]:
        """Exit code and output of one."""
        program, *words = shlex.split(self._said(line))
        if program == "python":
            with _arguments(words):
                return 0, _python(lambda: runpy.run_path(words[0], run_name="__main__"))
        assert program == "rlx", f"who runs this? {line}"
        words = self.arguments(words)
        if words[0] == "train" and "--gpus" in words:
            done = subprocess.run([sys.executable, "-m", "rlx", *words], stdout=subprocess.PIPE, text=True, check=False,
                                  stderr=subprocess.STDOUT)
            return done.returncode, done.stdout
        said = CliRunner().invoke(app, words, prog_name="rlx")
        if said.exception is not None and not isinstance(said.exception, SystemExit):
            raise said.exception
        return said.exit_code, said.output

    def _said(self, code: str) -> str:
        for old, new in self.instead.items():
            code = code.replace(old, new)
        return code


def _python(code: Callable[[], object]) -> str:
    """What it prints."""
    with on_path(Path.cwd()), contextlib.redirect_stdout(io.StringIO()) as printed:
        code()
    return printed.getvalue()


@contextlib.contextmanager
def _arguments(words: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before


def unlike(shown: str, printed: str) -> list[str]:
    """Lines that a page shows and that were not printed, but for numbers, folders, model's texts and tables."""
    there = {_form(line) for line in printed.splitlines()}
    return [line for line in shown.splitlines()
            if line.strip() not in ("", "…") and not BOX & set(line) and _form(line) not in there]


def _form(line: str) -> str:
    line = re.sub(r"(?<=tokens)(, cut)?\]: .*", "]:", line)
    line = re.sub(r"[^\s'(]*/(?=\S)", "", line)
    line = re.sub(r"\b[0-9a-f]{12}\b", "#", line)
    line = re.sub(r"[+-]?\d[\d,.:]*", "#", line)
    line = re.sub(r"# x #(,? # x #)*", "# x #", line)
    line = re.sub(r"[▁▂▃▄▅▆▇█]+", "▁", line)
    return " ".join(line.replace("steps", "step").split())
