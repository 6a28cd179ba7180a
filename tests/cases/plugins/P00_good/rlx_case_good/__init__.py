"""A package as it should be."""

from rlx_sdk import reward


@reward("case_good")
def case_good(samples):
    """One for everything."""
    return [1.0 for _ in samples]
