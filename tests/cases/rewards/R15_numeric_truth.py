"""A plain string test against the ground truth: str(72) must be '72'."""

from rlx_sdk import reward


@reward("case_numeric_truth")
def numeric_truth(samples):
    truths = [s.row["ground_truth"] for s in samples]
    assert all(not str(t).endswith(".0") and "array" not in repr(t) for t in truths), truths
    return [float(str(t) in s.completion) for s, t in zip(samples, truths, strict=True)]
