"""A sink for completions of streams on Spark: one transaction of Kafka for each micro-batch, which holds its number."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from acker._engine.codes import Outcome
from acker.connectors.kafka.client import KafkaFaults, check_config, for_consumer, for_producer, names_of
from acker.errors import ArgumentValueError, PublishError

if TYPE_CHECKING:
    from acker._engine.completions import Completions

_COLUMNS: Final = ("outcome", "task_id", "root_id", "elapsed_ms")
# Of pipelines alone.
_WHY: Final = ("component", "reason")
_Headers = dict[str, str | bytes | None]
_ANSWER_SECS: Final = 60.0
_ABORT_SECS: Final = 10.0
_RETRY_SECS: Final = 0.1
# What brokers answer that have just started, and do not know their groups yet.
_NOT_READY: Final = frozenset(
    (
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
)


class KafkaSink:
    """Writes completions to a topic, each once for readers with ``isolation.level=read_committed``.

    Give it to `acker.spark.for_each_completion`. The driver writes the completions of a micro-batch in one transaction,
    with the number of the micro-batch as the offset of a consumer group. A micro-batch that runs again finds its number
    and writes nothing. A driver that is started again aborts what the one before left open, and locks that one out.

    The key of a message is the message id, numbers as text; so messages of several sources share keys if they share
    ids. Its value is JSON: ``{"outcome": "ACKED", "task_id": 0, "root_id": 7, "elapsed_ms": 12}``, and for pipelines
    also ``component`` and ``reason``. The headers are ``query`` and ``batch-id``.

    Parameters
    ----------
    config : dict
        confluent-kafka's own. ``transactional.id`` and ``group.id`` are made of the topic and of the query's id, with
        "acker-" before them. A micro-batch has to be written within ``transaction.timeout.ms``, one minute by default.
        ``metadata.recovery.strategy`` is "none" unless you set it: with "rebootstrap" a client may hang for a minute
        after an outage of all brokers, and the write fails.
    topic : str
        It must exist.
    connect_secs : float
        How long to wait for a broker at the first write.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError

    Examples
    --------
    >>> from acker.connectors.kafka import KafkaSink
    >>> sink = KafkaSink({"bootstrap.servers": "localhost:9092"}, "orders-ended")
    >>> writer = done.writeStream.foreachBatch(acker.spark.for_each_completion(sink))                   # doctest: +SKIP
    """

    def __init__(self, config: Mapping[str, Any], topic: str, *, connect_secs: float = 60.0) -> None:
        self._config = check_config(config)
        if not topic:
            raise ArgumentValueError(f"topic: expected the name of a topic, got {topic!r}")
        if "transactional.id" in self._config:
            raise ArgumentValueError("config: 'transactional.id' is set; this sink makes it of the query's id")
        self._topic = topic
        self._connect_secs = connect_secs
        self._open: dict[str, _Transactions] = {}  # by query

    def __repr__(self) -> str:
        return f"<Kafka sink, {names_of([self._topic])}>"

    def __getstate__(self) -> dict[str, Any]:
        """Leave connections out."""
        return {**self.__dict__, "_open": {}}

    def write(self, completions: Completions, batch_id: int, query_id: str) -> None:
        """Write the completions of a micro-batch, unless they are written; `for_each_completion` calls it.

        Parameters
        ----------
        completions : Completions
        batch_id : int
            Of the query's micro-batches, in order.
        query_id : str
            Belongs to the checkpoint, since a new one counts micro-batches from 0 again.

        Raises
        ------
        PublishError, SourceError, ConnectionLostError
            The transaction failed, or its end is not known; the same micro-batch has to be written again.
        """
        if not query_id:
            raise ArgumentValueError(
                "query_id: expected the id of a query, which Spark Connect does not tell; give for_each_completion a"
                " function that calls write with a name for the query and its checkpoint"
            )
        try:
            if query_id not in self._open:
                self._open[query_id] = _Transactions(self._config, self._topic, query_id, self._connect_secs)
            self._open[query_id].write(completions, batch_id)
        except BaseException:
            # The client may stand in the middle of a transaction. A new one begins with what the brokers know.
            self._close(query_id)
            raise

    def close(self) -> None:
        """Disconnect; the next write connects again."""
        for query_id in list(self._open):
            self._close(query_id)

    def _close(self, query_id: str) -> None:
        transactions = self._open.pop(query_id, None)
        if transactions is not None:
            transactions.close()


class _Transactions:
    """The transactions of one query."""

    def __init__(self, config: Mapping[str, Any], topic: str, query_id: str, connect_secs: float) -> None:
        self._topic, self._query_id, self._connect_secs = topic, query_id, connect_secs
        self._next: int | None = None  # the first micro-batch that is not written
        self._undelivered: KafkaError | None = None
        self._faults = KafkaFaults(f"Kafka {names_of([topic])}", config)
        name = f"acker-{topic}-{query_id}"
        settings = {"logger": self._faults, **self._faults.guarded(config), "error_cb": self._faults.on_error}
        # A client that begins anew from bootstrap.servers forgets brokers, but not that one of them is the coordinator
        # of a group, and waits for that one's return (issue 5511 of librdkafka).
        settings = {"metadata.recovery.strategy": "none", **settings}
        of_producer = {"transactional.id": name, "delivery.report.only.error": True, "on_delivery": self._note}
        of_consumer = {"group.id": name, "enable.auto.commit": False}
        try:
            self._producer = Producer({**for_producer(settings), **of_producer})
            self._consumer = Consumer({**for_consumer(settings), **of_consumer})
        except (KafkaException, TypeError, ValueError) as error:
            raise self._faults.refused(error) from None

    def write(self, done: Completions, batch_id: int) -> None:
        """Write a micro-batch, unless it is written."""
        try:
            if self._next is None:
                self._next = self._begin()
            if batch_id >= self._next:
                self._commit(done, batch_id)
                self._next = batch_id + 1
        except KafkaException as error:
            if not error.args[0].fatal():
                self._abort()  # which also brings in why a broker has refused a message
            causes = [each for each in (self._undelivered, error.args[0]) if each is not None]
            why = "; ".join(map(self._faults.text, causes))
            raise PublishError(f"{self._faults.name}: micro-batch {batch_id}: {why}") from None

    def _begin(self) -> int:
        """Abort what an earlier driver left open, and lock it out; return the micro-batch to begin with."""
        self._faults.check_topics(self._producer, [self._topic], self._connect_secs)
        self._producer.init_transactions(self._connect_secs)
        until = time.monotonic() + _ANSWER_SECS
        while True:
            try:
                (progress,) = self._consumer.committed([TopicPartition(self._topic, 0)], timeout=_ANSWER_SECS)
                if progress.error is not None:
                    raise KafkaException(progress.error)
            except KafkaException as error:
                if error.args[0].code() not in _NOT_READY or time.monotonic() >= until:
                    raise
                time.sleep(_RETRY_SECS)
            else:
                return int(progress.offset)

    def _commit(self, done: Completions, batch_id: int) -> None:
        headers: _Headers = {"query": self._query_id, "batch-id": str(batch_id)}
        self._producer.begin_transaction()
        for key, value in _messages(done):
            self._produce(key, value, headers)
        progress = TopicPartition(self._topic, 0, batch_id + 1)
        self._send_progress([progress])
        self._producer.commit_transaction()  # for as long as the transaction may last

    def _send_progress(self, progress: list[TopicPartition]) -> None:
        """Add offsets to the transaction.

        On a thread of its own, since the client waits without an end for the coordinator of a group, whatever time it
        is given (issue 5456 of librdkafka).
        """
        errors: list[Exception] = []
        group = self._consumer.consumer_group_metadata()

        def send() -> None:
            try:
                self._producer.send_offsets_to_transaction(progress, group)
            except Exception as error:  # noqa: BLE001  Raised below.
                errors.append(error)

        sending = threading.Thread(target=send, name=f"acker {self._faults.name} offsets", daemon=True)
        sending.start()
        sending.join(_ANSWER_SECS)
        if sending.is_alive():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer to offsets in {_ANSWER_SECS:g} s"))
        if errors:
            raise errors[0]

    def _produce(self, key: str | bytes, value: str, headers: _Headers) -> None:
        """Hand a message to the client; wait while its queue is full."""
        while True:
            try:
                self._producer.produce(self._topic, key=key, value=value, headers=headers)
            except BufferError:
                self._producer.poll(0.05)
            else:
                return

    def _note(self, error: KafkaError | None, _: Message) -> None:
        self._undelivered = self._undelivered or error

    def _abort(self) -> None:
        """Abort what is open, as far as the brokers answer, so that readers need not wait for its timeout."""
        with contextlib.suppress(KafkaException):  # None is open, or another driver has aborted it.
            self._producer.abort_transaction(_ABORT_SECS)

    def close(self) -> None:
        """Abort what is open, and disconnect."""
        self._abort()
        self._producer.purge()
        self._consumer.close()


def _messages(done: Completions) -> Iterator[tuple[str | bytes, str]]:
    """Yield key and value of each message."""
    names = _COLUMNS + (_WHY if hasattr(done, _WHY[0]) else ())
    columns = [getattr(done, name).tolist() for name in names]
    columns[0] = [Outcome(outcome).name for outcome in columns[0]]
    for message_id, *row in zip(done.message_id.tolist(), *columns, strict=True):
        key = message_id if isinstance(message_id, bytes) else str(message_id)
        yield key, json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
