"""The other package offers a reward of this name too."""

from rlx_sdk import reward


@reward("case_same")
def case_same(samples):
    """The same number for everything."""
    return [-1.0 for _ in samples]
