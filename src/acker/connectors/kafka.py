"""Kafka: topics read by a consumer group as a source, and a publisher. The client is confluent-kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

# Before the modules below, which import it too.
try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ImportError as missing:
    raise ImportError("acker.connectors.kafka needs confluent-kafka: pip install 'acker[kafka]'") from missing

from acker.connectors.kafka_assignments import KafkaStats
from acker.connectors.kafka_client import LOGGER, KafkaFaults, check_config, is_true, names_of
from acker.connectors.kafka_membership import Membership, MembershipOptions, holds
from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.source import Delivery, Source, SourceEvents
from acker.errors import (
    AckerError,
    ArgumentValueError,
    ConnectionLostError,
    PublishError,
)

__all__ = ["Kafka", "KafkaPublisher", "KafkaStats"]

# confluent-kafka's own default.
_MAX_POLL_INTERVAL_MS: Final = 300_000


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
        self.name = f"Kafka {names_of(names)}, group {settings['group.id']!r}"
        self._faults = KafkaFaults(self.name, settings)
        settings.setdefault("logger", self._faults)
        config = self._faults.guarded(settings)
        self._options = MembershipOptions(config, names, commit_secs, rebalance_secs, connect_secs)
        self._stats = KafkaStats()
        self._woken = threading.Event()
        self._member: Membership | None = None

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
        for delivery in deliveries:
            assignment, offset = delivery.receipt
            if assignment.is_held:
                assignment.tracker.acked(assignment.partition, offset)

    def holds(self, delivery: Delivery) -> bool:
        """Return whether the partition has been assigned to this consumer ever since the delivery."""
        return holds(delivery)

    def wake(self) -> None:
        """End a wait of `poll` with a `limit` of 0; waits of the client itself cannot be ended."""
        self._woken.set()

    def close(self) -> None:
        """Commit what is done, and leave the group. Without an answer this takes at most ten seconds."""
        member, self._member = self._member, None
        if member is not None:
            member.close()

    def stats(self) -> KafkaStats:
        """Return the counts of now."""
        return replace(self._stats, errors=self._faults.count)


class KafkaPublisher(Publisher):
    """Writes messages to topics; the brokers confirm each of them.

    Where the configuration does not say otherwise, all in-sync replicas confirm (``acks=all``), no message is written
    twice by a retry of the client (``enable.idempotence``), and the client gives up after `timeout_secs`.

    Headers that are neither texts, bytes nor None become texts.

    Parameters
    ----------
    config : dict
        confluent-kafka's own. ``message.max.bytes`` limits the size of a message.
    topic : str
        For messages without a topic of their own (`Outgoing.to`).
    timeout_secs : float
        For the answers to one `publish`.
    connect_secs : float
        How long `open` waits for a broker.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError

    Examples
    --------
    >>> from acker.connectors.kafka import KafkaPublisher
    >>> KafkaPublisher({"bootstrap.servers": "localhost:9092"}, "orders.dead")
    <Kafka topic 'orders.dead'>
    """

    def __init__(
        self, config: Mapping[str, Any], topic: str, *, timeout_secs: float = 30.0, connect_secs: float = 10.0
    ) -> None:
        settings = check_config(config)
        if not topic:
            raise ArgumentValueError(f"topic: expected the name of a topic, got {topic!r}")
        if settings.get("transactional.id"):
            raise ArgumentValueError("config: 'transactional.id' is set; this publisher confirms messages one by one")
        super().__init__(f"Kafka {names_of([topic])}")
        self._topic = topic
        self._timeout_secs = timeout_secs
        self._connect_secs = connect_secs
        self._faults = KafkaFaults(self.name, settings)
        settings.setdefault("logger", self._faults)
        settings.setdefault("acks", "all")
        settings.setdefault("enable.idempotence", is_all(settings["acks"]))
        if not settings.keys() & {"message.timeout.ms", "delivery.timeout.ms"}:
            settings["message.timeout.ms"] = max(1, int(timeout_secs * 1000))
        self._config = self._faults.guarded(settings) | {"error_cb": self._faults.on_error}
        self._producer: Producer | None = None

    def connect(self) -> None:
        """Connect, and look for the topic."""
        self.disconnect()
        self._faults.begin()
        try:
            producer = Producer(self._config)
        except (KafkaException, TypeError, ValueError) as fault:
            raise self._faults.refused(fault) from None
        self._faults.check_topics(producer, [self._topic], self._connect_secs)
        self._producer = producer

    def write(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Write messages; return for each None, or why it is not confirmed."""
        if self._producer is None:
            try:
                self.connect()
            except AckerError as fault:
                return [PublishError(str(fault)) for _ in messages]
        producer = self._producer
        assert producer is not None
        until = time.monotonic() + self._timeout_secs
        answers: list[Exception | None] = [self._failure(each, "no answer in time") for each in messages]
        for place, message in enumerate(messages):
            self._produce(producer, message, self._answer_to(place, message, answers), until)
        try:
            producer.flush(max(0.0, until - time.monotonic()) + 1.0)  # the client itself gives up a little earlier
        except KafkaException as fault:
            why = self._faults.text(self._faults.error_of(fault))
            answers = [PublishError(f"{each}; {why}") if each is not None else None for each in answers]
        if self._faults.fatal is not None:
            LOGGER.warning("%s: the client can be used no more; the next messages get a new one", self.name)
            self.disconnect()
        return answers

    def _produce(
        self, producer: Producer, message: Outgoing, answer: Callable[[KafkaError | None, Any], None], until: float
    ) -> None:
        """Hand a message to the client; wait while its queue is full."""
        while True:
            try:
                producer.produce(
                    message.to or self._topic,
                    message.value,
                    key=message.key,
                    headers=[(name, header_of(value)) for name, value in message.headers.items()],
                    on_delivery=answer,
                )
            except BufferError:
                if time.monotonic() > until:
                    return
                producer.poll(0.05)
            except (KafkaException, TypeError, ValueError) as fault:
                answer(self._faults.error_of(fault), None)
                return
            else:
                return

    def _answer_to(
        self, place: int, message: Outgoing, answers: list[Exception | None]
    ) -> Callable[[KafkaError | None, Any], None]:
        """Return what the client calls with its answer to a message."""

        def answer(error: KafkaError | None, _: Any) -> None:
            answers[place] = None if error is None else self._failure(message, self._faults.text(error))

        return answer

    def _failure(self, message: Outgoing, why: str) -> PublishError:
        return PublishError(f"Kafka topic {message.to or self._topic!r}: {why}")

    def disconnect(self) -> None:
        """Disconnect."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()


def header_of(value: object) -> str | bytes | None:
    """Return the value of a header as Kafka takes it."""
    return value if value is None or isinstance(value, str | bytes) else str(value)


def is_all(acks: object) -> bool:
    """Return whether all in-sync replicas are to confirm."""
    return str(acks).lower() in {"all", "-1"}
