"""The templates and texts travel with the package."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_the_wheel_holds_what_pages_are_made_of(tmp_path):
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT], check=True)
    [wheel] = tmp_path.glob("rlx-*.whl")
    there = set(zipfile.ZipFile(wheel).namelist())
    looks = ROOT / "core" / "rlx" / "looks"
    assert {f"rlx/looks/{file.relative_to(looks)}" for file in looks.rglob("*.*")
            if "__pycache__" not in file.parts} <= there
