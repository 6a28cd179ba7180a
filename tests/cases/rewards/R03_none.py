"""None means: cannot judge this one."""

from rlx_sdk import reward


@reward("case_none")
def none(samples):
    return [float(len(s.completion) % 3) if any(ch.isdigit() for ch in s.prompt) else None for s in samples]


@reward("case_all_none")
def all_none(samples):
    return [None] * len(samples)
