"""Noise on standard output at import and in every call, and a root logger pointed at it."""

import logging
import sys

from rlx_sdk import reward

print("[case_noisy] loaded, cache warm")
logging.basicConfig(stream=sys.stdout, level=logging.INFO, force=True)


@reward("case_noisy")
def case_noisy(samples):
    """Says what it does on standard output."""
    sys.stdout.write("scoring...\r")
    logging.info("half way")
    return [1.0] * len(samples)
