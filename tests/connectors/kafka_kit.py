"""What the tests of Kafka share: topics, transactions, commits read back, and a reader that stands for a consumer."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acker.connectors.kafka import Kafka
from acker.errors import ConnectionLostError

T = TypeVar("T")

# No wait is for a time; one that comes to this is a failure.
LONG = 60.0
# What a broker answers that has just started and has not read its groups yet. Clients do not call the first retriable.
_NOT_READY = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
}


def wait_for(condition, act=lambda: None, what="the condition"):
    """Act until the condition holds, and return what it returned."""
    until = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < until, f"{what} did not come"
        act()
    return found


def answer_of(ask: Callable[[], T]) -> T:
    """Ask a broker until it is ready to answer; return the answer."""

    def answer() -> list[T] | None:
        try:
            return [ask()]
        except KafkaException as error:
            if not error.args[0].retriable() and error.args[0].code() not in _NOT_READY:
                raise
            return None

    (found,) = wait_for(answer, lambda: time.sleep(0.1), "an answer")  # type: ignore[no-untyped-call]
    return found


class Cluster:
    """A Kafka server as tests use it."""

    def __init__(self, url):
        self.url = url
        self.admin = AdminClient({"bootstrap.servers": url, "logger": Quiet()})
        limits = {"linger.ms": 0, "message.max.bytes": 2_000_000}
        self.producer = Producer({"bootstrap.servers": url, "logger": Quiet()} | limits)

    def close(self):
        """Let go of the clients, which ends their connections: one that is made again would be a later test's."""
        del self.admin, self.producer

    def topic(self, partitions=1, name=None, **config):
        """Make a topic."""
        name = name or f"topic-{uuid.uuid4().hex[:8]}"
        made = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
        self.admin.create_topics([made])[name].result(LONG)
        # The controller answers before the broker shows the topic.
        wait_for(lambda: name in self.admin.list_topics(timeout=LONG).topics)
        return name

    def delete(self, topic):
        self.admin.delete_topics([topic])[topic].result(LONG)

    def write(self, topic, values, partition=0, producer=None, **settings):
        """Write messages; return when they are confirmed."""
        producer = producer or self.producer
        errors = []

        def answer(error, _):
            if error is not None:
                errors.append(error)

        for value in values:
            producer.produce(topic, value, partition=partition, on_delivery=answer, **settings)
        assert producer.flush(LONG) == 0
        assert not errors, errors

    def transactional(self):
        """Return a producer for transactions."""
        producer = Producer(
            {"bootstrap.servers": self.url, "transactional.id": f"tx-{uuid.uuid4().hex[:8]}", "logger": Quiet()}
        )
        producer.init_transactions(LONG)
        return producer

    def delete_records(self, topic, before, partition=0):
        place = TopicPartition(topic, partition, before)
        self.admin.delete_records([place])[place].result(LONG)

    def committed_messages(self, topic, partition=0):
        """Return the messages that a reader of committed messages sees.

        A server confirms a commit before its markers are in the topic, and readers come to the end before them.
        """
        place = TopicPartition(topic, partition)
        config = {"bootstrap.servers": self.url, "group.id": uuid.uuid4().hex, "enable.partition.eof": True}
        with contextlib.closing(Consumer({**config, "isolation.level": "read_uncommitted"})) as looker:
            _, end = looker.get_watermark_offsets(place, timeout=LONG)
        found = []
        with contextlib.closing(Consumer({**config, "logger": Quiet()})) as consumer:
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(LONG)
                assert message is not None, f"the transactions up to {end} do not end; {len(found)} messages"
                if not message.error():
                    found.append(message)
                elif message.offset() >= end:
                    return found

    def look(self, group=None):
        """Return a consumer that only looks."""
        return Consumer({"bootstrap.servers": self.url, "group.id": group or "looker", "logger": Quiet()})

    def committed(self, group, topic, partition=0):
        """Return what the group has committed, or -1001."""
        return self._commit_of(group, topic, partition).offset

    def metadata(self, group, topic, partition=0):
        """Return the metadata of what the group has committed."""
        return self._commit_of(group, topic, partition).metadata or ""

    def _commit_of(self, group, topic, partition):
        with contextlib.closing(self.look(group)) as looker:
            place = TopicPartition(topic, partition)
            return answer_of(lambda: looker.committed([place], timeout=LONG)[0])

    def commit(self, group, topic, offset, metadata):
        """Commit for a group that has no member."""
        with contextlib.closing(self.look(group)) as looker:
            place = TopicPartition(topic, 0, offset, metadata=metadata)
            answer_of(lambda: looker.commit(offsets=[place], asynchronous=False))

    def ends(self, topic, partition=0):
        """Return the first offset of a partition, and its end."""
        looker = self.look()
        try:
            return answer_of(lambda: looker.get_watermark_offsets(TopicPartition(topic, partition), timeout=LONG))
        finally:
            looker.close()


