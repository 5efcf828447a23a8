"""One run of a handler of a consumer, on bodies that a test gives."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from acker.connectors.consumer import Consumer
from acker.connectors.handles import Message
from acker.connectors.publisher import Outgoing
from acker.testing.connectors.broker import MemoryBroker, listed
from acker.testing.connectors.publisher import MemoryPublisher
from acker.testing.connectors.source import MemorySource

Handler = Callable[[Message[Any]], object]


@dataclass
class Handled:
    """The results of a handler; each list is in the order of the bodies.

    Attributes
    ----------
    outcomes : list of {"acked", "dead letter"}
    attempts : list of int
        How many attempts each message took.
    reasons : list of (str or None)
        Why each became a dead letter.
    letters : list of Outgoing
        The dead letters, as a publisher gets them.
    """

    outcomes: list[Literal["acked", "dead letter"]] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)
    letters: list[Outgoing] = field(default_factory=list)


def run_once(
    handler: Handler, bodies: Iterable[bytes | Outgoing], *, threads: int = 1, attempts_max: int = 3, **options: Any
) -> Handled:
    """Run a handler with a consumer of a broker in memory, until each message is acked or a dead letter.

    Parameters
    ----------
    handler : callable
        As for `Consumer.run`; a coroutine function, as for `Consumer.run_async`.
    bodies : iterable of (bytes or Outgoing)
        An `Outgoing` has headers, too.
    threads : int
        Or coroutines at a time.
    attempts_max : int
    **options
        More of `Consumer`, such as `decode`. Another attempt comes at once, unless `backoff_secs` says otherwise.

    Returns
    -------
    Handled

    Raises
    ------
    ArgumentTypeError
        `bodies` is one body and no list of them, or one of them is no bytes.
    BaseException
        A handler raised what is no `Exception`.
    """
    broker, letters, attempts = MemoryBroker(), MemoryPublisher(), dict[str, int]()
    messages = [body if isinstance(body, Outgoing) else Outgoing(body) for body in listed("bodies", bodies)]
    for message in messages:
        broker.publish([message.value], message.headers)
    source = MemorySource(broker)
    options = {"backoff_secs": 0.0, "dead_letters": letters, "attempts_max": attempts_max, **options}
    consumer: Consumer[Any] = Consumer(source, **options)
    with _stopped_when_done(broker, consumer):
        if inspect.iscoroutinefunction(handler):
            import asyncio

            asyncio.run(consumer.run_async(_counting_async(handler, attempts), tasks=threads))
        else:
            consumer.run(_counting(handler, attempts), threads=threads)
    handled = Handled()
    by_key = {letter.headers["acker-key"]: letter for letter in letters.published}
    for key in (f"{source.name}/{number}" for number in range(len(messages))):
        letter = by_key.get(key)
        if letter is not None:
            handled.letters.append(letter)
        handled.outcomes.append("acked" if letter is None else "dead letter")
        handled.attempts.append(attempts[key] if letter is None else letter.headers["acker-attempts"])
        handled.reasons.append(None if letter is None else letter.headers["acker-reason"])
    return handled


def _counting(handler: Handler, attempts: dict[str, int]) -> Handler:
    @functools.wraps(handler)
    def handle(message: Message[Any]) -> object:
        attempts[message.key] = message.attempt
        return handler(message)

    return handle


def _counting_async(handler: Handler, attempts: dict[str, int]) -> Callable[[Message[Any]], Coroutine[Any, Any, Any]]:
    @functools.wraps(handler)
    async def handle(message: Message[Any]) -> object:
        attempts[message.key] = message.attempt
        return await handler(message)  # type: ignore[misc]

    return handle


@contextmanager
def _stopped_when_done(broker: MemoryBroker, consumer: Consumer[Any]) -> Iterator[None]:
    """Stop a consumer as soon as a broker has no message left, which takes no time."""
    is_over = threading.Event()

    def wait() -> None:
        broker.wait_until(lambda broker: is_over.is_set() or not broker.left(), threading.TIMEOUT_MAX)
        consumer.stop()

    thread = threading.Thread(target=wait, name="run_once", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with broker.changed:
            is_over.set()
            broker.changed.notify_all()
        thread.join()
