"""The one clock of a runtime. Everything that waits for a time waits here, so that a test can turn the hands."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Protocol

# The longest one real wait, so that a wait ends in bounded time whatever happens (and Ctrl-C is seen on Windows).
_WAIT_SECONDS_MAX = 1.0


class Signal(Protocol):
    """What an executor waits for: new input, room in a queue, a change of mode. `threading.Event` is one."""

    def set(self) -> None: ...  # noqa: D102
    def clear(self) -> None: ...  # noqa: D102
    def is_set(self) -> bool: ...  # noqa: D102
    def wait(self, timeout: float | None = None) -> bool: ...  # noqa: D102


class Clock(Protocol):
    """A monotonic clock that threads can wait on."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since some fixed moment."""

    def wait(self, signal: Signal, until_ns: int | None) -> None:
        """Return when the signal is set or the time has come, or earlier."""


class SystemClock:
    """The monotonic clock of the operating system."""

    now_ns = staticmethod(time.monotonic_ns)

    def wait(self, signal: Signal, until_ns: int | None) -> None:
        """Return when the signal is set, the time has come, or a second has passed."""
        seconds = _WAIT_SECONDS_MAX
        if until_ns is not None:
            seconds = min(seconds, (until_ns - time.monotonic_ns()) / 1e9)
        if seconds > 0:
            signal.wait(seconds)


class Flag:
    """A signal that one thread waits for: one lock, free while the flag is set.

    `threading.Event` makes a lock for each wait and takes two more, which is much where tuples come in small batches.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Set: whoever waits for it first looks once.

    def set(self) -> None:
        """Set it, from any thread."""
        # Unless it is set already; another thread may come first, between the look and the release.
        if self._lock.locked():
            with suppress(RuntimeError):
                self._lock.release()

    def clear(self) -> None:
        """Forget that it was set."""
        self._lock.acquire(blocking=False)

    def is_set(self) -> bool:
        """Say whether it is set."""
        return not self._lock.locked()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most so many seconds; say whether it is."""
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            return False
        with suppress(RuntimeError):
            self._lock.release()
        return True
