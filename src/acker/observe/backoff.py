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


def backoff_error(backoff_secs: float, backoff_secs_max: float) -> str | None:
    """Return why two options contradict each other; None if they do not."""
    if backoff_secs <= backoff_secs_max:
        return None
    return (
        f"backoff_secs is {backoff_secs:g} and backoff_secs_max is {backoff_secs_max:g}, but the first wait cannot be"
        " longer than the longest one; raise backoff_secs_max, or lower backoff_secs"
    )
