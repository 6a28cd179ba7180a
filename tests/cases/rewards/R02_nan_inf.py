"""NaN for the second sample, inf for the third, -inf for the fourth, then normal."""

from rlx_sdk import reward


@reward("case_nan_inf")
def nan_inf(samples):
    odd = [0.5, float("nan"), float("inf"), float("-inf")]
    return [odd[i] if i < 4 else 0.25 for i in range(len(samples))]
