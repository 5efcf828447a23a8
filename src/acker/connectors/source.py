"""The contract of a source: what a consumer needs from a broker.

A `Source` knows deliveries and nothing of trees. One thread, the I/O thread of a `Consumer` or of a `SourceSpout`,
calls all its methods, except `wake`. So a source needs no locks, and a client that belongs to one thread fits.

`acker.testing.connectors` runs the promises of docs/promises.md against any source.
"""

from __future__ import annotations

import abc
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from acker._handles import DeliveryBase
from acker.errors import ArgumentTypeError, ArgumentValueError, ForkedError, RuntimeStateError

# A source that has sent nothing for so long counts as empty; and how much of it one poll may be.
_QUIET_SECS: Final = 1.0
_QUIET_SECS_A_LOOK: Final = 0.75


class Silence:
    """For how long a source has sent nothing, which says after a second that it is empty.

    A process that stood still has heard nothing meanwhile. So of the time between two looks a part counts at most.

    Attributes
    ----------
    left_secs : float
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin anew: something came, or nothing could come."""
        self.left_secs, self._looked_at = _QUIET_SECS, time.monotonic()

    def has_lasted(self) -> bool:
        """Look, after a poll that brought nothing; return whether the source is empty."""
        now = time.monotonic()
        self.left_secs -= min(now - self._looked_at, _QUIET_SECS_A_LOOK)
        self._looked_at = now
        return self.left_secs <= 0.0


