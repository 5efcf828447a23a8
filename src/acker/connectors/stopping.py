"""The end of an I/O thread: for how long it waits for open messages and for the broker, and what it says meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from acker.connectors.attempts import Attempt

# An end that takes longer than this says what it waits for.
_SILENCE_SECS: Final = 1.0
# Seconds that the broker has after `drain_secs` to take acks and released messages.
_ANSWER_SECS: Final = 5.0
# Each wait has an end, so that signal handlers run meanwhile.
_LOOK_SECS: Final = 0.5


class Stopping:
    """Knows since when an I/O thread is to stop, and when that has taken too long.

    Parameters
    ----------
    name : str
        The source's.
    drain_secs : float
    logger : logging.Logger

    Attributes
    ----------
    has_begun : bool
        Whether the thread is to stop, since `begin` was called.
    """

    def __init__(self, name: str, drain_secs: float, logger: logging.Logger) -> None:
        self.has_begun = False
        self._name = name
        self._drain_secs = drain_secs
        self._logger = logger
        self._since = 0.0
        self._has_told = self._has_left = False

    def begin(self) -> None:
        """Begin the end; signal handlers call this, too."""
        if not self.has_begun:
            self._since = time.monotonic()
            self.has_begun = True

    def is_over(self, open_ones: Sequence[Attempt]) -> bool:
        """Return whether the open messages had their time; say after a second that the end waits for them."""
        secs = time.monotonic() - self._since
        if secs >= self._drain_secs:
            return True
        if secs >= _SILENCE_SECS and not self._has_told:
            self._has_told = True
            self._logger.warning(
                "%s: stopping, and %d messages, such as %s, are not done: waiting for them for %.3g s more at most",
                self._name,
                len(open_ones),
                open_ones[0].delivery.key,
                self._drain_secs - secs,
            )
        return False

    def wait_for(self, thread: threading.Thread, count_unacked: Callable[[], int]) -> None:
        """Wait for the end of the I/O thread; leave it behind if the broker does not answer it.

        Parameters
        ----------
        thread : threading.Thread
        count_unacked : callable
            Returns how many messages are done whose acks the broker has not taken.
        """
        deadline = self._since + self._drain_secs + _ANSWER_SECS
        while thread.is_alive():
            if (left_secs := deadline - time.monotonic()) <= 0:
                self._leave(count_unacked)
                return
            thread.join(min(left_secs, _LOOK_SECS))

    def _leave(self, count_unacked: Callable[[], int]) -> None:
        if not self._has_left:
            self._has_left = True
            self._logger.warning(
                "%s: the broker has not answered for %g s after the time to drain, so this ends without its answer. It"
                " delivers again what is not acked, also %d messages that are done",
                self._name,
                _ANSWER_SECS,
                count_unacked(),
            )
