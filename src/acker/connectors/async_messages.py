"""The messages of a consumer as an asynchronous iterator, for tasks of an event loop."""

from __future__ import annotations

import asyncio
import math
import queue
import time
from collections.abc import Callable
from typing import Final, Generic, Self

from acker.connectors.attempts import Attempt
from acker.connectors.handles import Message, Value
from acker.connectors.message_store import MessageStore

# So many messages are handed out in one turn of an event loop, and for so long.
_AT_ONCE: Final = 16
_TURN_SECS: Final = 0.001


class AsyncMessages(Generic[Value]):
    """Iterates over messages, in one task or in several.

    A task that is cancelled while it waits takes no message with it, and does not end the iteration.

    Parameters
    ----------
    store : MessageStore
    begin : callable
        Returns the message of an attempt; None if its body cannot be decoded.
    """

    def __init__(self, store: MessageStore, begin: Callable[[Attempt], Message[Value] | None]) -> None:
        self._store = store
        self._begin = begin
        self._since_turn = 0
        self._turn_by = -math.inf

    def _begin_turn(self) -> None:
        self._since_turn = 0
        self._turn_by = time.monotonic() + _TURN_SECS

    @property
    def is_over(self) -> bool:
        """Whether there are no more messages, or an error that the next step raises."""
        return self._store.is_closed and self._store.error is None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[Value]:
        while True:
            # Messages that are there already must not keep the loop from its other work. A turn of the loop for each of
            # them would take as long as all else, since it asks the system for events.
            self._since_turn += 1
            if self._since_turn >= _AT_ONCE or time.monotonic() >= self._turn_by:
                await asyncio.sleep(0)
                self._begin_turn()
            attempt = await self._take()
            if attempt is None:
                raise StopAsyncIteration
            # No wait from here on, which could be cancelled.
            message = self._begin(attempt)
            if message is not None:
                return message

    async def _take(self) -> Attempt | None:
        try:
            return self._store.take(0)
        except queue.Empty:
            return await self._wait()

    async def _wait(self) -> Attempt | None:
        """Wait for the next attempt, or for the end."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        end_listening = self._store.listen(lambda: loop.call_soon_threadsafe(arrived.set))
        try:
            while True:
                arrived.clear()
                try:
                    return self._store.take(0)
                except queue.Empty:
                    await arrived.wait()
        finally:
            end_listening()
