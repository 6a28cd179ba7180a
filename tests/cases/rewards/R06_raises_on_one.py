"""Fails on one sample of the batch, by its text."""

from rlx_sdk import reward


@reward("case_raises_on_one")
def raises_on_one(samples):
    out = []
    for sample in samples:
        if sample.completion == "ccc":
            raise ValueError(f"no '####' marker in {sample.completion[:20]!r}")
        out.append(1.0)
    return out
