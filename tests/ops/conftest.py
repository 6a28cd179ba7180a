"""The recorded cases: numbers with their inputs, and the wrong numbers that known mistakes give."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).parents[1] / "cases" / "math"


@pytest.fixture
def case() -> Callable[[str], Any]:
    """A case by its name."""
    return lambda name: json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
