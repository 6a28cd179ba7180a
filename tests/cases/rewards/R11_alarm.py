"""A time limit by SIGALRM, which works on the main thread only."""

import signal

from rlx_sdk import reward


def _stop(*_):
    raise TimeoutError


def _one(text):
    try:
        signal.signal(signal.SIGALRM, _stop)
        signal.alarm(2)
        return 1.0 if text is not None else 0.0
    except Exception:
        return 0.0
    finally:
        signal.alarm(0)


@reward("case_alarm_swallowed")
def swallowed(samples):
    """Off the main thread every score would be zero, without a message."""
    return [_one(s.completion) for s in samples]


@reward("case_alarm_raises")
def raises(samples):
    """The same without the except."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        return [1.0 for _ in samples]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
