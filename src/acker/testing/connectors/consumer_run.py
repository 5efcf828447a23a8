"""A consumer that works while a scenario looks at it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

from acker.connectors.consumer import Consumer
from acker.connectors.handles import Message
from acker.connectors.source import Source
from acker.testing.connectors.harness import SourceHarness
from acker.testing.connectors.watched import WatchedSource

_LOOK_SECS = 0.02


def wait_until(condition: Callable[[], object], what: str, timeout_secs: float) -> None:
    """Wait until a condition holds; `AssertionError` that says what did not happen.

    The last look begins after the end of the time: a look that takes long, such as one at a broker that restarts, may
    have begun before what it waits for.
    """
    deadline = time.monotonic() + timeout_secs
    is_last = False
    while not condition():
        if is_last:
            raise AssertionError(f"not in {timeout_secs:g} s: {what}")
        is_last = time.monotonic() >= deadline
        time.sleep(_LOOK_SECS)


class ConsumerRun:
    """A consumer of a harness's queue, with threads that hand each message to a function.

    Parameters
    ----------
    harness : SourceHarness
    handle : callable, optional
        Gets each message. By default messages stay open, in `messages`.
    threads : int
    source : Source, optional
        By default a new one of the harness.
    **options
        Those of `Consumer`. Back-off and drain are short unless they are named.

    Attributes
    ----------
    consumer : Consumer
    source : WatchedSource
    messages : list of Message
        All that were handed out, in this order.
    """

    def __init__(
        self,
        harness: SourceHarness,
        handle: Callable[[Message[bytes]], object] | None = None,
        *,
        threads: int = 1,
        source: Source | None = None,
        **options: Any,
    ) -> None:
        self.harness = harness
        self.source = WatchedSource(source or harness.source())
        defaults = {"backoff_secs": 0.01, "backoff_secs_max": 0.05, "drain_secs": harness.drain_secs}
        self.consumer = Consumer(self.source, **{**defaults, **options})
        self.messages: list[Message[bytes]] = []
        self._handle = handle
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]

    def _work(self) -> None:
        try:
            for message in self.consumer:
                self.messages.append(message)
                if self._handle is not None:
                    self._handle(message)
        except BaseException as error:  # noqa: BLE001 - raised by `wait` and `close`
            self._errors.append(error)

    def __enter__(self) -> Self:
        self.consumer.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # A scenario that has failed already fails with its own error.
        self.close(check=kind is None)

    def close(self, *, check: bool = True) -> None:
        """Close the consumer, and fail if the source has broken its contract."""
        self.consumer.close()
        for thread in self._threads:
            thread.join(self.harness.patience_secs)
        if check:
            self.check()
            assert not any(thread.is_alive() for thread in self._threads), "a thread still waits for messages"

    def check(self) -> None:
        """Raise what a thread has raised; fail if the source has broken its contract."""
        if self._errors:
            raise self._errors[0]
        assert not self.source.violations, "; ".join(self.source.violations)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds."""

        def holds() -> bool:
            self.check()
            return bool(condition())

        secs = self.harness.patience_secs
        try:
            wait_until(holds, what, secs)
        except AssertionError as error:
            state = f"{len(self.messages)} messages came, {len(self.consumer)} are open, {self.harness.left()} are left"
            raise AssertionError(f"{error} ({state}; {dict(self.source.calls)})") from None

    def wait_for(self, values: Collection[bytes]) -> list[Message[bytes]]:
        """Wait until each value was handed out; return the latest message of each."""
        self.wait(lambda: set(values) <= set(self.values()), f"{len(values)} messages arrive")
        latest = {message.value: message for message in list(self.messages)}
        return [latest[value] for value in values]

    def wait_again(self, message: Message[bytes]) -> Message[bytes]:
        """Wait until a value is handed out once more, after `message`; return the new message."""

        def later() -> list[Message[bytes]]:
            handed_out = list(self.messages)
            after = handed_out[handed_out.index(message) + 1 :]
            return [other for other in after if other.value == message.value]

        self.wait(later, f"{message.value!r} comes again")
        return later()[0]

    def wait_empty(self) -> None:
        """Wait until the broker has no message left."""
        self.wait(lambda: self.harness.left() == 0, "all messages are acked")

    def ack_rest(self, first: int) -> None:
        """Ack each message that was or is handed out, from this index of `messages` on, until the broker is empty."""
        while True:
            arrived = self.messages[first:]
            ack_all(arrived)
            first += len(arrived)
            done = first
            self.wait(lambda: len(self.messages) > done or not self.harness.left(), "the rest is acked")  # noqa: B023
            if len(self.messages) == first:
                return

    def wait_polls(self, count: int) -> None:
        """Wait for `count` further polls. A message that has not come by then is not expected any more."""
        target = self.source.calls["poll"] + count
        self.wait(lambda: self.source.calls["poll"] >= target, f"{count} polls")

    def values(self) -> list[bytes]:
        """Return the values that were handed out."""
        return [message.value for message in list(self.messages)]


def ack_all(messages: Sequence[Message[bytes]]) -> None:
    """Ack messages."""
    for message in messages:
        message.ack()


def consume_rest(harness: SourceHarness) -> set[bytes]:
    """Ack all that is left with a new consumer; return the values that came."""
    with ConsumerRun(harness, lambda message: message.ack()) as run:
        run.wait_empty()
        return set(run.values())
