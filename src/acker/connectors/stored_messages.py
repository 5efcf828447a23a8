"""Sources of messages that stay where they are until they are removed: a file, a table, a stream without a group."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from acker.connectors.source import Delivery, Source, SourceEvents


class StoredMessages(Source):
    """Reads each message once and takes it away from nobody; an ack removes it. For dead letters.

    Parameters
    ----------
    name : str

    Attributes
    ----------
    is_at_end : bool
        Whether all that was there has been read.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_at_end = False

    def open(self, events: SourceEvents, limit: int) -> None:  # noqa: ARG002
        """Connect, and begin with the first message."""
        self.is_at_end = False
        self.connect()

    def poll(self, limit: int, wait_secs: float) -> Sequence[Delivery]:  # noqa: ARG002
        """Return the next messages; it never waits."""
        if limit <= 0 or self.is_at_end:
            return ()
        found = self.read(limit)
        self.is_at_end = not found
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Remove messages."""
        if deliveries:
            self.remove(deliveries)

    def check_removal(self) -> None:
        """Raise what `remove` would, if no message can be removed here; called after the first `read`."""
        self.remove(())

    @abc.abstractmethod
    def connect(self) -> None:
        """Do the work of `open`."""

    @abc.abstractmethod
    def read(self, limit: int) -> Sequence[Delivery]:
        """Return at most so many messages behind those that were read; none at the end."""

    @abc.abstractmethod
    def remove(self, deliveries: Sequence[Delivery]) -> None:
        """Remove messages, and return when the broker has answered."""
