"""Test processes share the machine: each keeps to one thread, or they would wait for each other. Faults are counted."""

import os
from collections.abc import Callable

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("long", max_examples=5000)  # pytest PATH --hypothesis-profile=long


@pytest.fixture(autouse=True)
def _fault(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """``@pytest.mark.fault(name, tried=1, lost=0)`` says what a test makes go wrong; faults/count.py adds it up."""
    marker = request.node.get_closest_marker("fault")
    if marker is not None:
        for name, value in {"fault": marker.args[0], "tried": 1, "lost": 0, **marker.kwargs}.items():
            record_property(name, value)
