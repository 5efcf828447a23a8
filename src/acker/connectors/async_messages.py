"""The messages of a consumer as an asynchronous iterator, for tasks of an event loop."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from typing import Generic, Self

from acker.connectors.attempts import Attempt
from acker.connectors.handles import Message, Value
from acker.connectors.message_store import MessageStore


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

    @property
    def is_over(self) -> bool:
        """Whether there are no more messages, or an error that the next step raises."""
        return self._store.is_closed and self._store.error is None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[Value]:
        while True:
            # Messages that are there already must not keep the loop from its other work.
            await asyncio.sleep(0)
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
