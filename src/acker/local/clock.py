"""The one clock of a runtime. Everything that waits for a time waits here, so that a test can turn the hands."""

from __future__ import annotations

import threading
import time
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


def new_signal() -> threading.Event:
    """Return a signal, set: whoever waits for it first looks once."""
    signal = threading.Event()
    signal.set()
    return signal