class Quiet:
    """A logger for clients that are not tested."""

    def log(self, level, text, *arguments):
        pass


class Reader:
    """Does with a source what the I/O thread of a consumer does, step by step.

    Attributes
    ----------
    open : dict of str to Delivery
        By key.
    keys : list of str
        Of all deliveries.
    finished : list of (list of str, float)
        The keys of the open messages that each call of `finish` concerned, and its seconds.
    gone : list of Delivery
        What was revoked while it was open.
    at_finish : callable
        Called by `finish` with the reader and the keys.
    """

    def __init__(self, source, at_finish=lambda reader, keys: None):
        self.source = source
        self.at_finish = at_finish
        self.open, self.keys, self.finished, self.gone = {}, [], [], []
        self.reopened = 0

    def __enter__(self):
        self.source.open(self, 1000)
        return self

    def __exit__(self, *fault):
        self.source.close()

    def poll(self, limit=1000, wait_secs=0.02):
        deliveries = self.source.poll(limit, wait_secs)
        assert len(deliveries) <= limit
        for delivery in deliveries:
            assert self.source.holds(delivery)
            self.open[delivery.key] = delivery
            self.keys.append(delivery.key)
        return deliveries

    def reopen(self):
        """Connect anew, as a consumer does after a lost connection; what the source no longer holds is forgotten."""
        self.source.close()
        self.reopened += 1

        def is_open():
            try:
                self.source.open(self, 1000)
            except ConnectionLostError:
                return False
            return True

        wait_for(is_open, what="a connection")
        self.open = {key: delivery for key, delivery in self.open.items() if self.source.holds(delivery)}

    def step(self, limit=1000):
        """Poll; connect anew where that is needed."""
        try:
            self.poll(limit)
        except ConnectionLostError:
            self.reopen()

    def read(self, count, *others):
        """Poll until there are so many open messages."""
        wait_for(lambda: len(self.open) >= count, lambda: [each.poll() for each in (self, *others)], f"{count} open")
        assert len(self.open) == count

    def ack(self, *keys):
        deliveries = [self.open.pop(key) for key in keys]
        assert all(map(self.source.holds, deliveries))
        self.source.ack(deliveries)

    def ack_all(self, but=()):
        self.ack(*[key for key in self.open if key not in but])

    def partitions(self):
        return {each.partition for each in self.source._member.assignments}

    def finish(self, concerned, secs):
        keys = [key for key, delivery in self.open.items() if concerned(delivery)]
        self.finished.append((keys, secs))
        self.at_finish(self, keys)

    def revoked(self, concerned):
        for key in [key for key, delivery in self.open.items() if concerned(delivery)]:
            self.gone.append(self.open.pop(key))


def make_source(cluster, topics, group=None, **settings):
    """Return a source that begins at the start of its topics, commits at each poll, and hears quickly of rebalances."""
    own = {name: settings.pop(name) for name in ("commit_secs", "rebalance_secs", "connect_secs") if name in settings}
    config = {
        "bootstrap.servers": cluster.url,
        "group.id": group or f"group-{uuid.uuid4().hex[:8]}",
        "auto.offset.reset": "earliest",
    }
    if "group_protocol" not in settings:
        config |= {"heartbeat.interval.ms": 200, "session.timeout.ms": 6000}
    own_names = {"stats_cb", "on_commit"}
    config |= {name if name in own_names else name.replace("_", "."): value for name, value in settings.items()}
    return Kafka(
        {name: value for name, value in config.items() if value is not None}, topics, **{"commit_secs": 0.0} | own
    )
