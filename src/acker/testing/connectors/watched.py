"""A source that notes what happens to another one, and what the other one does that the contract forbids."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from acker.connectors.source import Delivery, Source, SourceEvents
from acker.errors import ConnectionLostError, SourceError

R = TypeVar("R")


class WatchedSource(Source):
    """A source around another one.

    Parameters
    ----------
    source : Source

    Attributes
    ----------
    calls : Counter
        How often each method was called.
    lost : int
        How many calls lost the connection.
    delivered, acked : list of Delivery
    retries : list of bool
        The answers of `retry`: whether the broker delivers the message again itself.
    extended : Counter
        How often the lease of each delivery was renewed.
    violations : list of str
        What the source did that its contract forbids.
    """

    def __init__(self, source: Source) -> None:
        self.inner = source
        self.name = source.name
        self.wait_secs_max = source.wait_secs_max
        self.calls: Counter[str] = Counter()
        self.lost = 0
        self.delivered: list[Delivery] = []
        self.acked: list[Delivery] = []
        self.retries: list[bool] = []
        self.extended: Counter[Delivery] = Counter()
        self.violations: list[str] = []
        self._known: set[int] = set()
        self._lock = threading.Lock()

    # Some sources know it when they have connected only.
    @property
    def lease_secs(self) -> float | None:  # type: ignore[override]
        """The lease of the source."""
        return self.inner.lease_secs

    @property
    def redelivers(self) -> bool:  # type: ignore[override]
        """As the source's."""
        return self.inner.redelivers

    @property
    def late_acks(self) -> int:  # type: ignore[override]
        """As the source's."""
        return self.inner.late_acks

    @property
    def can_give_up(self) -> bool:
        """Whether the source has a place for dead letters."""
        return self.inner.can_give_up

    def open(self, events: SourceEvents, limit: int) -> None:
        """Open the source."""
        self._call("open", lambda: self.inner.open(events, limit))

    def poll(self, limit: int, wait_secs: float) -> Sequence[Delivery]:
        """Poll the source."""
        deliveries = self._call("poll", lambda: self.inner.poll(limit, wait_secs))
        if len(deliveries) > limit:
            self.violations.append(f"poll({limit}) returned {len(deliveries)} deliveries")
        for delivery in deliveries:
            self._check(delivery)
            self._known.add(id(delivery))
        self.delivered.extend(deliveries)
        return deliveries

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Ack with the source."""
        self._call("ack", lambda: self.inner.ack(deliveries))
        self.acked.extend(deliveries)

    def retry(self, delivery: Delivery, delay_secs: float) -> bool:
        """Retry with the source."""
        is_retried = self._call("retry", lambda: self.inner.retry(delivery, delay_secs))
        self.retries.append(is_retried)
        return is_retried

    def give_up(self, delivery: Delivery, reason: str) -> None:
        """Give up with the source."""
        self._call("give_up", lambda: self.inner.give_up(delivery, reason))

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Renew leases with the source."""
        lost = self._call("extend", lambda: self.inner.extend(deliveries))
        if any(delivery not in deliveries for delivery in lost):
            self.violations.append("extend returned a delivery that it was not given")
        self.extended.update(delivery for delivery in deliveries if delivery not in lost)
        return lost

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Release with the source."""
        self._call("release", lambda: self.inner.release(deliveries))

    def holds(self, delivery: Delivery) -> bool:
        """Ask the source."""
        return self.inner.holds(delivery)

    def wake(self) -> None:
        """Wake the source."""
        self.inner.wake()

    def close(self) -> None:
        """Close the source."""
        try:
            self._call("close", self.inner.close)
        except Exception as error:
            self.violations.append(f"close raised {error!r}")
            raise

    def _call(self, method: str, function: Callable[[], R]) -> R:
        with self._lock:
            self.calls[method] += 1
        try:
            return function()
        except ConnectionLostError:
            self.lost += 1
            raise
        except (SourceError, AssertionError):
            raise
        except Exception as error:
            self.violations.append(f"{method} raised {error!r}, neither ConnectionLostError nor SourceError")
            raise

    def _check(self, delivery: Delivery) -> None:
        types: dict[str, Any] = {"key": str, "value": bytes, "attempt": int}
        for attribute, expected in types.items():
            found = getattr(delivery, attribute)
            if not isinstance(found, expected):
                self.violations.append(f"a delivery's {attribute} is {found!r:.100}, expected {expected.__name__}")
        if delivery.attempt < 1:
            self.violations.append(f"a delivery's attempt is {delivery.attempt}, expected 1 or more")
        if id(delivery) in self._known:
            self.violations.append(f"poll returned the delivery {delivery.key} a second time")
