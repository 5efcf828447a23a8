"""A publisher in memory that can be told to refuse, to fail and to block."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from acker.connectors.publisher import Outgoing, Publisher, unconfirmed
from acker.errors import ConnectionLostError, PublishError
from acker.testing.connectors.broker import MemoryBroker


@dataclass(slots=True)
class _Plan:
    """The faults planned for the next messages of a `MemoryPublisher`."""

    refuse: int = 0
    fail: int = 0
    unreachable: int = 0
    going: threading.Event = field(default_factory=threading.Event)


class MemoryPublisher(Publisher):
    """A publisher that keeps messages in a list, and can be told to refuse, to fail and to block.

    Parameters
    ----------
    broker : MemoryBroker, optional
        Gets the messages, too.
    name : str

    Attributes
    ----------
    published : list of Outgoing
        The messages that were written, those of `fail` included.
    calls : Counter
        How often each method was called.
    """

    def __init__(self, broker: MemoryBroker | None = None, *, name: str = "memory publisher") -> None:
        super().__init__(name)
        self.published: list[Outgoing] = []
        self.calls: Counter[str] = Counter()
        self._broker = broker
        self._plan = _Plan()
        self._plan.going.set()
        self._opened = False

    def refuse(self, count: int = 1) -> None:
        """Refuse the next so many messages; they are not written."""
        self._plan.refuse += count

    def fail(self, count: int = 1) -> None:
        """Write the next so many messages, and report an error for them nevertheless."""
        self._plan.fail += count

    def be_unreachable(self, times: int = 1) -> None:
        """Raise `ConnectionLostError` in the next so many calls of `open`."""
        self._plan.unreachable += times

    def block(self) -> None:
        """Answer no call of `publish` until `unblock`."""
        self._plan.going.clear()

    def unblock(self) -> None:
        """End `block`."""
        self._plan.going.set()

    def connect(self) -> None:
        """Connect."""
        self.calls["open"] += 1
        if self._plan.unreachable:
            self._plan.unreachable -= 1
            raise ConnectionLostError(f"{self.name}: cannot be reached")
        self._opened = True

    def write(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Write messages."""
        self.calls["publish"] += 1
        self._plan.going.wait()
        if not self._opened:
            try:
                self.connect()
            except ConnectionLostError as error:
                return [unconfirmed(error) for _ in messages]
        return [self._write(message) for message in messages]

    def disconnect(self) -> None:
        """Disconnect."""
        self.calls["close"] += 1
        self._opened = False

    def _write(self, message: Outgoing) -> Exception | None:
        if self._plan.refuse:
            self._plan.refuse -= 1
            return PublishError(f"{self.name} refuses the message")
        if self._broker is not None:
            self._broker.publish([message.value], message.headers)
        self.published.append(message)
        if self._plan.fail:
            self._plan.fail -= 1
            return PublishError(f"{self.name} has not confirmed the message")
        return None
