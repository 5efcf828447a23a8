"""Kafka topics as a source, read by a consumer group."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from acker._handles import offsets_by_receipt, receipts_of
from acker.connectors.kafka.assignments import Assignment, KafkaStats
from acker.connectors.kafka.client import KafkaFaults, check_config, for_producer, is_true, names_of
from acker.connectors.kafka.membership import Membership, MembershipOptions
from acker.connectors.link import ServerAddress
from acker.connectors.source import Delivery, Origin, Source, SourceEvents
from acker.errors import (
    AckerError,
    ArgumentValueError,
    ConnectionLostError,
)

# confluent-kafka's own default.
_MAX_POLL_INTERVAL_MS: Final = 300_000
# How long the client fetches nothing once it has enough. Its own second is longer than a fast program takes for that.
_FETCH_BACKOFF_MS: Final = 10


class Kafka(Source):
    """Reads topics as a member of a consumer group; the offsets that it commits never pass an open message.

    Messages may end in any order, of several partitions at once. Each partition has its own lowest open message, and
    the commit is its offset. In a rebalance, messages of revoked partitions may still end for `rebalance_secs`; then
    comes one commit, and later outcomes are dropped.

    Kafka does not count deliveries, so `attempt` is always 1. The headers of a message are a mapping of str to bytes,
    where the last one of a name wins; ``raw.headers()`` has them all. A message without a value (a tombstone) has
    ``b""`` as its value and None as ``raw.value()``.

    Parameters
    ----------
    config : dict
        confluent-kafka's own. ``bootstrap.servers`` and ``group.id`` are needed. ``enable.auto.commit`` must not be on:
        it commits what was delivered, whether it is done or not. Set ``auto.offset.reset`` to ``earliest`` unless a new
        group is to skip what is in the topics. Where ``logger`` is absent, the client's log goes to the logger
        ``acker.connectors``.
    topics : str or sequence of str
        A name that begins with ``^`` is a regular expression.
    commit_secs : float
        The seconds between two commits. After a crash, what was done since the last one is delivered again.
    rebalance_secs : float
        For how long open messages of revoked partitions may go on; less than ``max.poll.interval.ms``. The other
        members of the group wait meanwhile, all of them with an eager assignor.
    connect_secs : float
        How long `open` waits for a broker.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError

    Examples
    --------
    >>> from acker.connectors.kafka import Kafka
    >>> Kafka({"bootstrap.servers": "localhost:9092", "group.id": "billing"}, "orders")
    <Kafka topic 'orders', group 'billing'>
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: str | Sequence[str],
        *,
        commit_secs: float = 1.0,
        rebalance_secs: float = 10.0,
        connect_secs: float = 10.0,
    ) -> None:
        settings = check_config(config)
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names or not all(names):
            raise ArgumentValueError(f"topics: expected the name of a topic, or several, got {topics!r}")
        if not settings.get("group.id"):
            raise ArgumentValueError("config: 'group.id' is missing; the group's commits say where to go on")
        if is_true(settings.setdefault("enable.auto.commit", False)):
            raise ArgumentValueError(
                "config: 'enable.auto.commit' is on, which commits messages that are not done; leave it out"
            )
        poll_secs = float(settings.get("max.poll.interval.ms", _MAX_POLL_INTERVAL_MS)) / 1000
        if not 0 <= rebalance_secs < poll_secs:
            raise ArgumentValueError(
                f"rebalance_secs: expected 0 to less than 'max.poll.interval.ms' ({poll_secs:g} s), got"
                f" {rebalance_secs!r}: the group would take this consumer for dead"
            )
        self._address, self._topics = ServerAddress(names, dict(config)), names
        self.name = f"Kafka {names_of(names)}, group {settings['group.id']!r}"
        self._faults = KafkaFaults(self.name, settings)
        settings.setdefault("logger", self._faults)
        settings.setdefault("fetch.queue.backoff.ms", _FETCH_BACKOFF_MS)
        config = self._faults.guarded(settings)
        self._options = MembershipOptions(config, names, commit_secs, rebalance_secs, connect_secs)
        self._stats = KafkaStats()
        self._woken = threading.Event()
        self._member: Membership | None = None
        self._left_uncommitted = 0  # by the last `close`

    def open(self, events: SourceEvents, limit: int) -> None:  # noqa: ARG002  What is fetched ahead is the client's.
        """Connect, look for the topics, and join the group."""
        self.close()
        self._faults.begin()
        self._member = Membership(self._options, events, self._faults, self._stats, self._woken)
        try:
            self._member.join()
        except AckerError:
            self.close()
            raise

    def poll(self, limit: int, wait_secs: float) -> Sequence[Delivery]:
        """Return what was read; rebalances and commits happen meanwhile."""
        if self._member is None:
            raise ConnectionLostError(f"{self.name}: it is not open")
        return self._member.poll(limit, wait_secs)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Mark offsets as done; a `poll` commits them within `commit_secs`."""
        assignment: Assignment
        for assignment, offsets in offsets_by_receipt(deliveries):
            if assignment.is_held:
                assignment.tracker.acked_all(assignment.partition, offsets)
                assignment.acked += len(offsets)

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the partition has been assigned to this consumer ever since the delivery."""
        assignment: Assignment = delivery.receipt
        return assignment.is_held

    def held(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return those of which the partition is held: one look for each partition."""
        gone = {each for each in receipts_of(deliveries) if not each.is_held}
        return [each for each in deliveries if each.receipt not in gone] if gone else deliveries

    def order_key(self, delivery: Delivery) -> tuple[str, bytes] | None:
        """Return partition and key of a message, for `Consumer(key="broker")`; None for one without a key."""
        key: bytes | None = delivery.raw.key()
        return None if key is None else (str(delivery.receipt), key)

    @property
    def is_receiving(self) -> bool:
        """Whether the group has said which partitions are this consumer's, and each has been read from."""
        return self._member is not None and self._member.is_receiving

    def origin(self, delivery: Delivery) -> Origin:
        """Return the topic and the key of a message."""
        return Origin(delivery.raw.topic(), delivery.raw.key())

    def publisher(self) -> Any:
        """Return a publisher to the first of these topics, with the same configuration."""
        # By name: the publisher's module needs this one for its reader.
        made = importlib.import_module("acker.connectors.kafka.publisher").KafkaPublisher
        return made(for_producer(self._address.options), self._topics[0], connect_secs=self._options.connect_secs)

    def wake(self) -> None:
        """End a wait of `poll` with a `limit` of 0; waits of the client itself cannot be ended."""
        self._woken.set()

    def close(self) -> None:
        """Commit what is done, and leave the group. Without an answer this takes at most ten seconds."""
        if self._member is not None:
            self._left_uncommitted = self._member.close()
            self._member = None

    def count_unacked(self, done: Sequence[Delivery]) -> int:
        """Count the messages that are acked and not committed, too."""
        member = self._member
        return len(done) + (self._left_uncommitted if member is None else member.count_uncommitted())

    def stats(self) -> KafkaStats:
        """Return the counts of now."""
        return replace(self._stats, errors=self._faults.count)
