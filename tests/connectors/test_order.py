"""The order of messages that share a key, and the pace of `rate_max`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
import time
import uuid
from collections import defaultdict
from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import given

from acker.connectors import Consumer, DeadLetterFile, Outgoing
from acker.connectors.message_store import MessageStore
from acker.connectors.options import MessageOptions
from acker.connectors.order import PACE_SECS, KeyOrder, Pace
from acker.connectors.source import Delivery, Source
from acker.errors import AckerError, SourceError
from acker.observe.reasons import Reason, ReasonKind
from acker.testing.connectors import MemoryBroker, MemorySource
from tests.connectors.test_asyncio import stop_when_done

LONG = 60.0
QUIET = logging.getLogger("quiet")
QUIET.disabled = True
KEYS = "abc"
MESSAGES = [(KEYS[number % len(KEYS)], b"%d" % number) for number in range(30)]


def key_of(delivery):
    return delivery.value[:1]


async def coroutine_key(delivery):
    return key_of(delivery)


class World:
    """A message store whose I/O thread and users are this thread, and whose broker delivers in order."""

    def __init__(self, attempts_max):
        options = MessageOptions(attempts_max=attempts_max, dead_letters="broker", backoff_secs=0)
        self.store = MessageStore("world", options, QUIET, order=KeyOrder(key_of, 1))
        self.numbers = itertools.count()
        self.open = []
        self.handed_out = defaultdict(list)  # the numbers of each key, further attempts included
        self.over = set()  # numbers whose message is done, given up, or not here any more

    def deliver(self, key):
        number = next(self.numbers)
        self.store.accept([Delivery(str(number), f"{key}{number}".encode(), {}, 1, None, None)])

    def take(self):
        try:
            attempt = self.store.take(0)
        except queue.Empty:
            return
        key, number = chr(attempt.delivery.value[0]), int(attempt.delivery.key)
        assert all(chr(each.delivery.value[0]) != key for each in self.open), "two messages of a key are open"
        before = self.handed_out[key]
        assert all(each in self.over or each == number for each in before), "one went on before another was over"
        assert not before or number >= before[-1], "the order of the key is lost"
        before.append(number)
        self.open.append(attempt)

    def end(self, index, reason=None, *, is_final=False):
        if self.open:
            attempt = self.open.pop(index % len(self.open))
            self.store.end(attempt.message_id, reason, is_final=is_final)
            if reason is None:
                self.over.add(int(attempt.delivery.key))
            self.io_turn()

    def interrupt(self, index):
        """End work as Ctrl-C does in a program that goes on: the attempt does not count, and comes again."""
        if self.open:
            self.store.offer_again(self.open.pop(index % len(self.open)), "KeyboardInterrupt")

    def io_turn(self):
        for attempt in self.store.failed():
            if attempt.state == "given up":
                self.over.add(int(attempt.delivery.key))
                self.store.gave_up(attempt)
            else:
                self.store.wait(attempt, 0.0)
        self.store.acked(len(self.store.done()))

    def revoke(self, key):
        gone = [each for each in self.store.of(None) if each.delivery.value[:1] == key.encode()]
        self.over |= {int(each.delivery.key) for each in gone}
        self.open = [each for each in self.open if each not in gone]
        ids = {each.message_id for each in gone}
        self.store.revoke(lambda delivery: delivery.value[:1] == key.encode())
        assert not ids & {each.message_id for each in self.store.of(None)}

    def apply(self, op, number):
        key = KEYS[number % len(KEYS)]
        match op:
            case "deliver":
                self.deliver(key)
            case "take":
                self.take()
            case "ack":
                self.end(number)
            case "fail":
                self.end(number, Reason(ReasonKind.FAILED))
            case "time out":
                self.end(number, Reason(ReasonKind.TIMED_OUT))
            case "reject":
                self.end(number, Reason(ReasonKind.FAILED), is_final=True)
            case "interrupt":
                self.interrupt(number)
            case "retry":
                self.store.retry_due(float("inf"))
            case "revoke":
                self.revoke(key)
            case "rebalance":  # which takes nothing away in the end
                self.store.withhold(lambda delivery: delivery.value[:1] == key.encode())
            case "rebalanced":
                self.store.accept([])


OPS = ["deliver", "deliver", "take", "take", "ack", "fail", "time out", "reject", "interrupt", "retry", "revoke"]
REBALANCES = ["rebalance", "rebalanced"]


@given(st.lists(st.tuples(st.sampled_from(OPS + REBALANCES), st.integers(0, 11)), max_size=80), st.sampled_from([1, 3]))
def test_messages_of_a_key_are_handed_out_in_order_through_failures_timeouts_and_rebalances(ops, attempts_max):
    world = World(attempts_max)
    for op, number in ops:
        world.apply(op, number)
    # None is forgotten: all end, though every message of one key fails until it is given up.
    world.apply("rebalanced", 0)
    for _ in range(10 * len(ops) + 10):
        world.store.retry_due(float("inf"))
        world.take()
        if world.open and world.open[0].delivery.value[:1] == b"a":
            world.end(0, Reason(ReasonKind.FAILED))
        else:
            world.end(0)
    assert len(world.store) == 0
    assert not world.store._order._lanes


def test_a_pace_is_even_and_makes_up_for_nothing():
    pace = Pace(10)
    now, given = 100.0, []
    while now < 102.0:
        if pace.allows(now, 0):
            given.append(round(now, 3))
        now += 0.01
    assert all(0.08 < later - earlier < 0.12 for earlier, later in itertools.pairwise(given))
    assert len(given) in {20, 21}
    assert [pace.allows(200.0, 0) for _ in range(3)] == [True, False, False]  # nobody took one for 98 s
    assert 0 < pace.wait_secs(200.0) <= 0.1
    assert not pace.allows(300.0, 1)  # a message waits for a thread
    assert pace.wait_secs(300.0) == PACE_SECS  # not 0, which would keep a core busy


@given(st.floats(0.1, 10_000), st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_no_time_has_more_messages_than_the_rate_allows(rate_max, waits):
    pace, now, given_at = Pace(rate_max), 0.0, []
    for wait in waits:
        now += wait
        while pace.allows(now, 0):
            given_at.append(now)
    for first in range(0, len(given_at), 7):
        for last in range(first, len(given_at), 11):
            secs = given_at[last] - given_at[first]
            assert last - first + 1 <= rate_max * (secs + PACE_SECS) + 2


def test_a_consumer_hands_out_no_more_messages_than_its_rate():
    broker = MemoryBroker()
    broker.publish([b"x"] * 20)
    begin = time.monotonic()
    stats = Consumer(MemorySource(broker), rate_max=50).run(lambda message: None, threads=4, until="empty")
    assert stats.acked == 20
    assert time.monotonic() - begin >= 19 / 50 - PACE_SECS


@pytest.mark.parametrize("delays", [False, True])
def test_messages_of_a_key_wait_for_each_other_and_others_go_on(tmp_path, delays):
    broker = MemoryBroker(delays=delays)
    for number in range(60):
        broker.publish([b"%d" % number], {"customer": KEYS[number % 3]})
    seen, lock, inside = defaultdict(list), threading.Lock(), defaultdict(int)

    def handle(message):
        key, number = message.headers["customer"], int(message.value)
        with lock:
            inside[key] += 1
            assert inside[key] == 1, "two of a key at a time"
            seen[key].append(number)
        try:
            if number % 7 == 0 and message.attempt < 3:
                raise ValueError("not yet")
            assert number != 33, "it never succeeds"
        finally:
            with lock:
                inside[key] -= 1

    stats = Consumer(
        MemorySource(broker),
        key="customer",
        attempts_max=4,
        dead_letters=DeadLetterFile(tmp_path / "letters.jsonl"),
        backoff_secs=0.0,
    ).run(handle, threads=6, until="empty")
    assert (stats.acked, stats.dead_letters) == (59, 1)
    for place, key in enumerate(KEYS):
        expected = []
        for number in range(place, 60, 3):
            expected += [number] * (4 if number == 33 else 3 if number % 7 == 0 else 1)
        assert seen[key] == expected
    (letter,) = (tmp_path / "letters.jsonl").read_text().splitlines()
    assert "it never succeeds" in letter


@pytest.mark.parametrize("key", ["client", lambda delivery: delivery.headers.get("client")])
def test_a_key_that_the_first_message_has_not_is_told_once_with_the_headers_that_it_has(key, caplog):
    broker = MemoryBroker()
    for customer in "aab":
        broker.publish([b"x"], {"customer": customer, "tenant": 1})
    consumer = Consumer(MemorySource(broker, name="orders"), key=key)
    stop_when_done(consumer, broker)
    consumer.run(lambda message: None)
    (told,) = [record.getMessage() for record in caplog.records]
    option = "key='client'" if isinstance(key, str) else "key=<lambda>"
    assert told.startswith(f"orders: {option}: the first message has no such key")
    assert told.endswith("it has these headers: 'customer', 'tenant'")


def test_a_message_without_a_key_among_others_is_not_told(caplog):
    broker = MemoryBroker()
    broker.publish([b"x"], {"customer": "a"})
    broker.publish([b"x"])
    consumer = Consumer(MemorySource(broker), key="customer")
    stop_when_done(consumer, broker)
    consumer.run(lambda message: None)
    assert caplog.records == []


class Deaf(MemorySource):
    """A source whose client waits for messages until some come: `wake` does not end that."""

    wait_secs_max = Source.wait_secs_max

    def __init__(self, broker):
        super().__init__(broker)
        self.may_go_on = threading.Event()

    def poll(self, limit, wait_secs):
        found = super().poll(limit, 0.0 if limit else wait_secs)
        if limit and wait_secs and not found and not self.may_go_on.wait(LONG):
            raise SourceError("messages wait in the process, and the client waits for others")
        return found


@pytest.mark.parametrize("options", [{"key": key_of}, {"rate_max": 1000.0}], ids=["order", "rate"])
def test_messages_that_wait_in_the_process_do_not_wait_for_the_client(broker, options):
    """A blocking read of Redis may take 0.1 s, whatever its time: ten messages of a key in a second."""
    broker.publish([b"a%d" % number for number in range(6)])
    source, seen = Deaf(broker), []
    consumer = Consumer(source, **options)

    def handle(message):
        seen.append(message.value)
        if len(seen) == 6:
            source.may_go_on.set()
            consumer.stop()

    consumer.run(handle, threads=1)
    assert len(seen) == 6 and broker.left() == 0


def test_so_many_of_a_key_are_worked_on_at_a_time_as_the_option_says():
    broker = MemoryBroker()
    broker.publish([b"x"] * 6)
    both = threading.Barrier(2, timeout=LONG)
    inside, lock, most = set(), threading.Lock(), []

    def handle(message):
        with lock:
            inside.add(message)
            most.append(len(inside))
        both.wait()
        with lock:
            inside.discard(message)

    source = MemorySource(broker)
    Consumer(source, key=lambda delivery: "K", open_max_per_key=2).run(handle, threads=4, until="empty")
    assert max(most) == 2


class RabbitQueue:
    """A queue of RabbitMQ whose messages have their key in a header."""

    options: ClassVar = {"key": "group"}

    def __init__(self, server):
        from acker.connectors.rabbitmq import RabbitMQ, RabbitMQPublisher

        name = f"order-{uuid.uuid4().hex[:12]}"
        with RabbitMQPublisher(server.url, routing_key=name, declare="quorum") as publisher:
            assert not any(publisher.publish([Outgoing(value, headers={"group": key}) for key, value in MESSAGES]))
        self.source = RabbitMQ(server.url, name, declare="quorum")


class FifoQueue:
    """A FIFO queue of SQS; the order of its groups is the default."""

    options: ClassVar = {}

    def __init__(self, server):
        import boto3.session

        from acker.connectors.sqs import SQS, SQSPublisher

        options = {
            "endpoint_url": server.url,
            "region_name": "us-east-1",
            "aws_access_key_id": "anybody",
            "aws_secret_access_key": "anything",
        }
        with contextlib.closing(boto3.session.Session().client("sqs", **options)) as client:
            name = f"{uuid.uuid4().hex}.fifo"
            url = client.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
        with SQSPublisher(url, **options) as publisher:
            assert not any(publisher.publish([Outgoing(value, key=key.encode()) for key, value in MESSAGES]))
        self.source = SQS(url, **options)


class Topic:
    """A topic of Kafka, in the order of its keys."""

    options: ClassVar = {"key": "broker"}

    def __init__(self, server):
        from acker.connectors.kafka import Kafka
        from tests.connectors.kafka_kit import Cluster

        cluster = Cluster(server.url)
        topic = cluster.topic()
        for key, value in MESSAGES:
            cluster.write(topic, [value], key=key.encode())
        config = {"bootstrap.servers": server.url, "group.id": topic, "auto.offset.reset": "earliest"}
        self.source = Kafka(config, topic)


@pytest.mark.parametrize(("server", "kind"), [("rabbitmq", RabbitQueue), ("sqs", FifoQueue), ("kafka", Topic)])
def test_real_brokers_keep_the_order_of_a_key(server, kind, request):
    queue = kind(request.getfixturevalue(server))
    seen, failed, lock = [], set(), threading.Lock()
    consumer = Consumer(queue.source, backoff_secs=0.0, open_max=20, **queue.options)

    def handle(message):
        number = int(message.value)
        with lock:
            seen.append(number)
            if number % 5 == 1 and number not in failed:
                failed.add(number)
                raise ValueError("the first attempt fails")
            if len(seen) == len(MESSAGES) + len(MESSAGES) // 5:
                consumer.stop()

    consumer.run(handle, threads=4)
    for place, key in enumerate(KEYS):
        expected = []
        for number in range(place, len(MESSAGES), len(KEYS)):
            expected += [number] * (2 if number % 5 == 1 else 1)
        assert [number for number in seen if number % len(KEYS) == place] == expected, key


def test_a_key_that_is_stuck_is_named_with_what_waits_for_it():
    broker = MemoryBroker()
    broker.publish([b"%d" % number for number in range(38)])
    with Consumer(MemorySource(broker), key=lambda delivery: "K", drain_secs=0.0) as consumer:
        (message, end) = next(iter(consumer)), time.monotonic() + LONG
        while consumer.oldest()[0].behind < 37:
            assert time.monotonic() < end
        (known,) = consumer.oldest()
        assert (known.order_key, known.behind) == ("K", 37)
        assert "37 messages wait for key 'K'" in consumer.oldest().text()
        assert "37 messages wait for key" in consumer.oldest()._repr_html_()
        message.ack()


def test_a_timeout_around_the_block_of_a_message_leaves_its_key_to_the_next_one():
    broker = MemoryBroker()
    broker.publish([b"1", b"2", b"3"], {"customer": "a"})
    handed_out = []

    async def work(message):
        with message:
            handed_out.append(message.value)
            if len(handed_out) == 1:
                await asyncio.get_running_loop().create_future()

    async def main():
        async with Consumer(MemorySource(broker), key="customer") as consumer:
            messages = consumer.aiter()
            for _ in range(4):
                message = await asyncio.wait_for(anext(messages), LONG)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(work(message), 0.1 if not handed_out else LONG)

    asyncio.run(main())
    assert handed_out == [b"1", b"1", b"2", b"3"]  # the first attempt does not count, and comes again


def test_a_message_whose_key_cannot_be_told_is_a_dead_letter(tmp_path):
    broker = MemoryBroker()
    broker.publish([b"1", b"x", b"2"])
    done = []
    stats = Consumer(
        MemorySource(broker),
        key=lambda delivery: int(delivery.value),
        dead_letters=DeadLetterFile(tmp_path / "letters.jsonl"),
    ).run(lambda message: done.append(message.value), threads=1, until="empty")
    assert done == [b"1", b"2"] and stats.dead_letters == 1
    assert "its key cannot be told: ValueError" in (tmp_path / "letters.jsonl").read_text()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rate_max": 0}, "rate_max: expected more than 0"),
        ({"rate_max": "fast"}, "rate_max: expected messages a second"),
        ({"key": 3}, "key: expected the name of a header"),
        ({"key": coroutine_key}, "key: expected a function that returns the key"),
        ({"key": "broker"}, "key: memory gives messages no key of its own"),
        ({"key": "customer", "open_max_per_key": 0}, "open_max_per_key: expected at least 1"),
    ],
)
def test_wrong_options_of_order_and_rate_are_refused(options, text):
    with pytest.raises(AckerError, match=text):
        Consumer(MemorySource(MemoryBroker()), **options)
