"""A warning while one call holds an event loop, so that no other message of it gets on."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from types import TracebackType
from typing import Final, Self

from acker.observe.calls import line_of_user, stack_of_thread

# A loop that took no turn for so long is held by a call.
HELD_SECS: Final = 5.0
_LOOKS: Final = 4


class LoopWatch:
    """Looks from a thread of its own whether the running loop takes turns, and names the line that holds it.

    Parameters
    ----------
    name : str
        The consumer's.
    logger : logging.Logger
    """

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self._name, self._logger = name, logger
        self._look_secs = HELD_SECS / _LOOKS
        self._ended = threading.Event()
        self._turned = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._turn()
        self._watcher = threading.Thread(target=self._watch, name=f"acker {self._name} loop", daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        self._watcher.join()

    def _turn(self) -> None:
        self._turned = time.monotonic()
        self._timer = self._loop.call_later(self._look_secs, self._turn)

    def _watch(self) -> None:
        told, looked = 0.0, time.monotonic()
        while not self._ended.wait(self._look_secs):
            before, looked = looked, time.monotonic()
            turned = self._turned
            # A process that stood still as a whole has held no loop.
            if turned == told or looked - turned < HELD_SECS or looked - before > 2 * self._look_secs + HELD_SECS / 2:
                continue
            told = turned
            self._logger.warning(
                "%s: a call has held the event loop for %.0f s, in %s: no other message of it gets on, and their"
                " timeouts go on; let a thread do it, as by asyncio.to_thread",
                self._name,
                looked - turned,
                line_of_user(stack_of_thread(self._thread_id)) or "a place that cannot be seen",
            )
