"""The deliveries that are still this consumer's, of brokers that give a message to someone else when its lease ends."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from acker.connectors.source import Delivery, SourceEvents
from acker.errors import ArgumentValueError

Key = TypeVar("Key")


class Leases(Generic[Key]):
    """Knows which deliveries a consumer holds: of each message the last one, until it is settled or revoked.

    Where the broker delivers a message that is held already, its lease was over and nobody had renewed it. So the
    delivery before is revoked.

    Parameters
    ----------
    key_of : callable
        Takes the receipt of a delivery, and returns what names the message at the broker.
    """

    def __init__(self, key_of: Callable[[Any], Key]) -> None:
        self._key_of = key_of
        self._held: dict[Key, Delivery] = {}
        self._events: SourceEvents | None = None

    def begin(self, events: SourceEvents) -> bool:
        """Begin to serve a consumer; return whether it is another one, to which nothing before belongs."""
        is_other = events is not self._events
        if is_other:
            self._held.clear()
        self._events = events
        return is_other

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(list(self._held.values()))

    def __contains__(self, delivery: Delivery) -> bool:
        return self._held.get(self._key_of(delivery.receipt)) is delivery

    def has_key(self, key: Key) -> bool:
        """Return whether a delivery of this message is held."""
        return key in self._held

    def add(self, delivery: Delivery) -> None:
        """Hold a delivery, and revoke the one of the same message that was held before."""
        key = self._key_of(delivery.receipt)
        self.revoke(key)
        self._held[key] = delivery

    def revoke(self, key: Key) -> None:
        """Forget the delivery of a message, if one is held, and tell the consumer."""
        before = self._held.pop(key, None)
        if before is not None and self._events is not None:
            self._events.revoked(lambda other: other is before)

    def forget(self, deliveries: Iterable[Delivery]) -> None:
        """Forget deliveries that are settled or lost; those that are not held any more are none of them."""
        for delivery in deliveries:
            if delivery in self:
                del self._held[self._key_of(delivery.receipt)]


def owner_name() -> str:
    """Return a new name for a consumer: its host, its process and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def check_lease_secs(lease_secs: float) -> float:
    """Return the time of a lease.

    Raises
    ------
    ArgumentValueError
        It is not positive.
    """
    if lease_secs <= 0:
        raise ArgumentValueError(f"lease_secs must be positive, not {lease_secs}")
    return lease_secs
