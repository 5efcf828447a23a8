"""The flusher, which sends what executors have done while user code still runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from acker._flow import wait_for_step
from acker.local.clock import Flag
from acker.local.executors.base import ComponentExecutor

Executors = TypeVar("Executors", bound=Iterable[ComponentExecutor])

# Storm flushes what executors have gathered once in a millisecond too (topology.flush.tuple.freq.millis).
_LINGER_SECS: Final = 0.001
# How often it looks at a call that runs long and emits nothing.
_LOOK_SECS_MAX: Final = 0.004
_IDLE_SECS: Final = 1.0

logger = logging.getLogger("acker.local")


class Flusher:
    """Flushes executors that are inside a step, so that what is done never waits for a call of user code.

    An executor flushes when its step ends, which is after some hundred tuples or a call that takes as long as user code
    likes. The flusher looks a millisecond after a step has begun, and again as long as one goes on.

    Parameters
    ----------
    executors : callable
        Returns the executors of the components. Each sets `signal` when it begins a step.
    over : threading.Event
        Set when all executors have ended.
    """

    def __init__(self, executors: Callable[[], Iterable[ComponentExecutor]], over: threading.Event) -> None:
        self.signal = Flag()
        self._executors = executors
        self._over = over
        self._thread: threading.Thread | None = None

    def adopt(self, executors: Executors) -> Executors:
        """Have the flusher's signal set whenever one of these executors begins a step; return them."""
        for executor in executors:
            executor.outbox.flusher_signal = self.signal
        return executors

    def start(self, name: str) -> None:
        """Look from a thread of its own until all is over."""
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended, once all is over."""
        self.signal.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> tuple[bool, bool]:
        """Flush the executors; return whether one is inside a step, and whether anything was sent."""
        busy = sent = False
        for executor in self._executors():
            if executor.abandoned:
                continue
            busy = busy or executor.step_since_ns is not None
            try:
                sent = executor.flush_early() or sent
            except Exception:  # It sends again when its step ends.
                logger.exception("%s: what was done could not be sent while user code runs", executor.name)
        return busy, sent

    def _work(self) -> None:
        while not self._over.is_set():
            self.signal.wait(_IDLE_SECS)
            self.signal.clear()
            pause = _LINGER_SECS
            while wait_for_step([each.outbox for each in self._executors() if not each.abandoned], pause):
                _, sent = self.look()
                pause = _LINGER_SECS if sent else min(2 * pause, _LOOK_SECS_MAX)
