"""Two test processes share the machine: each keeps to one thread, or they would wait for each other."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
