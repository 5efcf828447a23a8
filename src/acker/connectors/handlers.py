"""Handlers: functions that get each message of a consumer, whose end is the end of the message."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Final, Literal

from acker.connectors.handles import Message, call_handler
from acker.connectors.options import check_whole
from acker.connectors.unrun import name_of, refuse_unrun
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.observe.calls import line_of_user, stack_of_thread

Handler = Callable[[Message[Any]], object]
Until = Literal["stopped", "empty"]

logger: Final = logging.getLogger("acker.connectors")

# Each wait has an end, so that signal handlers run meanwhile.
_LOOK_SECS: Final = 0.5


def check_handler(handler: Any, *, is_async: bool) -> None:
    """Check that a handler can be called with a message, and is of the kind that `run` or `run_async` takes.

    Raises
    ------
    ArgumentTypeError
    """
    if not callable(handler):
        raise ArgumentTypeError(f"handler: expected a function that takes a message, got {handler!r}")
    if is_coroutine_function(handler):
        if not is_async:
            raise ArgumentTypeError(f"handler: {name_of(handler)} is a coroutine function: use Consumer.run_async")
    else:
        refuse_unrun("handler", handler, "use Consumer.run_async")
        if is_async:
            raise ArgumentTypeError(f"handler: {name_of(handler)} is no coroutine function: use Consumer.run")
    try:
        signature = inspect.signature(handler)
    except ValueError:  # of builtin functions, which say nothing
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise ArgumentTypeError(
            f"handler: {name_of(handler)}{signature} cannot be called with a message alone: {error}"
        ) from None


def is_coroutine_function(handler: Any) -> bool:
    """Return whether a call of this returns a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def check_until(until: Any) -> None:
    """Check the condition at which a run ends."""
    if until not in ("stopped", "empty"):
        raise ArgumentValueError(f'until: expected "stopped" or "empty", got {until!r}')


def place_of(handler: Any) -> tuple[CodeType, int] | str:
    """Return where a handler begins, as the place where its messages are made."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return (code, 0) if isinstance(code, CodeType) else name_of(handler)


class HandlerThreads:
    """Threads that each take a message, give it to a handler, and take the next one.

    So no more messages are handed out than there are threads. They are daemons: a call that never ends does not keep
    the program from its end.

    Parameters
    ----------
    messages : callable
        Returns an iterator over messages for one thread.
    handler : callable
    threads : int
    name : str
        The consumer's.
    """

    def __init__(
        self, messages: Callable[[], Iterator[Message[Any]]], handler: Handler, threads: int, name: str
    ) -> None:
        check_whole("threads", threads)
        self._max_workers = threads  # as a pool's, for those who count busy threads
        self._messages = messages
        self._handler = handler
        self._name = name
        self._errors: list[BaseException] = []
        self._news: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whether a thread has ended
        self._threads = [
            threading.Thread(target=self._work, name=f"acker {name} handler {number}", daemon=True)
            for number in range(threads)
        ]

    def _work(self) -> None:
        try:
            for message in self._messages():
                call_handler(message, self._handler, self)
                del message  # which may be large, before the wait for the next one
        except BaseException as error:  # noqa: BLE001 - `join` raises it
            self._errors.append(error)
        finally:
            self._news.put(True)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """End `wait`. Signal handlers may call it."""
        self._news.put(False)

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until a condition holds, or a thread has ended: then there are no more messages, or it raised."""
        while not is_over():
            with contextlib.suppress(queue.Empty):
                if self._news.get(timeout=_LOOK_SECS):
                    return

    def join(self, deadline: float) -> None:
        """Wait for calls that still run, until a time of the monotonic clock; raise what a thread raised.

        A call that goes on longer is left behind, and a warning says where.
        """
        for thread in self._threads:
            while thread.is_alive() and (left_secs := deadline - time.monotonic()) > 0:
                thread.join(min(left_secs, _LOOK_SECS))
        left = [thread for thread in self._threads if thread.is_alive()]
        warn_of_left(self._name, [f"{each.name} in {line_of_user(stack_of_thread(each.ident))}" for each in left])
        if self._errors:
            raise self._errors[0]


def warn_of_left(name: str, calls: list[str]) -> None:
    """Say which calls of a handler go on after the end of their consumer."""
    if calls:
        text = "%s: %d calls of the handler have not ended, and are left behind: %s"
        logger.warning(text, name, len(calls), "; ".join(calls))
