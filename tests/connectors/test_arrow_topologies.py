"""A spout that emits messages as batches, and a bolt that publishes batches: over a broker in memory and real ones."""

from __future__ import annotations

import threading
import uuid
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from acker import TopologyError
from acker.connectors import ArrowPublishBolt, ArrowSourceSpout, Outgoing
from acker.local import LocalRuntime
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.testing.connectors.consumer_run import wait_until
from acker.topology import ArrowBolt, Bolt, Topology
from tests.connectors.harnesses import (
    JetStreamHarness,
    KafkaHarness,
    PostgreSQLHarness,
    RedisHarness,
    SQSHarness,
)

PENDING = {"topology.max.spout.pending": 1000}
LONG = 60.0


class Numbers(ArrowSourceSpout):
    """Bodies that are numbers, decoded in one call for all."""

    outputs = {"n": pa.int64()}

    def decode_rows(self, bodies, deliveries):
        return {"n": pc.cast(pc.cast(bodies, pa.string()), pa.int64())}


class Square(ArrowBolt):
    """Squares numbers as texts, and fails some as `config` says."""

    outputs = {"value": pa.string()}

    def initialize(self, conf, context):
        self.bad = conf.get("user.bad")

    def process_rows(self, batch):
        n = batch["n"]
        bad = pc.equal(n, -1 if self.bad is None else self.bad)
        good = pc.indices_nonzero(pc.invert(bad))
        self.fail_rows(bad, "no square")
        n = n.take(good)
        self.emit_batch({"value": pc.cast(pc.multiply(n, n), pa.string())}, parents=good)


def topology_of(source, publisher, bad=None, spout=Numbers, **options):
    options = {"backoff_secs": 0.001, "backoff_secs_max": 0.002, **options}

    class Squares(Topology):
        numbers = spout.spec(source=source, **options)
        square = Square.spec(inputs=[numbers], config={} if bad is None else {"user.bad": bad})
        publish = ArrowPublishBolt.spec(inputs=[square], publisher=publisher)

    return Squares


def run(broker, publisher, bad=None, **options):
    topology = topology_of(lambda: MemorySource(broker), lambda: publisher, bad, **options)
    with LocalRuntime(topology, PENDING) as runtime:
        broker.wait_until(lambda broker: broker.left() == 0)
    assert broker.violations == []
    return runtime.stats().components()


def test_messages_travel_as_batches_and_each_is_acked_when_its_row_is_confirmed():
    broker, publisher = MemoryBroker(), MemoryPublisher()
    broker.publish(b"%d" % number for number in range(500))
    stats = run(broker, publisher)
    assert sorted(int(message.value) for message in publisher.published) == [number**2 for number in range(500)]
    assert sorted(map(int, broker.acked)) == list(range(500))
    assert stats["numbers"].acked == stats["publish"].acked == 500
    assert 1 <= stats["numbers"].user["batches"] < 500 and publisher.calls["publish"] < 500
    assert publisher.calls["close"] == 1


def test_a_row_that_fails_is_tried_again_alone_and_then_given_up():
    broker, publisher, letters = MemoryBroker(), MemoryPublisher(), MemoryPublisher()
    broker.publish(b"%d" % number for number in range(50))
    stats = run(broker, publisher, 7, attempts_max=3, dead_letters=lambda: letters)
    assert [letter.value for letter in letters.published] == [b"7"]
    assert "no square" in letters.published[0].headers["acker-reason"]
    assert sorted(int(message.value) for message in publisher.published) == [n**2 for n in range(50) if n != 7]
    assert (stats["numbers"].user["retried"], stats["numbers"].dead_letters, stats["square"].failed) == (2, 1, 3)


def test_bodies_that_cannot_be_decoded_are_dead_letters_and_the_others_are_emitted():
    broker, publisher, letters = MemoryBroker(), MemoryPublisher(), MemoryPublisher()
    broker.publish([b"1", b"two", b"3", b"\xff", b"", b"4"])
    run(broker, publisher, dead_letters=lambda: letters)
    assert sorted(letter.value for letter in letters.published) == [b"", b"two", b"\xff"]
    assert all("the body cannot be decoded: Arrow" in each.headers["acker-reason"] for each in letters.published)
    assert sorted(message.value for message in publisher.published) == [b"1", b"16", b"9"]


@pytest.mark.parametrize("fault", ["refuse", "fail"])
def test_rows_that_are_not_confirmed_are_published_again(fault):
    broker, publisher = MemoryBroker(), MemoryPublisher()
    broker.publish(b"%d" % number for number in range(50))
    getattr(publisher, fault)(10)
    stats = run(broker, publisher)
    assert {int(message.value) for message in publisher.published} == {number**2 for number in range(50)}
    assert len(broker.acked) == 50
    assert stats["publish"].failed == stats["publish"].user["unconfirmed"] >= 10


def test_no_row_is_acked_before_it_is_confirmed():
    broker, publisher = MemoryBroker(), MemoryPublisher()
    broker.publish([b"1", b"2"])
    publisher.block()
    thread = threading.Thread(target=run, args=(broker, publisher))
    thread.start()
    while not publisher.calls["publish"]:
        thread.join(0.01)
    assert broker.acked == [] and broker.left() == 2
    publisher.unblock()
    thread.join()
    assert sorted(broker.acked) == [b"1", b"2"]


class Whole(ArrowPublishBolt):
    """Has messages for short texts only."""

    def messages(self, batch):
        return [Outgoing(text.encode("ascii")) for text in batch["value"].to_pylist()]


class Texts(ArrowSourceSpout):
    outputs = {"value": pa.string()}

    def decode_rows(self, bodies, deliveries):
        return {"value": pc.cast(bodies, pa.string())}


