"""The numeric types people return by accident."""

import numpy as np

from rlx_sdk import reward


@reward("case_numpy")
def numpy(samples):
    kinds = [np.float32(0.25), np.int64(1), np.bool_(True), np.array(0.5), True, 1, np.float16(0.1), np.array([0.75])]
    return [kinds[i % len(kinds)] for i in range(len(samples))]


@reward("case_numpy_array")
def numpy_array(samples):
    """A whole float64 array of shape (n, 1)."""
    return np.array([[len(s.completion) / 10] for s in samples])
