"""docs/data.md is made from the code; a stale page fails here."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_current():
    spec = importlib.util.spec_from_file_location("make_data", DOCS / "make_data.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert (DOCS / "data.md").read_text(encoding="utf-8") == made.page(), "run: python docs/make_data.py"
