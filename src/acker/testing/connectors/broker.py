"""A broker in memory, for tests."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from acker.errors import ArgumentTypeError, ConnectionLostError


@dataclass(slots=True, eq=False)
class MemoryMessage:
    """One message in a `MemoryBroker`.

    Attributes
    ----------
    number : int
        0 for the first message of the broker.
    value : bytes
    headers : mapping of str to Any
    deliveries : int
        How often it was delivered.
    open : int
        How many of its deliveries are not settled.
    done : bool
        Whether it was acked or given up.
    """

    number: int
    value: bytes
    headers: Mapping[str, Any]
    deliveries: int = 0
    open: int = 0
    done: bool = False


@dataclass(slots=True, frozen=True)
class Claim:
    """Names one delivery to the broker. Tags begin at 1 again in each session, as those of RabbitMQ do."""

    session: int
    tag: int


@dataclass(slots=True)
class _Held:
    """A message that was delivered and is not settled."""

    message: MemoryMessage
    lease_end: float


class _Waiting:
    """The messages that are with the broker, in the order in which they are to be delivered."""

    def __init__(self) -> None:
        self.late_count = 0  # so many of the next ones become late
        self._numbers = itertools.count()
        self._new: deque[MemoryMessage] = deque()
        self._back: deque[MemoryMessage] = deque()  # before the new ones
        self._delayed: list[tuple[float, MemoryMessage]] = []
        self._late: deque[MemoryMessage] = deque()
        self._flood: Iterator[MemoryMessage] = iter(())
        self._flooding = 0
        self._flooded = range(0)

    def __len__(self) -> int:
        return len(self._new) + len(self._back) + len(self._delayed) + len(self._late) + self._flooding

    def append(self, value: bytes, headers: Mapping[str, Any]) -> None:
        """Add a new message."""
        self._new.append(MemoryMessage(next(self._numbers), value, headers))

    def flood(self, count: int, value: Callable[[int], bytes]) -> None:
        """Add new messages that are made when they are taken."""
        first = next(self._numbers)
        self._numbers = itertools.count(first + count)
        self._flooded = range(first, first + count)
        self._flood = (MemoryMessage(number, value(number - first), {}) for number in self._flooded)
        self._flooding = count

    def is_of_flood(self, message: MemoryMessage) -> bool:
        """Return whether a message was made by `flood`."""
        return message.number in self._flooded

    def put_back(self, message: MemoryMessage) -> None:
        """Return a message that was taken."""
        self._back.append(message)

    def delay(self, message: MemoryMessage, until: float) -> None:
        """Return a message that was taken, but not before a time."""
        self._delayed.append((until, message))

    def end_delays(self, now: float) -> None:
        """Return the messages whose time has come."""
        if self._delayed:
            self._back.extend(message for due, message in self._delayed if due <= now)
            self._delayed = [(due, message) for due, message in self._delayed if due > now]

    def end_lateness(self) -> None:
        """Add the late messages."""
        self.late_count = 0
        self._new.extend(self._late)
        self._late.clear()

    def take(self) -> MemoryMessage | None:
        """Return the next message, if there is one."""
        while True:
            if self._back:
                return self._back.popleft()
            message = self._new.popleft() if self._new else next(self._flood, None)
            if message is not None and self.is_of_flood(message):
                self._flooding -= 1
            if message is None or not self.late_count:
                return message
            self.late_count -= 1
            self._late.append(message)


class MemoryBroker:
    """A queue in memory. All threads may use it, and several sources at a time.

    Parameters
    ----------
    lease_secs : float, optional
        For how long a delivery stays with its source, whether that is connected or not. By default it stays until the
        source disconnects, as in RabbitMQ.
    delays : bool
        Whether the broker can deliver a message again after a delay, as SQS can: whether `Source.retry` returns True.
    dead_letters : bool
        Whether the broker has a place for dead letters: whether `Source.can_give_up`.
    counts_attempts : bool
        Whether deliveries say how many there were. Otherwise they say 1, and 2 for any further one.
    clock : callable
        Returns seconds; for leases and delays.

    Attributes
    ----------
    counts : Counter
        How many messages were published, delivered, acked, extended, released, retried and given_up; how many were
        "returned" because a session or a lease ended; and how many acks came for a delivery that was "unknown".
    acked : list of bytes
        The values that were acked, in their order. Not those of `flood`.
    given_up : list of (MemoryMessage, str)
        The dead letters, with their reasons.
    violations : list of str
        What a consumer did that the contract of `Source` forbids, such as acks of deliveries that the source does not
        hold. A test of a consumer asserts that it is empty.

    Examples
    --------
    >>> from acker.testing.connectors import MemoryBroker, MemorySource
    >>> broker = MemoryBroker()
    >>> broker.publish([b"one", b"two"])
    >>> source = MemorySource(broker)
    >>> source.lose("ack")  # the connection breaks when the next ack is sent
    >>> broker.left()
    2
    """

    def __init__(
        self,
        *,
        lease_secs: float | None = None,
        delays: bool = False,
        dead_letters: bool = False,
        counts_attempts: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease_secs = lease_secs
        self.delays = delays
        self.dead_letters = dead_letters
        self.counts_attempts = counts_attempts
        self.counts: Counter[str] = Counter()
        self.acked: list[bytes] = []
        self.given_up: list[tuple[MemoryMessage, str]] = []
        self.violations: list[str] = []
        self.changed = threading.Condition(threading.RLock())
        self._clock = clock
        self._session_numbers = itertools.count(1)
        self._sessions: set[int] = set()
        self._is_stopped = False
        self._waiting = _Waiting()
        self._held: dict[Claim, _Held] = {}
        self._twice = 0

    # Messages

    def publish(self, values: Iterable[bytes], headers: Mapping[str, Any] | None = None) -> None:
        """Append messages.

        Raises
        ------
        ArgumentTypeError
            It is one body and no list of them, or one of them is no bytes. Nothing is appended.
        """
        bodies = listed("values", values)
        for body in bodies:
            if not isinstance(body, bytes):
                fix = "body.encode()" if isinstance(body, str) else "json.dumps(body).encode()"
                raise ArgumentTypeError(
                    f"a body is bytes, as any broker has it, got {type(body).__name__}: write {fix}"
                )
        with self.changed:
            for value in bodies:
                self._waiting.append(value, dict(headers or {}))
                self.counts["published"] += 1
            self.changed.notify_all()

    def flood(self, count: int, value: Callable[[int], bytes] = lambda number: b"%d" % number) -> None:
        """Append so many messages that are made when they are delivered, so that a million of them needs no memory."""
        with self.changed:
            self._waiting.flood(count, value)
            self.counts["published"] += count
            self.changed.notify_all()

    def left(self) -> int:
        """Return how many messages are neither acked nor given up: those that wait, and those that were delivered."""
        with self.changed:
            held = len({held.message.number for held in self._held.values() if not held.message.done})
            return held + len(self._waiting)

    def held(self) -> int:
        """Return how many deliveries are not settled."""
        with self.changed:
            return len(self._held)

    def wait_until(self, condition: Callable[[MemoryBroker], object], timeout_secs: float = 60.0) -> None:
        """Wait until a condition of this broker holds; `AssertionError` with the counts when it does not in time."""
        with self.changed:
            if not self.changed.wait_for(lambda: condition(self), timeout_secs):
                raise AssertionError(f"not in {timeout_secs} s: {dict(self.counts)}, {self.left()} left")

    # Misbehaviour

    def deliver_twice(self, count: int) -> None:
        """Deliver each of the next so many messages twice at a time, as a queue without guarantees does."""
        with self.changed:
            self._twice += count

    def deliver_late(self, count: int) -> None:
        """Hold the next so many messages back until `deliver_now`."""
        with self.changed:
            self._waiting.late_count += count

    def deliver_now(self) -> None:
        """Deliver what `deliver_late` has held back."""
        with self.changed:
            self._waiting.end_lateness()
            self.changed.notify_all()

    def take_back(self, count: int | None = None) -> int:
        """End the leases of the oldest so many deliveries, or of all; return how many. Anyone may get them now."""
        with self.changed:
            claims = list(self._held)[:count]
            for claim in claims:
                self._return(claim)
            return len(claims)

    def cut(self) -> None:
        """Break all connections. The next call of each source raises `ConnectionLostError`."""
        with self.changed:
            for session in list(self._sessions):
                self.disconnect(session)
            self.changed.notify_all()

    def stop(self) -> None:
        """Break all connections, and refuse new ones until `start`."""
        with self.changed:
            self._is_stopped = True
            self.cut()

    def start(self) -> None:
        """End `stop`."""
        with self.changed:
            self._is_stopped = False

    # For sources

    def connect(self) -> int:
        """Return the number of a new session.

        Raises
        ------
        ConnectionLostError
            The broker is stopped.
        """
        with self.changed:
            if self._is_stopped:
                raise ConnectionLostError("the broker in memory is stopped")
            session = next(self._session_numbers)
            self._sessions.add(session)
            return session

    def is_connected(self, session: int) -> bool:
        """Return whether a session lives."""
        with self.changed:
            return session in self._sessions

    def disconnect(self, session: int) -> None:
        """End a session: without leases, its deliveries come back."""
        with self.changed:
            self._sessions.discard(session)
            if self.lease_secs is None:
                for claim in [claim for claim in self._held if claim.session == session]:
                    self._return(claim)

    def take(self, session: int, first_tag: int, limit: int) -> list[tuple[Claim, MemoryMessage]]:
        """Deliver at most `limit` messages to a session."""
        with self.changed:
            self._end_delays_and_leases()
            taken: list[tuple[Claim, MemoryMessage]] = []
            while len(taken) < limit:
                message = self._waiting.take()
                if message is None:
                    break
                copies = 2 if self._twice and len(taken) + 2 <= limit else 1
                self._twice -= copies - 1
                for _ in range(copies):
                    claim = Claim(session, first_tag + len(taken))
                    self._held[claim] = _Held(message, self._lease_end())
                    message.deliveries += 1
                    message.open += 1
                    self.counts["delivered"] += 1
                    taken.append((claim, message))
            if taken:
                self.changed.notify_all()
            return taken

    def knows(self, claim: Claim) -> bool:
        """Return whether a delivery is still with its source."""
        with self.changed:
            self._end_delays_and_leases()
            return claim in self._held

    def ack(self, claim: Claim) -> bool:
        """Settle a message; False, and counted as unknown, when the delivery is not known any more."""
        with self.changed:
            message = self._settle(claim, "acked")
            if message is not None and not message.done:
                message.done = True
                if not self._waiting.is_of_flood(message):
                    self.acked.append(message.value)
            return message is not None

    def retry(self, claim: Claim, delay_secs: float) -> bool:
        """Deliver a message again after a delay."""
        with self.changed:
            message = self._settle(claim, "retried")
            if message is not None and not message.done and not message.open:
                self._waiting.delay(message, self._clock() + delay_secs)
            return message is not None

    def give_up(self, claim: Claim, reason: str) -> bool:
        """Move a message to the dead letters."""
        with self.changed:
            message = self._settle(claim, "given_up")
            if message is not None and not message.done:
                message.done = True
                self.given_up.append((message, reason))
            return message is not None

    def extend(self, claim: Claim) -> bool:
        """Renew a lease; False when the message was taken back."""
        with self.changed:
            self._end_delays_and_leases()
            held = self._held.get(claim)
            if held is None:
                return False
            held.lease_end = self._lease_end()
            self.counts["extended"] += 1
            self.changed.notify_all()
            return True

    def release(self, claim: Claim) -> None:
        """Take a message back that is not done."""
        with self.changed:
            if claim in self._held:
                self.counts["released"] += 1
                self._return(claim)

    def _settle(self, claim: Claim, outcome: str) -> MemoryMessage | None:
        self._end_delays_and_leases()
        held = self._held.pop(claim, None)
        self.counts["unknown" if held is None else outcome] += 1
        self.changed.notify_all()
        if held is None:
            return None
        held.message.open -= 1
        return held.message

    def _return(self, claim: Claim) -> None:
        message = self._held.pop(claim).message
        message.open -= 1
        self.counts["returned"] += 1
        # A message that was delivered twice does not come back while the other delivery is open, or when it is acked.
        if not message.done and not message.open:
            self._waiting.put_back(message)
        self.changed.notify_all()

    def _lease_end(self) -> float:
        return float("inf") if self.lease_secs is None else self._clock() + self.lease_secs

    def _end_delays_and_leases(self) -> None:
        now = self._clock()
        self._waiting.end_delays(now)
        if self.lease_secs is not None:
            for claim in [claim for claim, held in self._held.items() if held.lease_end <= now]:
                self._return(claim)


def listed(name: str, bodies: Iterable[Any]) -> list[Any]:
    """Return bodies as a list; refuse a single one, whose bytes or characters would be the bodies."""
    if isinstance(bodies, bytes | bytearray | str):
        fix = "[body.encode()]" if isinstance(bodies, str) else "[body]"
        raise ArgumentTypeError(f"{name}: expected a list of bodies, got one {type(bodies).__name__}: write {fix}")
    return list(bodies)
