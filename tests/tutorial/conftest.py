"""A reader follows the tutorial once; the tests of its claims look at what happened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from ..blocks import Block, Reader, read_blocks

ROOT = Path(__file__).parents[2]
PAGES = {language: ROOT / "docs" / language / "tutorial.md" for language in ("zh", "en")}
INSTEAD = {"--steps 28": "--steps 6", "global_step_28": "global_step_6", "train --algo ppo --reward polite.py:polite "
           "--steps 1 --name two --gpus 2": "check --algo ppo --reward polite.py:polite --gpus 2"}
"""Fewer steps, and no processes."""


def smaller(words: list[str]) -> list[str]:
    """A few rows and tokens a step."""
    if words[0] not in ("train", "check"):
        return words
    given = ["train.batch_size=4", "train.minibatches=1", "train.update_epochs=1",
             *(["rollout.max_completion=8"] if "--reward" in words else []),
             *([] if "--data" in words or "polite" in words else ["data.eval=4"])]
    return [*words, *(word for setting in given for word in ("--set", setting))]


@dataclass(frozen=True)
class Shown:
    """A block of output in the page, and what was printed where it stands."""

    block: Block
    printed: str


@dataclass(frozen=True)
class Followed:
    """The folder that the reader worked in, and all that was shown."""

    folder: Path
    shown: list[Shown]

    def printed(self, section: str) -> str:
        """All that was printed in a section of the page."""
        return "\n".join(s.printed for s in self.shown if s.block.section == section)


def follow(folder: Path, reader: Reader) -> Followed:
    """Run every block of the page that a reader would run, in order."""
    shown, printed = [], ""
    for block in read_blocks(PAGES["zh"]):
        if block.language == "text":
            shown.append(Shown(block, printed))
            printed = ""
        elif not block.installs and not ("--rollout vllm" in block.code and find_spec("vllm")):
            for code, said in reader.run(block):
                assert code == 0 or said.rpartition("\n\n")[2].lstrip().startswith("error: "), said
                printed += said
    return Followed(folder, shown)


@pytest.fixture(scope="session")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    """The page followed with short trainings on few rows; no processes are started."""
    yield from _in_a_folder(tmp_path_factory, Reader(INSTEAD, smaller))


@pytest.fixture(scope="session")
def followed_whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    """The page followed word for word."""
    yield from _in_a_folder(tmp_path_factory, Reader())


def _in_a_folder(factory: pytest.TempPathFactory, reader: Reader) -> Iterator[Followed]:
    work = factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", work / "examples")
    (work / "first").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work / "first")
        patch.setenv("HOME", str(work))
        followed = follow(work / "first", reader)
    yield followed
