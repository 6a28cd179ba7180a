"""Fenced blocks of a page, and a reader who runs them one after the other in a folder, as a person would."""

from __future__ import annotations

import ast
import contextlib
import io
import os
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

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
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
        """The name in the first line of a Python file; None of code to run."""
        named = re.match(r"# (\S+\.py)\n", self.code)
        return named[1] if named and self.language == "python" else None

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
    return [Block(m[1], m[2], next((name for at, name in reversed(anchors) if at < m.start()), ""))
            for m in FENCE.finditer(text)]


@dataclass
class Reader:
    """Runs blocks in the current folder.

    Attributes:
        instead: text of a block in the place of other text.
        more: further arguments of a command of rlx, given its words.
    """

    instead: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[list[str]], list[str]] = lambda words: []

    def run(self, block: Block) -> str:
        """What a block prints; "" of a file that is only written.

        Raises:
            AssertionError: a command failed and did not say why as rlx does.
        """
        if block.file:
            if "/" not in block.file:  # else it lies in the repository
                Path(block.file).write_text(block.code, encoding="utf-8")
            return ""
        code = block.code
        for old, new in self.instead.items():
            code = code.replace(old, new)
        if block.language == "python":
            with _on_path(), contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, "<block>", "exec"), {})
            return printed.getvalue()
        return "".join(self._command(shlex.split(line, comments=True)) for line in code.splitlines())

    def _command(self, words: list[str]) -> str:
        if words[0] == "python":
            with _on_path(), contextlib.redirect_stdout(io.StringIO()) as printed:
                runpy.run_path(words[1], run_name="__main__")
            return printed.getvalue()
        assert words[0] == "rlx", words
        if words[1] == "train" and "--gpus" in words:
            return subprocess.run([sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, check=True).stdout
        done = CliRunner().invoke(app, [*words[1:], *self.more(words[1:])], prog_name="rlx")
        assert done.exit_code == 0 or done.output.rpartition("\n\n")[2].lstrip().startswith("error: "), done.output
        return done.output


@contextlib.contextmanager
def _on_path() -> Iterator[None]:
    """Modules of this folder can be imported, and are forgotten after."""
    before, sys.path[:0] = set(sys.modules), [os.getcwd()]
    try:
        yield
    finally:
        sys.path.pop(0)
        for name in set(sys.modules) - before:
            if str(Path.cwd()) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


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
