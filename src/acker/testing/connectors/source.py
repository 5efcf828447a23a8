"""A source of the broker in memory that can be told to misbehave."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from acker.connectors.source import Delivery, Source, SourceEvents
from acker.errors import ConnectionLostError, SourceError
from acker.testing.connectors.broker import Claim, MemoryBroker, MemoryMessage
from acker.testing.connectors.publisher import MemoryPublisher

Method = Literal["open", "poll", "ack", "retry", "give_up", "extend", "release", "close", "any"]


@dataclass(slots=True)
class _Fault:
    """An event planned for one or more calls of a method."""

    method: Method
    action: Callable[[], object]
    at: int
    times: int
    after: bool
    seen: int = 0

    def due(self, method: Method, *, after: bool) -> bool:
        """Count a call; return whether the fault is due in it."""
        is_named = self.method == method or (self.method == "any" and method not in {"open", "close"})
        if self.after != after or not is_named:
            return False
        self.seen += 1
        return self.at <= self.seen < self.at + self.times


class MemorySource(Source):
    """A source of a `MemoryBroker` that can be told to misbehave.

    Parameters
    ----------
    broker : MemoryBroker
    name : str
    lag : bool
        Acks are sent with the next `poll` or `close`, as commits of offsets are.

    Attributes
    ----------
    calls : Counter
        How often each method was called.
    connected : bool
    limit : int
        The limit that the consumer gave to `open`.
    """

    wait_secs_max = 0.1

    def __init__(self, broker: MemoryBroker, *, name: str = "memory", lag: bool = False) -> None:
        self.broker = broker
        self.name = name
        self.lease_secs = broker.lease_secs
        self.redelivers = broker.delays
        self.calls: Counter[str] = Counter()
        self.connected = False
        self.limit = 0
        self._lag = lag
        self._events: SourceEvents | None = None
        self._session = 0
        self._tags = 1
        self._acks: list[Delivery] = []
        self._woken = False
        self._rebalances: deque[tuple[Callable[[Delivery], bool], float]] = deque()
        self._faults: list[_Fault] = []
        self._inside: tuple[int, str] | None = None

    # Misbehaviour

    def on(
        self, method: Method, action: Callable[[], object], *, at: int = 1, times: int = 1, after: bool = False
    ) -> None:
        """Call `action` at the `at`-th call of a method from now on, and at the `times` - 1 calls after it.

        Parameters
        ----------
        method : str
                The name of a method of `Source`; "any" means all but `open` and `close`.
        action : callable
            What it raises, the method raises.
        at, times : int
        after : bool
            Call it when the method has had its effect, such as an ack whose answer is lost.
        """
        with self.broker.changed:
            self._faults.append(_Fault(method, action, at, times, after))

    def lose(self, method: Method = "any", *, at: int = 1, times: int = 1, after: bool = False) -> None:
        """Lose the connection at a call of a method; see `on`."""

        def lost() -> None:
            self._disconnect()
            raise ConnectionLostError(f"{self.name}: the connection was lost in {method}")

        self.on(method, lost, at=at, times=times, after=after)

    def refuse(self, times: int = 1) -> None:
        """Let the broker be out of reach for the next so many calls of `open`."""
        self.lose("open", times=times)

    def mistake(self, method: Method = "open", *, at: int = 1) -> None:
        """Raise `SourceError` at a call of a method, as for an unknown queue."""

        def wrong() -> None:
            raise SourceError(f"{self.name}: there is no such queue")

        self.on(method, wrong, at=at)

    def stall(self, method: Method = "any", *, at: int = 1, after: bool = False) -> threading.Event:
        """Do not answer at a call of a method until the event that this returns is set."""
        answer = threading.Event()
        self.on(method, answer.wait, at=at, after=after)
        return answer

    def rebalance(self, concerned: Callable[[Delivery], bool] | None = None, secs: float = 5.0) -> None:
        """Take deliveries away at the next `poll`: ask the consumer to finish them, and then to forget them.

        Parameters
        ----------
        concerned : callable, optional
            Says of a delivery whether it is taken away. By default all are.
        secs : float
            For how long the consumer may finish.
        """
        with self.broker.changed:
            self._rebalances.append((concerned or (lambda _: True), secs))
            self.broker.changed.notify_all()

    # The contract

    def open(self, events: SourceEvents, limit: int) -> None:
        """Begin a session."""
        with self._call("open"):
            self._events, self.limit = events, limit
            self._session = self.broker.connect()
            self._tags, self.connected = 1, True

    def poll(self, limit: int, wait_secs: float) -> Sequence[Delivery]:
        """Deliver messages."""
        with self._call("poll"):
            self._send_acks()
            while self._rebalances:
                self._take_away(*self._rebalances.popleft())
            deadline = time.monotonic() + min(wait_secs, self.wait_secs_max)
            while True:
                with self.broker.changed:
                    self._check_connection()  # `cut` ends the wait below, too
                    taken = self.broker.take(self._session, self._tags, limit)
                    left = deadline - time.monotonic()
                    if taken or self._woken or self._rebalances or left <= 0:
                        self._woken = False
                        break
                    # Leases and delays end without a notification.
                    self.broker.changed.wait(min(left, 0.02))
            self._tags += len(taken)
            return [self._delivery(claim, message) for claim, message in taken]

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle messages."""
        with self._call("ack"):
            self._acks.extend(self._known(deliveries, "ack"))
            if not self._lag:
                self._send_acks()

    def retry(self, delivery: Delivery, delay_secs: float) -> bool:
        """Deliver a message again after a delay, if the broker can."""
        with self._call("retry"):
            if self.broker.delays:
                for _ in self._known([delivery], "retry"):
                    self.broker.retry(delivery.receipt, delay_secs)
            return self.broker.delays

    def give_up(self, delivery: Delivery, reason: str) -> None:
        """Move a message to the broker's dead letters."""
        if not self.can_give_up:
            super().give_up(delivery, reason)
        with self._call("give_up"):
            for _ in self._known([delivery], "give_up"):
                self.broker.give_up(delivery.receipt, reason)

    @property
    def can_give_up(self) -> bool:
        """Whether the broker has a place for dead letters."""
        return self.broker.dead_letters

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Renew leases."""
        with self._call("extend"):
            return [delivery for delivery in deliveries if not self.broker.extend(delivery.receipt)]

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give messages back."""
        with self._call("release"):
            for delivery in deliveries:
                self.broker.release(delivery.receipt)

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the broker still knows the delivery."""
        return self.broker.knows(delivery.receipt)

    def wake(self) -> None:
        """End a wait."""
        with self.broker.changed:
            self._woken = True
            self.broker.changed.notify_all()

    def publisher(self) -> MemoryPublisher:
        """Return a publisher to the broker."""
        return MemoryPublisher(self.broker, name=f"publisher to {self.name}")

    def close(self) -> None:
        """End the session."""
        with self._call("close"):
            if self.connected:
                self._send_acks()
            self._disconnect()

    def _call(self, method: Method) -> _Call:
        return _Call(self, method)

    def enter(self, method: Method) -> None:
        """Count a call, note what the contract forbids, and run the faults that are due."""
        me = threading.get_ident()
        with self.broker.changed:
            self.calls[method] += 1
            inside = self._inside
            if inside is not None and (inside != (me, "poll") or method not in ("ack", "extend", "retry", "give_up")):
                self.broker.violations.append(f"{method} was called during {inside[1]}")
            if method not in {"open", "close"} and not self.connected:
                self.broker.violations.append(f"{method} was called without a connection")
            if inside is None:
                self._inside = (me, method)
        self.run_faults(method, after=False)
        if method not in {"open", "close"}:
            self._check_connection()

    def leave(self, method: Method) -> None:
        """Note the end of a call."""
        with self.broker.changed:
            if self._inside is not None and self._inside[1] == method:
                self._inside = None

    def run_faults(self, method: Method, *, after: bool) -> None:
        """Run the faults that are due; what they raise is raised."""
        with self.broker.changed:
            due = [fault for fault in self._faults if fault.due(method, after=after)]
        for fault in due:
            fault.action()

    def _check_connection(self) -> None:
        if self.connected and not self.broker.is_connected(self._session):
            self._disconnect()
            raise ConnectionLostError(f"{self.name}: the broker has broken the connection")

    def _known(self, deliveries: Sequence[Delivery], method: str) -> list[Delivery]:
        """Return the deliveries that the broker knows; the others are noted as violations."""
        known = []
        for delivery in deliveries:
            if delivery in self._acks or not self.broker.knows(delivery.receipt):
                self.broker.violations.append(f"{method} of {delivery.key}, which the source does not hold")
                self.broker.counts["unknown"] += 1
            else:
                known.append(delivery)
        return known

    def _send_acks(self) -> None:
        acks, self._acks = self._acks, []
        for delivery in acks:
            self.broker.ack(delivery.receipt)

    def _take_away(self, concerned: Callable[[Delivery], bool], secs: float) -> None:
        assert self._events is not None
        taken: list[Delivery] = []

        def noted(delivery: Delivery) -> bool:
            if concerned(delivery):
                taken.append(delivery)
                return True
            return False

        self._events.finish(concerned, secs)
        self._send_acks()
        self._events.revoked(noted)
        for delivery in taken:
            self.broker.release(delivery.receipt)

    def _disconnect(self) -> None:
        self._acks = []
        if self.connected:
            self.connected = False
            self.broker.disconnect(self._session)

    def _delivery(self, claim: Claim, message: MemoryMessage) -> Delivery:
        attempt = message.deliveries if self.broker.counts_attempts else min(message.deliveries, 2)
        return Delivery(f"{self.name}/{message.number}", message.value, message.headers, attempt, message, claim)


class _Call:
    """One call of a method of a `MemorySource`, as a context manager."""

    __slots__ = ("_method", "_source")

    def __init__(self, source: MemorySource, method: Method) -> None:
        self._source = source
        self._method = method

    def __enter__(self) -> None:
        try:
            self._source.enter(self._method)
        except BaseException:
            self._source.leave(self._method)
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._source.run_faults(self._method, after=True)
        finally:
            self._source.leave(self._method)
