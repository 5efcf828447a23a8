"""The contract of a publisher: messages to a broker, each confirmed before it counts as written.

`PublishBolt` and the dead letters of a `Consumer` use the same publishers.
"""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from acker.connectors.calls import is_traced
from acker.connectors.headers import TOKEN
from acker.connectors.source import Source
from acker.errors import ArgumentValueError, BusyError, ForkedError, PublishError, exception_text

if TYPE_CHECKING:
    from acker.remote.jobs import Part


@dataclass(slots=True, frozen=True)
class Outgoing:
    """One message to publish.

    Attributes
    ----------
    value : bytes
    key : bytes, optional
        Kafka chooses the partition by it, and SQS has a group for each in FIFO queues. PostgreSQL keeps it in the
        column ``key``. In RabbitMQ, Redis Streams and NATS, which know no keys, it becomes the header ``key``.
    headers : mapping of str to str, bytes, int, float, bool or None
        A broker whose headers are texts or bytes only gets texts.
    to : str, optional
        The topic, routing key, stream or queue, instead of that of the publisher.
    properties : mapping of str to Any, optional
        Those that RabbitMQ has beside headers, such as ``correlation_id``; other brokers have none, and get none.
    """

    value: bytes
    key: bytes | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    to: str | None = None
    properties: Mapping[str, Any] | None = None


class _OneThread:
    """Lets one thread in at a time, of the process that was the first to come; a pickled copy begins anew.

    Attributes
    ----------
    is_foreign : bool
        Whether it belongs to another process, from which this one was forked.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()
        self._is_inside = False
        self._process: int | None = None

    def __reduce__(self) -> tuple[type[_OneThread], tuple[str]]:
        return _OneThread, (self._name,)

    @property
    def is_foreign(self) -> bool:
        return self._process not in (None, os.getpid())

    def __enter__(self) -> None:
        if self._process is None:
            self._process = os.getpid()
        elif self.is_foreign:  # Before the lock, which a thread of the other process may have held.
            raise ForkedError(f"publisher of {self._name}", self._process, "make a publisher in each process")
        self._lock.acquire()
        if self._is_inside:
            self._lock.release()
            raise BusyError(f"{self._name}: a signal's handler calls the publisher that it has interrupted")
        self._is_inside = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_inside = False
        self._lock.release()


class Publisher(abc.ABC):
    """Writes messages to one broker. `open` and `close` are called by `with`, too.

    Threads may share a publisher: each call waits until the others have ended. Processes may not: one that is forked
    from the process that uses it makes its own. A subclass calls `super().__init__` and writes `connect`, `write` and
    `disconnect`, which are called by one thread at a time; it may be another one for each call.

    Parameters
    ----------
    name : str

    Attributes
    ----------
    name : str
        Names the publisher in logs and reports, without secrets.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._one_thread = _OneThread(name)

    def open(self) -> None:
        """Connect.

        Raises
        ------
        SourceError
            A mistake in the configuration.
        ConnectionLostError
            The broker cannot be reached now.
        ForkedError
            The process that uses this publisher is another one.
        """
        with self._one_thread:
            self.connect()

    def publish(self, messages: Sequence[Outgoing], part: Part | None = None) -> list[Exception | None]:
        """Write messages, and wait until the broker has answered for each, or a timeout is over.

        A lost connection is opened again by the next call.

        Parameters
        ----------
        messages : sequence of Outgoing
        part : Part, optional
            Such as the message that this is done for, or `acker.remote.current`: give each message a token, so that
            its tree waits until a `Consumer` with `follow` is done with them all. If one is not confirmed, the tree
            fails.

        Returns
        -------
        list of Exception or None
            One for each message: None when the broker has confirmed it; else a `PublishError` that says why not. Such
            a message may have been written nevertheless.

        Raises
        ------
        ForkedError
            The process that uses this publisher is another one. Nothing is raised for an error of broker or network.
        TupleStateError, RuntimeStateError, JobsError
            The part gives no token; nothing is published.
        """
        part = None if part is None else _awaiting(part)
        if part is not None:
            messages = [self._with_token(message, part) for message in messages]
        if is_traced():
            from acker.connectors.tracing import trace_headers

            own = trace_headers()
            messages = [replace(message, headers={**message.headers, **own}) for message in messages]
        if part is None:
            with self._one_thread:
                return self.write(messages)
        refused: BaseException | None
        try:
            with self._one_thread:
                errors = self.write(messages)
            refused = next((error for error in errors if error is not None), None)
        except BaseException as error:
            refused = error
            raise
        finally:
            if refused is not None:
                part.not_sent(f"a message for {self.name} is not confirmed: {exception_text(refused)}")
        return errors

    def _with_token(self, message: Outgoing, part: Part) -> Outgoing:
        name = self.name if message.to is None else f"{self.name}, {message.to}"
        return replace(message, headers={**message.headers, TOKEN: part.token(name)})

    def close(self) -> None:
        """Disconnect. It raises nothing, and may be called again or before `open`.

        In a forked process it does nothing: the connection belongs to the other process.
        """
        if not self._one_thread.is_foreign:
            with self._one_thread:
                self.disconnect()

    def reader(self, *, lease_secs: float = 60.0) -> Source:  # noqa: ARG002
        """Return a new source of the messages that lie where this publisher writes, for `DeadLetters`.

        Parameters
        ----------
        lease_secs : float
            For how long the broker leaves a message with this reader, where it has leases.

        Raises
        ------
        ArgumentValueError
            This publisher knows none.
        """
        raise ArgumentValueError(f"{self.name}: nobody can read here: its class has no reader()")

    @abc.abstractmethod
    def connect(self) -> None:
        """Do the work of `open`."""

    @abc.abstractmethod
    def write(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Do the work of `publish`."""

    @abc.abstractmethod
    def disconnect(self) -> None:
        """Do the work of `close`."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _awaiting(part: Part) -> Part | None:
    """Return the part that awaits jobs; None for that of `acker.remote.detached`."""
    from acker.remote.jobs import DETACHED  # which whoever has a part has imported

    return None if part is DETACHED else part


def unconfirmed(error: Exception) -> PublishError:
    """Return the error of a message that is not confirmed because of another error."""
    publish_error = PublishError(str(error))
    publish_error.__cause__ = error
    return publish_error
