"""StateGate, which lets one thread at a time use the states of an executor's tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class StateGate:
    """Lets one thread at a time use the states: the executor's own in a step, or one that takes a snapshot.

    A thread that waits for the states holds the turnstile, so that a busy executor cannot enter again before a thread
    that takes a snapshot.
    """

    def __init__(self) -> None:
        self._turnstile = threading.Lock()
        self._inside = threading.Lock()
        self._holder: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self, wake: Callable[[], None] | None = None, timeout_secs: float = threading.TIMEOUT_MAX) -> bool:
        """Wait until no other thread is inside; return whether that came in time.

        Parameters
        ----------
        wake : callable, optional
            Called while the turnstile is held, so that the executor ends its step.
        timeout_secs : float
        """
        me = threading.get_ident()
        if self._holder != me:  # else a hook takes a snapshot, or a step of coroutines is within another
            deadline = time.monotonic() + timeout_secs
            if not self._turnstile.acquire(timeout=timeout_secs):
                return False
            try:
                if wake is not None:
                    wake()
                if not self._inside.acquire(timeout=max(0, deadline - time.monotonic())):
                    return False
            finally:
                self._turnstile.release()
            self._holder = me
        self._depth += 1
        return True

    def leave(self) -> None:
        """Let the next thread in, unless this thread has entered more often than it has left."""
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._inside.release()
