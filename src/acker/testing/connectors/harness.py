"""The harness of a broker, which the author of a source writes for the conformance kit."""

from __future__ import annotations

import abc
import unittest
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Never

from acker.connectors.publisher import Publisher
from acker.connectors.source import Source


class NotApplicable(unittest.SkipTest):
    """A scenario needs something that this broker or its harness does not have. pytest and unittest report a skip."""


class SourceHarness(abc.ABC):
    """One fresh queue of a broker, for one scenario.

    Three methods are needed. Each further one makes more scenarios applicable; those that need a missing one raise
    `NotApplicable` with its name.

    Attributes
    ----------
    patience_secs : float
        The longest wait for something that has to happen. A wait that takes this long is a failure.
    drain_secs : float
        How long the end of a consumer waits for messages that a scenario has left open.
    secret : str or None
        A password in the configuration; it must not appear in names, reprs and errors.
    bodies : sequence of bytes
        Bodies that have to arrive unchanged. Take out what the broker cannot carry, such as an empty body.
    keeps_headers : bool
    counts_attempts : bool
        Whether a message that comes back from the broker has an attempt above 1.
    counts_releases : bool
        Whether this holds, too, for a message that `Source.release` gave back.
    is_log : bool
        Whether the broker keeps one position instead of one ack a message, and so delivers messages after an open one
        again, although they were acked.
    is_stateless : bool
        Whether sources connect for each request, or their client does it for them, so that a cut connection is none of
        their business.
    many : int
        Number of messages in scenarios with many of them.
    lease_secs : float
        For how long leases last, where there are any. The kit makes them long for scenarios in which none has to end: a
        machine that stands still for seconds would lose them.
    takes_over_secs : float or None
        After how many seconds another consumer gets the messages of one that stands still but stays connected. None:
        never.

    Examples
    --------
    >>> from acker.testing.connectors import MemoryBroker, MemorySource, SourceHarness
    >>> class MemoryHarness(SourceHarness):
    ...     def __init__(self):
    ...         self.broker = MemoryBroker()
    ...
    ...     def source(self):
    ...         return MemorySource(self.broker)
    ...
    ...     def publish(self, values, headers=None):
    ...         self.broker.publish(values, headers)
    ...
    ...     def left(self):
    ...         return self.broker.left()
    """

    patience_secs: ClassVar[float] = 60.0
    drain_secs: ClassVar[float] = 5.0
    secret: ClassVar[str | None] = None
    bodies: ClassVar[Sequence[bytes]] = (b"", b"plain", "größer".encode(), bytes(range(256)), b"x" * 1_000_000)
    keeps_headers: ClassVar[bool] = True
    counts_attempts: ClassVar[bool] = True
    counts_releases: ClassVar[bool] = True
    is_log: ClassVar[bool] = False
    is_stateless: ClassVar[bool] = False
    many: ClassVar[int] = 500
    takes_over_secs: ClassVar[float | None] = None
    lease_secs: float = 3.0

    @abc.abstractmethod
    def source(self) -> Source:
        """Return a new source of this harness's queue. Let leases, where there are any, last for `lease_secs`."""

    @abc.abstractmethod
    def publish(self, values: Sequence[bytes], headers: Mapping[str, Any] | None = None) -> None:
        """Write messages, and return when the broker has them. The client's own means will do."""

    @abc.abstractmethod
    def left(self) -> int:
        """Return how many messages are not settled, delivered or not; in a log, those after the committed position."""

    def close(self) -> None:
        """Delete the queue and disconnect. The scenarios do not call it: the fixture does."""
        return

    def cut(self) -> None:
        """Break all connections of the sources, as a failing network does. They may connect again at once."""
        self._lacks("cut")

    def restart(self) -> None:
        """Restart the broker, and return when it can be reached again."""
        self._lacks("restart")

    def stalled(self) -> AbstractContextManager[object]:
        """Return a context in which no byte passes between sources and broker, although connections stay."""
        self._lacks("stalled")

    def unreachable(self) -> AbstractContextManager[object]:
        """Return a context in which nobody can connect to the broker."""
        self._lacks("unreachable")

    def rebalance(self) -> None:
        """Let the broker take all deliveries away from the sources, politely."""
        self._lacks("rebalance")

    def take_back(self) -> None:
        """Let the leases of all deliveries end."""
        self._lacks("take_back")

    def mistakes(self) -> Sequence[Source]:
        """Return sources that can never open: an unknown queue, wrong credentials."""
        self._lacks("mistakes")

    def given_up(self) -> Sequence[bytes]:
        """Return the bodies in the broker's own place for dead letters. For sources with `can_give_up`."""
        self._lacks("given_up")

    def publisher(self) -> Publisher:
        """Return a publisher to this harness's queue."""
        self._lacks("publisher")

    def publisher_to_nowhere(self) -> Publisher:
        """Return a publisher whose messages the broker refuses, for instance since the queue does not exist."""
        self._lacks("publisher_to_nowhere")

    def needs(self, *methods: str) -> None:
        """Raise `NotApplicable` unless this harness has these methods."""
        for method in methods:
            if getattr(type(self), method) is getattr(SourceHarness, method):
                self._lacks(method)

    def _lacks(self, method: str) -> Never:
        raise NotApplicable(f"{type(self).__name__} has no {method}()")
