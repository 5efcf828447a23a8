"""A publisher to Kafka topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from acker.connectors.kafka.client import LOGGER, KafkaFaults, check_config, for_consumer, names_of
from acker.connectors.kafka.source import Kafka
from acker.connectors.publisher import Outgoing, Publisher
from acker.errors import AckerError, ArgumentValueError, PublishError

# A reader of letters that was killed keeps its partitions from the next one for no longer than its session.
_READER: Final = {"group.id": "acker-letters", "auto.offset.reset": "earliest", "session.timeout.ms": 10_000}


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
        self._given = dict(config)
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
        except (KafkaException, TypeError, ValueError) as error:
            raise self._faults.refused(error) from None
        self._faults.check_topics(producer, [self._topic], self._connect_secs)
        self._producer = producer

    def write(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Write messages; return for each None, or why it is not confirmed."""
        if self._producer is None:
            try:
                self.connect()
            except AckerError as error:
                return [PublishError(str(error)) for _ in messages]
        producer = self._producer
        assert producer is not None
        until = time.monotonic() + self._timeout_secs
        answers: list[Exception | None] = [self._failure(each, "no answer in time") for each in messages]
        for number, message in enumerate(messages):
            self._produce(producer, message, self._answer_to(number, message, answers), until)
        try:
            producer.flush(max(0.0, until - time.monotonic()) + 1.0)  # the client itself gives up a little earlier
        except KafkaException as error:
            why = self._faults.text(self._faults.error_of(error))
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
            except (KafkaException, TypeError, ValueError) as error:
                answer(self._faults.error_of(error), None)
                return
            else:
                return

    def _answer_to(
        self, number: int, message: Outgoing, answers: list[Exception | None]
    ) -> Callable[[KafkaError | None, Any], None]:
        """Return what the client calls with its answer to a message."""

        def answer(error: KafkaError | None, _: Any) -> None:
            answers[number] = None if error is None else self._failure(message, self._faults.text(error))

        return answer

    def _failure(self, message: Outgoing, why: str) -> PublishError:
        return PublishError(f"Kafka topic {message.to or self._topic!r}: {why}")

    def reader(self, *, lease_secs: float = 60.0) -> Kafka:  # noqa: ARG002
        """Return a source of the topic in the group ``acker-letters``, whose commits say which messages are done."""
        config = {**_READER, **for_consumer(self._given)}
        return Kafka(config, self._topic, commit_secs=0.05, rebalance_secs=0.5, connect_secs=self._connect_secs)

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
