"""The contract of a publisher: messages to a broker, each confirmed before it counts as written.

`PublishBolt` and the dead letters of a `Consumer` use the same publishers.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass(slots=True, frozen=True)
class Outgoing:
    """One message to publish.

    Attributes
    ----------
    value : bytes
    key : bytes, optional
        The key of the message, for brokers that choose a partition by it.
    headers : mapping of str to str, bytes, int, float, bool or None
        A broker whose headers are texts or bytes only gets texts.
    to : str, optional
        The topic, routing key, stream or queue, instead of that of the publisher.
    """

    value: bytes
    key: bytes | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    to: str | None = None


class Publisher(abc.ABC):
    """Writes messages to one broker. One thread at a time calls its methods; it may be another one for each call.

    `open` and `close` are called by `with`, too.

    Attributes
    ----------
    name : str
        Names the publisher in logs and reports, without secrets.
    """

    name: str

    @abc.abstractmethod
    def open(self) -> None:
        """Connect.

        Raises
        ------
        SourceError
            A mistake in the configuration.
        ConnectionLostError
            The broker cannot be reached now.
        """

    @abc.abstractmethod
    def publish(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Write messages, and wait until the broker has answered for each, or a timeout is over.

        A lost connection is opened again by the next call.

        Returns
        -------
        list of Exception or None
            One for each message: None when the broker has confirmed it; else a `PublishError` that says why not. Such
            a message may have been written nevertheless. Nothing else is raised for a fault of broker or network.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnect. It raises nothing, and may be called again or before `open`."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.name}>"
