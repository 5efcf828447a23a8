"""The feed of a live page: a reading at each interval, the history of its charts, and the events that browsers get."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from acker.errors import exception_text
from acker.ui.history import History, pause_secs
from acker.ui.source import LiveSource

logger = logging.getLogger("acker.ui")


def to_json(value: object) -> bytes:
    """Return a value as JSON; what JSON has not becomes text."""
    return json.dumps(value, allow_nan=False, default=str, separators=(",", ":")).encode()


class Feed:
    """Reads a source again and again, for all browsers at once. All methods run on the server's event loop.

    Parameters
    ----------
    source : LiveSource
    interval_secs : float

    Attributes
    ----------
    latest : dict
        The last reading.
    """

    def __init__(self, source: LiveSource, interval_secs: float) -> None:
        self.latest: dict[str, Any] = {}
        self._source = source
        self._interval_secs = interval_secs
        self._number = 0
        self._event = b""
        self._history = History()
        self._changed = asyncio.Event()
        self._finished = False
        self._in_trouble = False
        self._reading = asyncio.Lock()

    async def run(self) -> None:
        """Read until cancelled."""
        while not self._finished:
            took_secs = await self.read()
            await asyncio.sleep(pause_secs(took_secs, self._interval_secs))

    async def read(self, *, is_last: bool = False) -> float:
        """Take a reading and wake those who wait for it; return how many seconds of a core it took."""
        async with self._reading:
            if self._finished:
                return 0.0
            took_secs = 0.0
            try:
                view, took_secs = await asyncio.to_thread(self._take)
                begin = time.thread_time()
                self._publish(view, is_last=is_last)
                took_secs += time.thread_time() - begin
                self._in_trouble = False
            except Exception as error:
                if not self._in_trouble:
                    logger.exception("%s: the live page cannot read its figures; it tries again", self._source.name)
                self._in_trouble = True
                self._wake(_event("trouble", {"text": exception_text(error)}))
            self._finished = is_last
            return took_secs

    def _take(self) -> tuple[dict[str, Any], float]:
        # The time of this thread: on a busy machine it mostly waits for its turn, which costs the others nothing.
        begin = time.thread_time()
        view = self._source.view()
        return view, time.thread_time() - begin

    def _publish(self, view: dict[str, Any], *, is_last: bool) -> None:
        at_ms = time.time_ns() // 1_000_000
        view |= {"at_ms": at_ms, "interval_secs": self._interval_secs, "is_last": is_last}
        view["sequence"] = self._number + 1
        self._history.add(view)
        event = _event("view", view)
        self.latest = view
        self._wake(event)

    def _wake(self, event: bytes) -> None:
        self._number += 1
        self._event = event
        self._changed.set()
        self._changed = asyncio.Event()

    async def finish(self) -> None:
        """Take the last reading; all streams of events end with it."""
        await self.read(is_last=True)
        self._finished = True
        self._changed.set()

    def history(self) -> dict[str, Any]:
        """Return the times and values of all charts, as `History.to_json`."""
        return self._history.to_json()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the history, then each reading, until the last one. A slow reader misses some."""
        yield b"retry: 1000\n\n" + _event("history", self.history())
        seen = 0
        while True:
            changed = self._changed
            if self._number != seen:
                seen = self._number
                yield self._event
            elif self._finished:
                return
            else:
                await changed.wait()


def _event(name: str, value: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), to_json(value))
