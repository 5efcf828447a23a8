"""Back-off: how long to wait before the next attempt."""

from __future__ import annotations


def backoff(attempt: int, first_secs: float, most_secs: float) -> float:
    """Return the seconds to wait after a failed attempt: `first_secs` after the first, then twice as long each time.

    Parameters
    ----------
    attempt : int
        Number of the attempt that failed, from 1.
    first_secs, most_secs : float
        The first wait and the longest one.
    """
    # min() in the exponent, since 2.0**1024 overflows.
    return min(first_secs * 2.0 ** min(max(attempt - 1, 0), 64), most_secs)