def test_a_row_without_a_message_fails_alone_and_nothing_is_published_twice():
    broker, publisher, letters = MemoryBroker(), MemoryPublisher(), MemoryPublisher()
    broker.publish([b"a", "é".encode(), b"c", b"d"])

    class Copy(Topology):
        texts = Texts.spec(source=lambda: MemorySource(broker), attempts_max=1, dead_letters=lambda: letters)
        publish = Whole.spec(inputs=[texts], publisher=lambda: publisher)

    with LocalRuntime(Copy, PENDING):
        broker.wait_until(lambda broker: broker.left() == 0)
    assert sorted(message.value for message in publisher.published) == [b"a", b"c", b"d"]
    assert [letter.value for letter in letters.published] == ["é".encode()]
    assert "UnicodeEncodeError" in letters.published[0].headers["acker-reason"]


class Keep(Bolt):
    rows: list = []

    def process(self, tup):
        self.rows.append((tup.value, tup.key))


def test_a_bolt_reads_the_bodies_and_keys_as_tuples(monkeypatch):
    monkeypatch.setattr(Keep, "rows", [])
    broker = MemoryBroker()
    broker.publish([b"\xff", b""])

    class Copy(Topology):
        bodies = ArrowSourceSpout.spec(source=lambda: MemorySource(broker))
        keep = Keep.spec(inputs=[bodies])

    with LocalRuntime(Copy):
        broker.wait_until(lambda broker: broker.left() == 0)
    assert sorted(Keep.rows) == [(b"", "memory/1"), (b"\xff", "memory/0")]


def test_headers_keys_and_other_queues_come_from_columns():
    publisher = MemoryPublisher()
    columns = {
        "value": pa.array([{"n": 1}, None], pa.struct({"n": pa.int64()})),
        "key": ["a", None],
        "headers": pa.array([[("x", "1")], None], pa.map_(pa.string(), pa.string())),
        "to": [None, "other"],
    }
    bolt = ArrowPublishBolt()
    assert list(bolt.messages(pa.RecordBatch.from_pydict(columns))) == [
        Outgoing(b'{"n": 1}', b"a", {"x": "1"}),
        Outgoing(b"null", to="other"),
    ]
    assert publisher.published == []


class OneByOne(ArrowSourceSpout):
    def decode(self, body):
        return body


def test_a_decoder_of_single_bodies_is_refused():
    with pytest.raises(TopologyError, match=r"decode is for one body; override decode_rows"):
        ArrowSourceSpout.spec(source=MemorySource, decode=bytes.decode)
    with pytest.raises(TopologyError, match=r"OneByOne.decode is for one message, and nobody would call it"):
        OneByOne.spec(source=MemorySource)


class Empty(ArrowSourceSpout):
    outputs: ClassVar = {"value": pa.binary()}

    def decode_rows(self, bodies, deliveries):
        return {"value": bodies[:0]}


class Later(ArrowSourceSpout):
    async def decode_rows(self, bodies, deliveries):
        return {"value": bodies}


def test_a_decoder_that_leaves_rows_out_stops_the_topology_and_no_message_is_acked(caplog):
    broker = MemoryBroker()
    broker.publish([b"a", b"b"])

    class Copy(Topology):
        empty = Empty.spec(source=lambda: MemorySource(broker))
        keep = Keep.spec(inputs=[empty])

    with LocalRuntime(Copy):
        broker.wait_until(lambda _: "empty: decode_rows returned 0 rows for" in caplog.text)
    assert broker.acked == [] and broker.left() == 2


def test_a_decoder_whose_call_would_not_run_it_is_refused():
    with pytest.raises(TopologyError, match=r"Later.spec: decode_rows.* write decode_rows as a plain function"):
        Later.spec(source=MemorySource)


def copy_a_queue(harness):
    """Read a hundred messages of a real queue in batches, and see each published and acked."""
    results = MemoryPublisher()
    harness.lease_secs = LONG  # none is to end
    try:
        topology = topology_of(harness.source, lambda: results)
        harness.publish([b"%d" % number for number in range(100)])
        with LocalRuntime(topology, PENDING) as runtime:
            runtime.run_until(100)
        assert {int(message.value) for message in results.published} == {number**2 for number in range(100)}
        wait_until(lambda: harness.left() == 0, "what was acked is gone", LONG)  # NATS settles acks a moment later
    finally:
        harness.close()


def test_a_real_queue_is_read_in_batches(redis):
    copy_a_queue(RedisHarness(redis))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "harness"),
    [
        ("nats", JetStreamHarness),
        ("postgresql", PostgreSQLHarness),
        ("kafka", KafkaHarness),
        ("sqs", SQSHarness),
    ],
)
def test_other_queues_are_read_in_batches_too(server, harness, request):
    copy_a_queue(harness(request.getfixturevalue(server)))


@pytest.mark.slow
def test_batches_go_from_one_queue_of_rabbitmq_to_another(rabbitmq):
    import pika

    from acker.connectors.rabbitmq import RabbitMQ, RabbitMQPublisher

    before, behind = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("numbers", "squares"))
    topology = topology_of(
        lambda: RabbitMQ(rabbitmq.url, before), lambda: RabbitMQPublisher(rabbitmq.url, routing_key=behind), open_max=40
    )
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        for name in (before, behind):
            channel.queue_declare(name, durable=True)
        for number in range(100):
            channel.basic_publish("", before, b"%d" % number)
        with LocalRuntime(topology, PENDING) as runtime:
            runtime.run_until(100)
        taken = list(iter(lambda: channel.basic_get(behind, auto_ack=True)[2], None))
        left = channel.queue_declare(before, passive=True).method.message_count
        for name in (before, behind):
            channel.queue_delete(name)
    assert sorted(map(int, taken)) == [number**2 for number in range(100)] and left == 0
