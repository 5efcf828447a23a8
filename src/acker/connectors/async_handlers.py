"""Handlers that are coroutines: each message of a consumer is given to one, so many at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, Final

from acker.connectors.async_messages import AsyncMessages
from acker.connectors.handlers import warn_of_left
from acker.connectors.handles import Message, start_handler
from acker.observe.calls import line_of_user, stack_of_coroutine

_LOOK_SECS: Final = 0.5


class HandlerTasks:
    """Coroutines of the running loop, each of which has one message.

    Parameters
    ----------
    messages : AsyncMessages
    handler : callable
    tasks_max : int
    name : str
        The consumer's.
    stop : callable
        Stops the consumer, when a handler raises what is no `Exception`.
    """

    def __init__(
        self,
        messages: AsyncMessages[Any],
        handler: Callable[[Message[Any]], Coroutine[Any, Any, object]],
        tasks_max: int,
        name: str,
        stop: Callable[[], object],
    ) -> None:
        self._messages = messages
        self._handler = handler
        self._tasks_max = tasks_max
        self._name = name
        self._stop = stop
        self._running: set[asyncio.Task[object]] = set()
        self._ended = asyncio.Event()
        self._errors: list[BaseException] = []

    async def work(self) -> None:
        """Give each message to a coroutine, until there are no more."""
        while not self._messages.is_over:
            if len(self._running) >= self._tasks_max:
                await self._wait()
                continue
            try:
                message = await anext(self._messages)
            except StopAsyncIteration:
                return
            with contextlib.suppress(Exception):  # it is logged, and fails the message
                task = start_handler(message, self._handler)
                self._running.add(task)
                task.add_done_callback(self._end)
            del message  # which may be large, before the wait for the next one

    async def _wait(self) -> None:
        self._ended.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECS):  # a stop must not wait for a coroutine
                await self._ended.wait()

    def _end(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        self._ended.set()
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Exception):
            self._errors.append(error)
            self._stop()

    async def join(self, secs: float) -> None:
        """Wait for coroutines that still run; raise what one raised that is no `Exception`.

        One that goes on longer is left behind, and a warning says where.
        """
        if self._running:
            await asyncio.wait(self._running, timeout=secs)
        calls = [f"{each.get_name()} in {line_of_user(stack_of_coroutine(each.get_coro()))}" for each in self._running]
        warn_of_left(self._name, calls)
        if self._errors:
            raise self._errors[0]


async def on_thread(work: Callable[[], object], name: str) -> None:
    """Do work on a thread of its own, for which the end of the program does not wait."""
    future: Future[None] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            future.set_exception(error)
        else:
            future.set_result(None)

    Thread(target=run, name=name, daemon=True).start()
    await asyncio.wrap_future(future)
