"""Pages of docs that are made from the code; a stale one fails here."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("maker", sorted(DOCS.glob("make_*.py")), ids=lambda path: path.stem)
def test_the_page_is_current(maker):
    spec = importlib.util.spec_from_file_location(maker.stem, maker)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    page = DOCS / f"{maker.stem.removeprefix('make_')}.md"
    assert page.read_text(encoding="utf-8") == made.page(), f"run: python docs/{maker.name}"
