"""docs/algorithms.md is made from the plugins."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_current():
    spec = importlib.util.spec_from_file_location("make_algorithms", DOCS / "make_algorithms.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert (DOCS / "algorithms.md").read_text(encoding="utf-8") == made.page(), "run: python docs/make_algorithms.py"
