"""Puts a case package next to rlx without pip: its files and a ``dist-info`` in a folder on the path."""

import shutil
import tomllib
from pathlib import Path

CASES = Path(__file__).parent


def install(case: str, site: Path) -> str:
    """Lay the package of a case into a folder; returns the distribution's name."""
    source = CASES / case
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    shutil.copytree(source, site, dirs_exist_ok=True, ignore=shutil.ignore_patterns("pyproject.toml", "__pycache__"))
    write_metadata(site, project["name"], project["version"], project["entry-points"]["rlx"])
    return project["name"]


def write_metadata(site: Path, name: str, version: str, entry_points: dict[str, str]) -> None:
    """What an installed package leaves for `importlib.metadata`."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = "".join(f"{key} = {value}\n" for key, value in entry_points.items())
    (info / "entry_points.txt").write_text(f"[rlx]\n{lines}")
