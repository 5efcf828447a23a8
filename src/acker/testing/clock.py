"""ManualClock, a clock that moves only when a test advances it."""

from __future__ import annotations

import threading
from fractions import Fraction
from typing import Final

from acker.errors import ArgumentValueError
from acker.local.clock import Signal

_NS_A_SECOND: Final = 1_000_000_000
_NS_A_MILLISECOND: Final = 1_000_000


class ManualClock:
    """A clock for tests, which moves only by `advance`.

    It replaces the `SystemClock` of a runtime. Any thread may read it, wait on it and turn it.

    Parameters
    ----------
    start_ns : int
        The time at first, in nanoseconds.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self._lock = threading.Lock()
        self._now_ns = start_ns
        self._sleepers: list[Signal] = []

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return self._now_ns

    def now_ms(self) -> int:
        """Return the time in whole milliseconds, rounded down."""
        return self._now_ns // _NS_A_MILLISECOND

    @property
    def sleepers(self) -> int:
        """Number of threads inside `wait`."""
        return len(self._sleepers)

    def wait(self, signal: Signal, until_ns: int | None) -> None:
        """Wait until the signal is set or the clock is turned.

        As with a condition, a caller has to check again: the clock may have been turned by less than `until_ns` needs.

        Parameters
        ----------
        signal : Signal
            Ends the wait; turning the clock sets it.
        until_ns : int or None
            A time in the past ends the wait at once. None: no time.
        """
        with self._lock:  # so that the clock is not turned between this check and the append
            if until_ns is not None and self._now_ns >= until_ns:
                return
            self._sleepers.append(signal)
        try:
            signal.wait(None)
        finally:
            with self._lock:
                self._sleepers.remove(signal)

    def advance(self, seconds: float | Fraction) -> None:
        """Turn the clock on and wake all threads that wait.

        Parameters
        ----------
        seconds : float or Fraction
            0 or more; rounded to whole nanoseconds.

        Raises
        ------
        ArgumentValueError
            The number is negative, and the clock is monotonic.
        """
        self.advance_to(self._now_ns + round(Fraction(seconds) * _NS_A_SECOND))

    def advance_to(self, now_ns: int) -> None:
        """Turn the clock on to a time in nanoseconds, as `advance` does."""
        with self._lock:
            if now_ns < self._now_ns:
                raise ArgumentValueError(f"cannot turn a monotonic clock back from {self._now_ns} ns to {now_ns} ns")
            self._now_ns = now_ns
            for signal in self._sleepers:
                signal.set()
