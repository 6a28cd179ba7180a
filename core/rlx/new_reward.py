"""``rlx new-reward``: a complete package with one reward, from the files in ``scaffold``."""

from __future__ import annotations

import re
from pathlib import Path

from rlx.registry import Registry
from rlx_sdk import PluginError

_FILES = {"pyproject.toml": "pyproject.toml.txt", "README.md": "README.md.txt", "{module}/__init__.py": "reward.py.txt",
          "tests/test_{function}.py": "test.py.txt", ".github/workflows/test.yml": "ci.yml.txt"}


def new_reward(name: str, parent: Path) -> Path:
    """Write the package of a reward into a new folder, and return that.

    Raises:
        PluginError: the name cannot be one, is taken, or the folder is there already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(?:[_-][a-z0-9]+)*", name):
        raise PluginError(f"'{name}' cannot be the name of a reward: use small letters, digits and single _ or -, such "
                          "as short_answer")
    function = name.replace("-", "_")
    names = {"name": name, "function": function, "module": f"rlx_{function}",
             "package": f"rlx-{function.replace('_', '-')}"}
    taken = [e for e in Registry.discover().entries("reward") if e.name == name and e.package != names["package"]]
    if taken:
        raise PluginError(f"a reward '{name}' is installed already, by {taken[0].package}; choose another name")
    folder = parent / names["package"]
    if folder.exists():
        raise PluginError(f"'{folder}' is there already; remove it or choose another name")
    for target, template in _FILES.items():
        text = (Path(__file__).parent / "scaffold" / template).read_text(encoding="utf-8")
        for key, value in names.items():
            text = text.replace("{{" + key + "}}", value)
        path = folder / target.format(**names)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
