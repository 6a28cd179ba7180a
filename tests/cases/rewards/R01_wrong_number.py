"""Results that cannot be given to their samples."""

from rlx_sdk import reward


@reward("case_one_for_all")
def one_for_all(samples):
    """One number for the whole batch; broadcasting would hide it."""
    return [1.0]


@reward("case_one_short")
def one_short(samples):
    """Drops some completions before scoring, so that the list is shorter on some steps only."""
    kept = [s.completion for s in samples if len(s.completion) % 2 == 0]
    return [float(len(text)) for text in kept]


@reward("case_bare_float")
def bare_float(samples):
    """A float, not a list."""
    return 0.5
