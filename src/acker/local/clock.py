"""The clock of a runtime, on which all timed waits depend, so that a test can replace it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Protocol

# The longest real wait, so that every wait ends in bounded time (and Ctrl-C is noticed on Windows).
_WAIT_SECONDS_MAX = 1.0


class Signal(Protocol):
    """A signal that an executor waits for: new input, room in a queue, a change of mode. `threading.Event` is one."""

    def set(self) -> None: ...  # noqa: D102
    def clear(self) -> None: ...  # noqa: D102
    def is_set(self) -> bool: ...  # noqa: D102
    def wait(self, timeout: float | None = None) -> bool: ...  # noqa: D102


class Clock(Protocol):
    """A monotonic clock on which threads can wait."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since a fixed moment."""

    def wait(self, signal: Signal, until_ns: int | None) -> None:
        """Wait until the signal is set or the time has come, or for less."""


class SystemClock:
    """The monotonic clock of the operating system.

    Attributes
    ----------
    epoch_ns : int
        The time of day when its time was 0, in nanoseconds since 1970, UTC, as known when it was made.
    """

    def __init__(self) -> None:
        self.epoch_ns = time.time_ns() - time.monotonic_ns()

    now_ns = staticmethod(time.monotonic_ns)

    def wait(self, signal: Signal, until_ns: int | None) -> None:
        """Wait until the signal is set, the time has come, or a second has passed."""
        seconds = _WAIT_SECONDS_MAX
        if until_ns is not None:
            seconds = min(seconds, (until_ns - time.monotonic_ns()) / 1e9)
        if seconds > 0:
            signal.wait(seconds)


class Flag:
    """A signal for one waiting thread: a lock that is free while the flag is set.

    `threading.Event` makes a lock for each wait and takes two more, which is slow when tuples come in small batches.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Set at first, so that the first wait ends at once.

    def set(self) -> None:
        """Set it, from any thread."""
        # Unless it is set; another thread may set it between the check and the release.
        if self._lock.locked():
            with suppress(RuntimeError):
                self._lock.release()

    def clear(self) -> None:
        """Clear it."""
        self._lock.acquire(blocking=False)

    def is_set(self) -> bool:
        """Return whether it is set."""
        return not self._lock.locked()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most for `timeout` seconds; return whether it is."""
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            return False
        with suppress(RuntimeError):
            self._lock.release()
        return True