class Delivery(DeliveryBase):
    """One delivery of a message by a broker. Two deliveries are never equal, even of the same message.

    Attributes
    ----------
    key : str
        Names the message for people, as ``orders/3@17`` does for an offset. Logs and dead letters show it.
    value : bytes
        The body, as the broker sent it.
    headers : mapping of str to Any
    attempt : int
        1 for the first delivery, more where the broker counts deliveries. Where it does not count them, a source says
        1, or 2 for a message that the broker marks as redelivered.
    raw : Any
        The client's own object.
    receipt : Any
        What the source needs to settle this delivery: a channel and a tag, a partition and an offset, an entry id.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key}, attempt {self.attempt}>"


class Origin(NamedTuple):
    """Where a message came from, for a copy of it that is to go there.

    Attributes
    ----------
    to : str or None
        As `Outgoing.to`; None for the place of `Source.publisher`.
    key : bytes or None
        As `Outgoing.key`.
    properties : mapping of str to Any, or None
        As `Outgoing.properties`.
    """

    to: str | None = None
    key: bytes | None = None
    properties: Mapping[str, Any] | None = None


class SourceEvents(Protocol):
    """The calls of a source to its consumer, from within `Source.poll` and `Source.close` only."""

    def finish(self, concerned: Callable[[Delivery], bool], secs: float) -> None:
        """Let the open messages of these deliveries end, and ack those that do, for at most so many seconds.

        For a rebalance: call it before the last commit. Meanwhile the consumer calls `Source.ack` and `Source.extend`,
        and never `Source.poll`.
        """

    def revoked(self, concerned: Callable[[Delivery], bool]) -> None:
        """Forget these deliveries: the broker gives them to someone else. Their outcomes are counted and dropped."""


class Source(abc.ABC):
    """One broker, seen by one consumer at a time.

    A method that loses the connection raises `ConnectionLostError`. The consumer then calls `close` and, after a
    back-off, `open`; the object must be able to start anew. A mistake that no second attempt mends, such as an unknown
    queue or wrong credentials, is a `SourceError`, and ends the consumer.

    Attributes
    ----------
    name : str
        Names the source in logs and reports, as ``RabbitMQ queue 'jobs'`` does. It holds no secrets.
    lease_secs : float or None
        For how long the broker leaves a delivery with this consumer. The consumer calls `extend` three times in that
        time. None: as long as the connection lives.
    redelivers : bool
        Whether the broker itself delivers failed messages again, so that each delivery counts as an attempt. Otherwise
        the consumer counts attempts, and the broker's count tells only whether a message kills its consumers.
    wait_secs_max : float
        The longest wait that `poll` can be asked for. Short where `wake` cannot end a wait.
    late_acks : int
        How many acks came too late so far: the broker had given the messages to others. They count as revoked.
    keeps_order : bool
        Whether the broker promises the order of messages with the same `order_key`, so that a consumer keeps it unless
        its options say otherwise.
    """

    name: str
    lease_secs: float | None = None
    redelivers: bool = False
    wait_secs_max: float = 0.05
    late_acks: int = 0
    keeps_order: bool = False

    @abc.abstractmethod
    def open(self, events: SourceEvents, limit: int) -> None:
        """Connect and subscribe.

        Parameters
        ----------
        events : SourceEvents
        limit : int
            The most deliveries that will be unsettled at a time, such as a prefetch count.

        Raises
        ------
        SourceError
            A mistake in the configuration. The text names what is wrong, and no secret.
        ConnectionLostError
            The broker cannot be reached now.
        """

    @abc.abstractmethod
    def poll(self, limit: int, wait_secs: float) -> Sequence[Delivery]:
        """Return at most `limit` deliveries; wait for the first one for at most `wait_secs`.

        It is called again and again, also with a `limit` of 0 while too many messages are open. So heartbeats,
        rebalances and commits belong here. With a limit of 0 it sends the acks that wait: the message that is handed
        out next may end the process.

        Raises
        ------
        ConnectionLostError, SourceError
        """

    @abc.abstractmethod
    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Tell the broker that these messages are done. Only deliveries that `holds` are passed, each once.

        The source may send the acks later, at the latest in `close`: a commit may lag, and never run ahead.

        Raises
        ------
        ConnectionLostError
            Deliveries that `holds` after the next `open` are passed again.
        """

    def count_unacked(self, done: Sequence[Delivery]) -> int:
        """Return how many messages are done and not acked: `done`, and those whose acks wait in this object.

        Any thread may call it, also after `close`: at an end that the broker does not answer.
        """
        return len(done)

    def retry(self, delivery: Delivery, delay_secs: float) -> bool:  # noqa: ARG002
        """Let the broker deliver the message again after a delay; return whether it does.

        False, as here: the broker has no delay. The consumer then keeps the delivery and its lease, and hands the
        message out again itself.
        """
        return False

    def give_up(self, delivery: Delivery, reason: str) -> None:
        """Move a message that failed too often to the broker's own place for such messages.

        Raises
        ------
        NotImplementedError
            The broker has no such place. `can_give_up` says so beforehand.
        """
        raise NotImplementedError(f"{self.name} has no place for dead letters of its own: set dead_letters=")

    @property
    def can_give_up(self) -> bool:
        """Whether `give_up` keeps the message somewhere."""
        return False

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:  # noqa: ARG002
        """Renew the leases of these deliveries; return those that the broker has given to someone else meanwhile."""
        return ()

    def release(self, deliveries: Sequence[Delivery]) -> None:  # noqa: B027
        """Give messages back that are not done, so that the broker delivers them again at once.

        It is called as soon as the consumer stops, also with no messages, and may be called again until `close`. From
        then on `poll` has a limit of 0: a source that the broker sends messages to unasked ends its subscription here.

        By default nothing happens: for brokers that take back all that a closed connection held.
        """

    def holds(self, delivery: Delivery) -> bool:  # noqa: ARG002
        """Return whether this delivery may still be acked.

        False when its channel, its assignment or its claim is gone: the broker delivers the message again.
        """
        return True

    def __init_subclass__(cls, **options: Any) -> None:
        """Let `held` ask the `holds` of this class, if a class above it answers for its own `holds` only."""
        super().__init_subclass__(**options)
        first = next(each for each in cls.__mro__ if vars(each).keys() & {"holds", "held"})
        if "held" not in vars(first):
            cls.held = Source.held  # type: ignore[method-assign]

    def held(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return those of many deliveries that `holds` is true of, in their order.

        A class may answer for many at once. One below it that overrides `holds` alone is asked for each.
        """
        if type(self).holds is Source.holds:
            return deliveries
        return [each for each in deliveries if self.holds(each)]

    def order_key(self, delivery: Delivery) -> Hashable:  # noqa: ARG002
        """Return the key by which the broker orders messages; None for a message that it does not order."""
        return None

    @property
    def is_receiving(self) -> bool:
        """Whether the broker sends messages by now, so that silence means that it has none."""
        return True

    def wake(self) -> None:  # noqa: B027
        """End a `poll` that waits, if the client can. Any thread may call it, at any time, also after `close`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Send acks that wait, and disconnect. It raises nothing, and may be called again or before `open`."""

    def origin(self, delivery: Delivery) -> Origin:  # noqa: ARG002
        """Return where a message came from, for its dead letter. Any thread may call it."""
        return Origin()

    def publisher(self) -> Any:
        """Return a new publisher to where this source reads, for dead letters that are to be tried again.

        Returns
        -------
        Publisher
            Whose type has no place in this module, which the module of publishers needs.

        Raises
        ------
        ArgumentValueError
            This source knows none.
        """
        raise ArgumentValueError(f"{self.name} has no publisher of its own: give one that leads there, by to=")

    def reserve(self) -> None:
        """Reserve this object for one consumer or spout, which calls it before `open`.

        Raises
        ------
        RuntimeStateError
            Another one uses it.
        ForkedError
            One of the process uses it from which this one was forked.
        """
        mine = _Reservation(os.getpid())
        # One call, so that of several threads only one is first.
        first = vars(self).setdefault("_reservation", mine)
        if first.process != mine.process:
            raise ForkedError(f"source of {self.name}", first.process, "make a source in each process")
        if first is not mine:
            raise RuntimeStateError(
                f"{self.name}: a consumer or spout that is not closed uses this source object; make a new source for"
                " each"
            )

    def free(self) -> None:
        """Allow another consumer to use this object."""
        vars(self).pop("_reservation", None)

    def __repr__(self) -> str:
        return f"<{self.name}>"


# The sources of acker by the schemes of their URLs.
_SOURCES: Final = {
    "amqp amqps": "rabbitmq.RabbitMQ(url, queue)",
    "redis rediss unix": "redis_streams.RedisStreams(url, stream=..., group=...)",
    "kafka": "kafka.Kafka(config, topics)",
    "nats tls": "nats.JetStream(url, stream=..., durable=...)",
    "postgresql postgres": "postgresql.PostgreSQL(url, table=...)",
    "http https": "sqs.SQS(url)",
}


def no_source_error(given: object) -> ArgumentTypeError:
    """Return the error of what was given in place of a source: which sources there are, and of a URL which one."""
    scheme = given.partition("://")[0] if isinstance(given, str) else ""
    meant = [source for schemes, source in _SOURCES.items() if scheme in schemes.split()] or list(_SOURCES.values())
    # Without the value, which may be a URL with a password.
    return ArgumentTypeError(
        f"source: expected a Source, got {type(given).__name__}; of acker.connectors there are {', '.join(meant)}"
        if len(meant) > 1
        else f"source: expected a Source, got the text of a URL; write acker.connectors.{meant[0]}"
    )


@dataclass(slots=True, frozen=True, eq=False)
class _Reservation:
    """Says that a source belongs to one consumer of a process."""

    process: int
