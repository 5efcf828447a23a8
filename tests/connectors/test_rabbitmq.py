"""The RabbitMQ source and publisher, against a real server."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import logging
import math
import random
import select
import socket
import ssl
import struct
import subprocess
import threading
import time
from functools import partialmethod

import pika
import pytest

from acker import errors
from acker.connectors import Consumer, Outgoing, Source
from acker.connectors.rabbitmq import RabbitMQ, RabbitMQPublisher
from acker.connectors.rabbitmq.link import UNREADABLE, RabbitMQLink, decode_properties, explain
from acker.testing.connectors.consumer_run import wait_until
from tests.connectors.proxy import Proxy

# No wait below is for a time; one that comes to this is a failure.
LONG = 60.0


class NoEvents:
    """A queue of RabbitMQ is never revoked."""

    def finish(self, concerned, secs):
        raise AssertionError("not for RabbitMQ")

    revoked = finish


@pytest.fixture
def channel(rabbitmq):
    """A channel of plain pika."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    yield connection.channel()
    with contextlib.suppress(pika.exceptions.AMQPError):  # some tests close all connections
        connection.close()


@pytest.fixture
def queue(channel, request):
    """A durable classic queue of this test's own."""
    yield from made(channel, request)


@pytest.fixture
def quorum(channel, request):
    yield from made(channel, request, arguments={"x-queue-type": "quorum"})


@pytest.fixture
def urgent_first(channel, request):
    """A queue with priorities."""
    yield from made(channel, request, arguments={"x-max-priority": 9})


def made(channel, request, **options):
    name = request.node.name
    channel.queue_declare(name, durable=True, **options)
    yield name
    with pika.BlockingConnection(channel.connection._impl.params) as connection:  # that of the test may be closed
        connection.channel().queue_delete(name)


@pytest.fixture
def opened():
    """Opens sources, and closes them at the end."""
    sources = []

    def open_source(url, queue, *, limit=100, **options):
        source = RabbitMQ(url, queue, **options)
        sources.append(source)
        source.open(NoEvents(), limit)
        return source

    yield open_source
    for source in sources:
        source.close()


def put(channel, queue, bodies, **properties):
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def polled(source, count, limit=100):
    """Poll until so many deliveries are there."""
    found, deadline = [], time.monotonic() + LONG
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += source.poll(min(limit, count - len(found)), 1.0)
    return found


def bodies(deliveries):
    return [delivery.value for delivery in deliveries]


def left_in(channel, queue):
    """Return what can be taken from a queue."""
    return [body for _, _, body in iter(lambda: channel.basic_get(queue, auto_ack=True), (None, None, None))]


def lost(source):
    """Poll until the connection is lost; return the error."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        try:
            source.poll(0, 1.0)
        except errors.ConnectionLostError as error:
            return error
    raise AssertionError("the connection was not lost")


def order(rabbitmq, expression):
    """Let the broker evaluate an expression of Erlang; return the value as text."""
    command = [rabbitmq.commands / "evaluate", expression]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def close_all_connections(rabbitmq):
    order(rabbitmq, 'rabbit_networking:close_connections(rabbit_networking:connections(), "a test")')


def connections(rabbitmq):
    """Return how many connections the broker has."""
    return int(order(rabbitmq, "length(rabbit_networking:connections())"))


def port_of(url):
    return pika.URLParameters(url).port


def through(proxy, url):
    """Return the URL of a server behind a proxy."""
    return url.replace(str(port_of(url)), str(proxy.port))


@pytest.fixture
def proxy(rabbitmq):
    with Proxy(port_of(rabbitmq.url)) as running:
        yield running


# ---- deliveries and acks --------------------------------------------------------------------------------------------


def test_a_message_is_delivered_and_acked_once(rabbitmq, channel, queue, opened):
    put(channel, queue, [b"one"])
    source = opened(rabbitmq.url, queue)
    (delivery,) = polled(source, 1)
    assert (delivery.value, delivery.attempt, delivery.headers, delivery.key) == (b"one", 1, {}, f"{queue}#1-7a6c86f1")
    assert delivery.raw.method.routing_key == queue and delivery.raw.properties.content_type is None
    assert source.holds(delivery)
    source.ack([delivery])
    assert not source.holds(delivery)
    source.close()
    assert left_in(channel, queue) == []


def test_what_is_not_acked_comes_again_as_a_second_attempt(rabbitmq, channel, queue, opened):
    put(channel, queue, [b"one", b"two"])
    source = opened(rabbitmq.url, queue)
    source.ack(polled(source, 2)[:1])
    source.close()
    source.open(NoEvents(), 100)
    (delivery,) = polled(source, 1)
    assert (delivery.value, delivery.attempt) == (b"two", 2)


def test_a_quorum_queue_counts_the_attempts(rabbitmq, channel, quorum, opened):
    put(channel, quorum, [b"one"])
    source = opened(rabbitmq.url, quorum)
    for attempt in (1, 2, 3, 4):
        (delivery,) = polled(source, 1)
        assert delivery.attempt == attempt
        source.close()
        source.open(NoEvents(), 100)
    source.ack(polled(source, 1))


@pytest.mark.parametrize("seed", range(3))
def test_exactly_what_was_acked_is_gone_whatever_the_order(rabbitmq, channel, queue, opened, seed):
    """Some acks cover several tags, some wait for lower ones, and some messages are never acked."""
    chance = random.Random(seed)
    put(channel, queue, [str(number).encode() for number in range(300)])
    source = opened(rabbitmq.url, queue, limit=chance.choice([10, 40, 400]))
    open_deliveries, kept, acked = [], [], []
    while len(acked) + len(kept) < 300:
        open_deliveries += source.poll(chance.randint(0, 20), 0.05)
        chance.shuffle(open_deliveries)
        cut = chance.randint(0, len(open_deliveries))
        done, open_deliveries = open_deliveries[:cut], open_deliveries[cut:]
        while done and len(kept) < 5 and chance.random() < 0.05:
            kept.append(done.pop())
        source.ack(done)
        acked += done
    source.close()
    assert sorted(left_in(channel, queue)) == sorted(bodies(kept))
    assert len(acked) + len(kept) == 300


def test_acks_in_order_share_a_frame(rabbitmq, channel, queue, opened, monkeypatch):
    put(channel, queue, [b"x"] * 100)
    source = opened(rabbitmq.url, queue)
    sent = []
    monkeypatch.setattr(source._channel, "basic_ack", lambda tag, multiple=False: sent.append((tag, multiple)))
    deliveries = polled(source, 100)
    source.ack(deliveries[:50])
    source.ack([*deliveries[51:60], deliveries[50]])
    source.ack(deliveries[70:80])  # lower ones are open, so these wait
    assert sent == [(50, True), (60, True)]
    source.poll(100, 0.0)  # nothing comes that they could wait for
    assert sent[2:] == [(tag, False) for tag in range(71, 81)]
    source.ack(deliveries[60:70] + deliveries[80:])
    assert sent[12:] == [(100, True)]


def test_no_message_can_be_acked_twice(rabbitmq, channel, queue, opened):
    put(channel, queue, [b"one", b"two", b"three"])
    source = opened(rabbitmq.url, queue)
    one, two, three = polled(source, 3)
    source.ack([two, two])
    source.poll(0, 0.0)
    source.ack([two])
    source.ack([one, two])
    source.poll(0, 0.1)  # a channel with a second ack would be closed now
    source.ack([three])
    source.close()
    assert left_in(channel, queue) == []


def test_what_was_delivered_beyond_the_limit_comes_with_later_polls(rabbitmq, channel, queue, opened):
    put(channel, queue, [b"%d" % number for number in range(20)])
    source = opened(rabbitmq.url, queue)
    found = polled(source, 1)
    assert source.poll(0, 0.1) == []
    found += polled(source, 19, limit=3)
    assert bodies(found) == [b"%d" % number for number in range(20)]


def test_a_poll_for_the_only_message_gets_no_others_into_the_process(rabbitmq, channel, queue, opened):
    """Also where it comes between two polls; a poll for more gets them."""
    source = opened(rabbitmq.url, queue)
    assert source.poll(1, 0.0) == []
    put(channel, queue, [b"x"] * 3)
    deadline = time.monotonic() + LONG
    while not source._buffer:
        assert time.monotonic() < deadline
        source.poll(0, 0.05)
    assert len(source.poll(1, 0.0)) == 1
    source.poll(0, 0.3)
    assert channel.queue_declare(queue, passive=True).method.message_count == 2
    polled(source, 2)


@pytest.mark.parametrize(("prefetch", "limit", "count"), [(None, 7, 7), (3, 7, 3), (9, 7, 9), (None, 10**6, 20)])
def test_the_prefetch_bounds_what_is_unacked(rabbitmq, channel, queue, opened, prefetch, limit, count):
    put(channel, queue, [b"x"] * 20)
    source = opened(rabbitmq.url, queue, limit=limit, prefetch=prefetch)
    polled(source, count)
    assert source.poll(100, 0.3) == []


def test_a_poll_for_the_only_message_takes_no_place_for_ever(rabbitmq, channel, queue, opened):
    put(channel, queue, [b"%d" % number for number in range(10)])
    source = opened(rabbitmq.url, queue, limit=3)
    (first,) = polled(source, 1, limit=1)
    second, _ = polled(source, 2, limit=2)
    source.ack([second])
    polled(source, 1, limit=1)
    assert source.poll(2, 0.3) == [], "the first one is open, and has the third place"
    source.ack([first])
    polled(source, 1, limit=1)
    assert source.poll(2, 0.3) == []
    assert channel.queue_declare(queue, passive=True).method.message_count == 5
    source.release([])
    deadline = time.monotonic() + LONG
    while channel.queue_declare(queue, passive=True).method.consumer_count:
        assert time.monotonic() < deadline
        source.poll(0, 0.05)


def test_bodies_of_any_size(rabbitmq, channel, queue, opened):
    big = random.Random(1).randbytes(1_000_000) * 100
    source = opened(rabbitmq.url, queue)
    with RabbitMQPublisher(rabbitmq.url, routing_key=queue, timeout_secs=LONG) as publisher:
        assert publisher.publish([Outgoing(b""), Outgoing(big), Outgoing(b"small")]) == [None, None, None]
    found = polled(source, 3)
    assert [delivery.value == body for delivery, body in zip(found, [b"", big, b"small"], strict=True)] == [True] * 3
    source.ack(found)


@pytest.mark.parametrize("size", [1, 2, 7, 61, 4096])
def test_messages_in_pieces_of_any_size(rabbitmq, channel, queue, opened, monkeypatch, size):
    """Deliveries are read past pika where they lie in whole frames; pika reads all other frames."""
    monkeypatch.setattr(pika.adapters.utils.io_services_utils._AsyncTransportBase, "_MAX_RECV_BYTES", size)
    sizes = [0, 1, 200, 0, 3000] if size < 10 else [0, 1, 131_063, 131_064, 131_065, 0, 300_000, 5]
    chance = random.Random(size)
    bodies_sent = [chance.randbytes(each) for each in sizes]
    for number, body in enumerate(bodies_sent):
        headers = {"n": number} if number % 2 else None
        channel.basic_publish("", queue, body, pika.BasicProperties(headers=headers, app_id="a" * (number % 3)))
    source = opened(rabbitmq.url, queue)
    found = polled(source, len(sizes))
    assert bodies(found) == bodies_sent
    assert [each.headers for each in found] == [{"n": n} if n % 2 else {} for n in range(len(sizes))]
    assert [len(each.raw.properties.app_id or "") for each in found] == [n % 3 for n in range(len(sizes))]
    assert {each.raw.method.routing_key for each in found} == {queue}
    assert [each.raw.method.delivery_tag for each in found] == list(range(1, len(sizes) + 1))
    source.ack(found)
    source.poll(0, 0.1)
    source.close()
    assert left_in(channel, queue) == []


def test_what_comes_while_a_connection_is_closed_is_not_of_the_next_one(rabbitmq, channel, queue, opened):
    put(channel, queue, [b"x" * 100_000] * 200)
    source = opened(rabbitmq.url, queue, limit=200)
    polled(source, 1)
    source.close()
    source.open(NoEvents(), 200)
    found = polled(source, 200)
    assert all(map(source.holds, found))
    assert source.poll(200, 0.2) == []


def test_the_message_id_names_the_message(rabbitmq, channel, queue, opened):
    put(channel, queue, [b"x"], message_id="order 5")
    assert polled(opened(rabbitmq.url, queue), 1)[0].key == f"{queue}/order 5"


def test_a_queue_can_be_declared(rabbitmq, channel, opened):
    options = {"durable": True, "arguments": {"x-queue-type": "quorum", "x-dead-letter-exchange": ""}}
    source = opened(rabbitmq.url, "declared", declare=options)
    assert source.can_give_up
    with pytest.raises(errors.SourceError, match="PRECONDITION_FAILED - inequivalent arg"):
        opened(rabbitmq.url, "declared", declare={"durable": False})
    channel.queue_delete("declared")


# ---- headers --------------------------------------------------------------------------------------------------------


class RawProperties(pika.BasicProperties):
    """Properties whose headers are given as the bytes of a table."""

    def __init__(self, table, **others):
        super().__init__(headers={}, **others)
        self.table = table

    def encode(self):
        empty = struct.pack(">I", 0)
        pieces = super().encode()
        place = pieces.index(empty)
        return [*pieces[:place], struct.pack(">I", len(self.table)), self.table, *pieces[place + 1 :]]


def field(name, kind, content):
    return bytes([len(name)]) + name + kind + content


LONG_STRING = struct.pack(">I", 2)


@pytest.mark.parametrize(
    ("kind", "content", "value"),
    [
        (b"t", b"\x01", True),
        (b"b", b"\xff", -1),
        (b"B", b"\xff", 255),
        (b"s", b"\xff\xfe", -2),
        (b"u", b"\xff\xff", 65_535),
        (b"I", struct.pack(">i", -5), -5),
        (b"i", struct.pack(">I", 2**32 - 1), 2**32 - 1),
        (b"l", struct.pack(">q", -(2**60)), -(2**60)),
        (b"f", struct.pack(">f", 0.5), 0.5),
        (b"d", struct.pack(">d", -2.75), -2.75),
        (b"D", struct.pack(">Bi", 2, 314), decimal.Decimal("3.14")),
        (b"S", LONG_STRING + b"ab", "ab"),
        (b"S", LONG_STRING + b"\xff\xfe", b"\xff\xfe"),
        (b"x", LONG_STRING + b"ab", b"ab"),
        (b"A", struct.pack(">I", 3) + b"t\x00V", [False, None]),
        (b"F", struct.pack(">I", 4) + field(b"a", b"B", b"\x07"), {"a": 7}),
        (b"T", struct.pack(">Q", 0), datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)),
        (b"T", struct.pack(">Q", 2**62), 2**62),  # ends the connection of pika 1.4
        (b"V", b"", None),
    ],
)
def test_headers_of_any_type(rabbitmq, channel, queue, opened, kind, content, value):
    table = field(b"first", kind, content) + field(b"last", b"S", LONG_STRING + b"ok")
    channel.basic_publish("", queue, b"x", RawProperties(table, content_type="text/plain", message_id="m"))
    (delivery,) = polled(opened(rabbitmq.url, queue), 1)
    assert delivery.headers == {"first": value, "last": "ok"}
    assert type(delivery.headers["first"]) is type(value)
    assert (delivery.raw.properties.content_type, delivery.raw.properties.message_id) == ("text/plain", "m")


def encoded(table):
    return struct.pack(">HI", 1 << 13, len(table)) + table


def test_floats_that_are_no_numbers():
    """This server refuses them, and pika 1.4 would end the connection."""
    numbers = [math.inf, -math.inf, math.nan]
    table = b"".join(field(b"%d" % place, b"d", struct.pack(">d", each)) for place, each in enumerate(numbers))
    assert str(list(decode_properties(encoded(table)).headers.values())) == str(numbers)


@pytest.mark.parametrize("damage", [b"", b"\x20\x00\x00\x00\x00\x09\x01aI\x00", b"\x20\x00\x00\x00\x00\x03\x01aS"])
def test_damaged_properties_do_not_end_the_connection(damage):
    assert decode_properties(damage).headers == {UNREADABLE: damage}


def test_what_follows_an_unknown_type_is_left_out():
    table = field(b"a", b"t", b"\x01") + field(b"b", b"?", b"more")
    assert decode_properties(encoded(table)).headers == {"a": True, "b": b"?more"}


# ---- waiting --------------------------------------------------------------------------------------------------------


def in_thread(function):
    """Run a function in a thread, and return a function that waits for its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()

    def join():
        thread.join(LONG)
        assert not thread.is_alive()
        return results[0]

    return join


@pytest.mark.parametrize("limit", [0, 10])
def test_wake_ends_a_poll(rabbitmq, queue, opened, limit):
    source = opened(rabbitmq.url, queue)
    waiting = in_thread(lambda: source.poll(limit, 3600.0))
    source.wake()
    assert waiting() == []
    source.wake()  # also one that begins later
    assert source.poll(limit, 3600.0) == []


def test_any_thread_may_wake_at_any_time(rabbitmq, channel, queue, opened):
    source = opened(rabbitmq.url, queue)
    end, polls = threading.Event(), 0

    def wake():
        while not end.wait(0.0002):
            source.wake()

    threads = [threading.Thread(target=wake, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(5):
        put(channel, queue, [b"x"] * 50)
        found = []
        while len(found) < 50:
            found += source.poll(50, 3600.0)
            polls += 1
        source.ack(found)
        source.close()
        if number < 4:
            source.open(NoEvents(), 100)
    end.set()
    for thread in threads:
        thread.join(LONG)
    assert polls >= 5
    assert left_in(channel, queue) == []


def test_wake_before_open_and_after_close(rabbitmq, queue):
    source = RabbitMQ(rabbitmq.url, queue)
    source.wake()
    source.close()
    source.open(NoEvents(), 1)
    source.close()
    source.close()
    source.wake()
    with pytest.raises(errors.ConnectionLostError, match="not connected"):
        source.poll(1, 0.0)


@pytest.mark.slow  # the broker's clock decides
def test_heartbeats_go_on_while_nothing_may_be_taken(rabbitmq, channel, queue, opened):
    put(channel, queue, [b"x", b"y"])
    source = opened(f"{rabbitmq.url}?heartbeat=5", queue)
    deliveries = polled(source, 2)
    until = time.monotonic() + 20.0  # the broker closes a connection that is silent for ten seconds
    while time.monotonic() < until:
        assert source.poll(0, 0.5) == []
    assert all(map(source.holds, deliveries))
    source.ack(deliveries)
    source.close()
    assert left_in(channel, queue) == []


# ---- losses ---------------------------------------------------------------------------------------------------------


def test_a_delivery_of_an_old_channel_never_acks_a_stranger(rabbitmq, channel, queue, opened):
    """Tags begin at 1 again on each channel."""
    put(channel, queue, [b"a", b"b", b"c"])
    source = opened(rabbitmq.url, queue)
    old = polled(source, 3)
    source.ack(old[:1])
    source.poll(0, 0.1)
    close_all_connections(rabbitmq)
    assert "CONNECTION_FORCED - a test (320)" in str(lost(source))
    assert not any(map(source.holds, old))
    source.close()
    source.open(NoEvents(), 100)
    new = polled(source, 2)
    assert bodies(new) == [b"b", b"c"] and [each.attempt for each in new] == [2, 2]
    assert not any(map(source.holds, old))
    source.ack(old)
    source.ack(new[:1])
    source.close()
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        assert left_in(connection.channel(), queue) == [b"c"]


@pytest.mark.parametrize("way", ["cut", "refused", "closed by a fault of the channel"])
def test_a_lost_connection_is_opened_anew(rabbitmq, channel, queue, opened, proxy, way):
    put(channel, queue, [b"a", b"b"])
    source = opened(through(proxy, rabbitmq.url), queue)
    old = polled(source, 1)
    if way == "cut":
        assert proxy.cut() == 1
    elif way == "refused":
        with proxy.refusing():
            lost(source)
            with pytest.raises(errors.ConnectionLostError):
                source.open(NoEvents(), 100)
    else:
        source._channel.basic_ack(99)
        assert "unknown delivery tag 99" in str(lost(source))
    if way == "cut":
        lost(source)
    assert not source.holds(old[0])
    with pytest.raises(errors.ConnectionLostError):
        source.ack(old)
    source.close()
    source.open(NoEvents(), 100)
    # The broker may notice the end of the old connection only now, and then sends what that one held last.
    assert sorted(bodies(polled(source, 2))) == [b"a", b"b"]


def test_a_cut_at_any_moment_is_a_lost_connection(rabbitmq, channel, queue, proxy):
    """Also while it is opened: pika guesses that the credentials are wrong, or that a vhost is missing."""
    put(channel, queue, [b"x"] * 50)
    source = RabbitMQ(through(proxy, rabbitmq.url), queue)
    end = threading.Event()

    def cut():
        while not end.wait(0.004):
            proxy.cut()

    cutting = in_thread(cut)
    losses = 0
    while losses < 60:
        try:
            source.open(NoEvents(), 100)
            while True:
                source.poll(0, 1.0)
        except errors.ConnectionLostError:
            losses += 1
        source.close()
    end.set()
    cutting()
    source.open(NoEvents(), 100)
    source.ack(polled(source, 50))
    source.close()
    assert left_in(channel, queue) == []


def test_an_ack_on_a_connection_that_is_cut_is_lost_and_not_doubled(rabbitmq, channel, queue, opened, proxy):
    put(channel, queue, [b"a"])
    source = opened(through(proxy, rabbitmq.url), queue)
    deliveries = polled(source, 1)
    with proxy.stalled():
        source.ack(deliveries)
        source.poll(0, 0.0)
        proxy.cut()
    lost(source)
    source.close()
    source.open(NoEvents(), 100)
    assert [(each.value, each.attempt) for each in polled(source, 1)] == [(b"a", 2)]


def test_a_broker_that_falls_silent_is_noticed_by_its_heartbeats(rabbitmq, queue, opened, proxy):
    source = opened(through(proxy, rabbitmq.url), queue)
    heartbeats = source._link._connection._heartbeat_checker
    with proxy.stalled():
        for _ in range(2):  # as its timer does, after a minute
            heartbeats._check_heartbeat()
        assert "AMQPHeartbeatTimeout" in str(lost(source))
        source.close()  # waits for no answer


def test_close_does_not_wait_for_a_broker_that_hangs(rabbitmq, queue, opened, proxy, monkeypatch):
    monkeypatch.setattr(RabbitMQLink, "close", partialmethod(RabbitMQLink.close, 0.5))
    source = opened(through(proxy, rabbitmq.url), queue)
    with proxy.stalled():
        source.close()
    assert source._link is None


@pytest.mark.slow
def test_a_consumer_timeout_is_a_lost_connection(rabbitmq, channel, queue, opened):
    """The broker closes the channel of a consumer that holds a message for too long."""
    put(channel, queue, [b"a"])
    order(rabbitmq, "application:set_env(rabbit, consumer_timeout, 100)")
    order(rabbitmq, "application:set_env(rabbit, channel_tick_interval, 200)")
    try:
        source = opened(rabbitmq.url, queue)
        deliveries = []
        try:
            deliveries = polled(source, 1)
            fault = lost(source)
        except errors.ConnectionLostError as error:  # One poll read the delivery and the end of its channel.
            fault = error
        assert "delivery acknowledgement on channel 1 timed out" in str(fault)
        assert not any(map(source.holds, deliveries))
    finally:
        order(rabbitmq, "application:set_env(rabbit, consumer_timeout, 1800000)")
        order(rabbitmq, "application:set_env(rabbit, channel_tick_interval, 60000)")
    source.close()
    source.open(NoEvents(), 100)
    source.ack(polled(source, 1))


def test_a_deleted_queue_ends_the_source(rabbitmq, channel, queue, opened):
    source = opened(rabbitmq.url, queue)
    source.poll(1, 0.0)
    channel.queue_delete(queue)
    assert queue in str(lost(source))
    source.close()
    with pytest.raises(errors.SourceError, match="no queue"):
        source.open(NoEvents(), 100)
    channel.queue_declare(queue, durable=True)
    source.open(NoEvents(), 100)


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_an_unknown_queue(rabbitmq, opened):
    with pytest.raises(errors.SourceError, match=r"^RabbitMQ queue 'nowhere' at .*: NOT_FOUND - no queue 'nowhere'"):
        opened(rabbitmq.url, "nowhere")


def test_an_unknown_vhost(rabbitmq, opened):
    with pytest.raises(errors.SourceError, match="NOT_ALLOWED - vhost nowhere not found"):
        opened(rabbitmq.url.replace("%2F", "nowhere"), "jobs")


def test_a_user_without_permissions(rabbitmq, channel, queue, opened):
    users = "rabbit_auth_backend_internal"
    order(rabbitmq, f'{users}:add_user(<<"stranger">>, <<"unknown">>, <<"acker">>)')
    try:
        url = rabbitmq.url.replace("guest:guest", "stranger:unknown")
        with pytest.raises(errors.SourceError, match="access to vhost '/' refused"):
            opened(url, queue)
        order(rabbitmq, f'{users}:set_permissions(<<"stranger">>, <<"/">>, <<>>, <<>>, <<>>, <<"acker">>)')
        with pytest.raises(errors.SourceError, match=f"access to queue '{queue}' .* refused for user 'stranger'"):
            opened(url, queue).poll(1, 0.0)
    finally:
        order(rabbitmq, f'{users}:delete_user(<<"stranger">>, <<"acker">>)')


def test_no_text_shows_a_password(rabbitmq, queue, caplog):
    """In repr, names, logs of any level, and errors with their contexts."""
    caplog.set_level(logging.DEBUG)
    secret = "never-to-be-seen"
    texts = []
    for url in (
        rabbitmq.url.replace("guest:guest", f"guest:{secret}"),
        rabbitmq.url.replace("guest:guest", f"guest:{secret}").replace(str(port_of(rabbitmq.url)), "1"),
        f"amqp://guest:{secret}/x@localhost",
        f"amqp://guest:{secret}@localhost:70000000",
        f"http://guest:{secret}@localhost",
    ):
        for make in (RabbitMQ, RabbitMQPublisher):
            options = {"queue": queue} if make is RabbitMQ else {"routing_key": queue}
            try:
                made = make(url, **options)
            except errors.ArgumentValueError as error:
                texts += [str(error), repr(error), repr(error.__cause__), str(error.__suppress_context__)]
                continue
            texts += [repr(made), made.name, str(vars(made))]
            with pytest.raises(errors.AckerError) as raised:
                made.open(*([NoEvents(), 1] if make is RabbitMQ else []))
            texts += [repr(raised.value), repr(raised.value.__cause__)]
            made.close()
    texts += [record.getMessage() for record in caplog.records]
    texts += [caplog.text]
    assert len(caplog.records) > 10
    assert not [text for text in texts if secret in text]


def test_wrong_credentials_are_a_mistake(rabbitmq, queue, opened):
    with pytest.raises(errors.SourceError, match="ACCESS_REFUSED - Login was refused"):
        opened(rabbitmq.url.replace("guest:guest", "guest:wrong"), queue)


@pytest.mark.parametrize("told", [b"", b"AMQP\x00\x00\x09\x01", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_whatever_answers_in_place_of_the_broker(opened, told):
    """A proxy whose broker is away closes connections; an older broker answers with its version."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            client, _ = server.accept()
            with client:
                client.recv(100)
                client.sendall(told)

        answered = in_thread(answer)
        with pytest.raises(errors.AckerError) as raised:
            opened(f"amqp://127.0.0.1:{server.getsockname()[1]}", "jobs")
        answered()
    assert isinstance(raised.value, errors.SourceError | errors.ConnectionLostError)
    if not told:
        assert isinstance(raised.value, errors.ConnectionLostError)


def test_a_connection_that_is_cut_while_it_logs_in_is_no_mistake_of_credentials(rabbitmq, queue, opened):
    """pika takes this for wrong credentials, and a broker that restarts does it."""
    with Proxy(port_of(rabbitmq.url)) as proxy, proxy.stalled():

        def fault():
            with pytest.raises(errors.ConnectionLostError) as raised:
                opened(through(proxy, rabbitmq.url), queue)
            return raised.value

        opening = in_thread(fault)
        deadline = time.monotonic() + LONG
        while not proxy.accepted:
            assert time.monotonic() < deadline
        proxy.cut()
        opening()
    start = pika.exceptions.ProbableAuthenticationError(repr(pika.exceptions.StreamLostError("cut")))
    assert isinstance(explain(start, "x", opening=True), errors.ConnectionLostError)


@pytest.mark.parametrize(
    ("code", "text", "is_final"),
    [
        (404, "NOT_FOUND - no queue 'jobs' in vhost '/'", True),
        (404, "NOT_FOUND - home node 'rabbit@a' of durable queue 'jobs' in vhost '/' is down or inaccessible", False),
        (404, "NOT_FOUND - queue 'jobs' in vhost '/' process is stopped by supervisor", False),
        (403, "ACCESS_REFUSED - queue 'jobs' in vhost '/' in exclusive use", False),
        (403, "ACCESS_REFUSED - access to queue 'jobs' in vhost '/' refused for user 'a'", True),
        (530, "NOT_ALLOWED - vhost jobs not found", True),
        (530, "NOT_ALLOWED - access to vhost '/' refused for user 'a': connection limit (10) is reached", False),
        (541, "INTERNAL_ERROR - access to vhost '/' refused for user 'a': vhost '/' is down", False),
        (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'", False),
        (405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'jobs' in vhost '/'", False),
    ],
)
def test_what_another_attempt_may_mend(code, text, is_final):
    fault = pika.exceptions.ChannelClosedByBroker(code, text)
    kind = errors.SourceError if is_final else errors.ConnectionLostError
    assert type(explain(fault, "x", opening=True)) is kind
    assert type(explain(fault, "x", opening=False)) is errors.ConnectionLostError


def test_arguments_are_checked():
    with pytest.raises(errors.ArgumentValueError, match="queue"):
        RabbitMQ("amqp://localhost", "")
    with pytest.raises(errors.ArgumentValueError, match="prefetch"):
        RabbitMQ("amqp://localhost", "jobs", prefetch=0)
    with pytest.raises(errors.ArgumentTypeError, match="parameters"):
        RabbitMQ([], "jobs")
    with pytest.raises(errors.ArgumentValueError, match="headers"):
        RabbitMQPublisher("amqp://localhost", properties={"headers": {}})
    with pytest.raises(errors.ArgumentValueError, match="declare"):
        RabbitMQPublisher("amqp://localhost", exchange="x", declare={})
    with pytest.raises(errors.ArgumentValueError, match="timeout_secs"):
        RabbitMQPublisher("amqp://localhost", timeout_secs=0)
    with pytest.raises(TypeError, match="colour"):
        RabbitMQPublisher("amqp://localhost", properties={"colour": "red"})


def test_several_brokers_are_tried_in_turn(rabbitmq, queue, opened):
    given = [pika.URLParameters("amqp://127.0.0.1:1"), pika.URLParameters(rabbitmq.url)]
    opened(given, queue)


# ---- TLS ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def behind_tls(port, folder):
    """Run a proxy that ends TLS; yield its port and its certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def pump(client, broker):
        """One thread for both directions: OpenSSL lets no two use a connection at the same time."""
        other = {client: broker, broker: client}
        with client, broker, contextlib.suppress(OSError):
            while True:
                # What has been decrypted does not wake `select`.
                ready = [client] if client.pending() else select.select([client, broker], [], [])[0]
                for source in ready:
                    if not (data := source.recv(2**16)):
                        return
                    other[source].sendall(data)

    def serve():
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            try:
                client = context.wrap_socket(client, server_side=True)
            except OSError:
                client.close()
                continue
            broker = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=pump, args=(client, broker), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], certificate
        server.shutdown(socket.SHUT_RDWR)
        thread.join(LONG)


def test_tls_is_what_pika_makes_of_it(rabbitmq, channel, queue, opened, tmp_path):
    put(channel, queue, [b"x"])
    with behind_tls(port_of(rabbitmq.url), tmp_path) as (port, certificate):
        good = ssl.create_default_context(cafile=certificate)
        parameters = [
            pika.ConnectionParameters("127.0.0.1", port, ssl_options=pika.SSLOptions(context))
            for context in (good, ssl.create_default_context())
        ]
        source = opened(parameters[0], queue)
        source.ack(polled(source, 1))
        source.close()
        with pytest.raises(errors.SourceError, match="CERTIFICATE_VERIFY_FAILED"):
            opened(parameters[1], queue)
    with pytest.raises(errors.SourceError, match="WRONG_VERSION_NUMBER"):
        opened(pika.ConnectionParameters("127.0.0.1", port_of(rabbitmq.url), ssl_options=pika.SSLOptions(good)), queue)


# ---- giving up and giving back --------------------------------------------------------------------------------------


def test_giving_up_moves_a_message_to_the_dead_letter_exchange(rabbitmq, channel, opened):
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    source = opened(rabbitmq.url, "mortal", declare={"durable": True, "arguments": arguments})
    put(channel, "mortal", [b"a", b"b"])
    first, second = polled(source, 2)
    source.give_up(first, "too bad")
    assert not source.holds(first)
    source.give_up(first, "too bad")
    source.ack([first, second])
    source.close()
    _, properties, body = channel.basic_get("dead", auto_ack=True)
    assert body == b"a" and properties.headers["x-death"][0]["reason"] == "rejected"
    assert left_in(channel, "mortal") == left_in(channel, "dead") == []
    for name in ("dead", "mortal"):
        channel.queue_delete(name)


def test_a_queue_without_such_an_exchange_would_drop_it(rabbitmq, channel, queue, opened):
    put(channel, queue, [b"a"])
    source = opened(rabbitmq.url, queue)
    assert not source.can_give_up
    with pytest.raises(NotImplementedError, match="dead_letters="):
        source.give_up(*polled(source, 1), "too bad")
    assert opened(rabbitmq.url, queue, dead_letter_exchange=True).can_give_up


def test_messages_are_given_back_at_once_and_none_comes_again(rabbitmq, channel, queue, opened):
    put(channel, queue, [b"%d" % number for number in range(10)])
    source = opened(rabbitmq.url, queue)
    deliveries = polled(source, 4)  # the others are in the buffer
    source.release(deliveries[1:3])
    assert source.poll(0, 0.5) == []
    assert [source.holds(each) for each in deliveries] == [True, False, False, True]
    returned, deadline = [], time.monotonic() + LONG
    while len(returned) < 8:
        assert time.monotonic() < deadline, returned
        returned += left_in(channel, queue)
        assert source.poll(0, 0.05) == []
    assert sorted(returned) == [b"1", b"2", *(b"%d" % number for number in range(4, 10))]
    assert source.poll(10, 0.5) == []
    source.ack(deliveries[:1])
    source.release(deliveries[3:])
    source.close()
    assert left_in(channel, queue) == [b"3"]


def test_a_stop_leaves_new_messages_to_others_while_one_is_open(rabbitmq, channel, queue):
    def subscriptions():
        return channel.queue_declare(queue, passive=True).method.consumer_count

    put(channel, queue, [b"open"])
    with Consumer(RabbitMQ(rabbitmq.url, queue)) as consumer:
        message = next(iter(consumer))
        assert subscriptions()
        consumer.stop()
        wait_until(lambda: subscriptions() == 0, "the subscription ends", LONG)
        put(channel, queue, [b"new"])
        assert left_in(channel, queue) == [b"new"]
        message.ack()
    assert left_in(channel, queue) == [] and consumer.stats().acked == 1


# ---- the publisher --------------------------------------------------------------------------------------------------


@pytest.fixture
def publisher(rabbitmq, queue):
    with RabbitMQPublisher(rabbitmq.url, routing_key=queue) as running:
        yield running


def test_a_batch_is_confirmed(channel, queue, publisher):
    messages = [Outgoing(b"%d" % number, headers={"n": number, "half": 0.5, "b": b"x"}) for number in range(1000)]
    assert publisher.publish(messages) == [None] * 1000
    assert publisher.publish([]) == []
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (body, properties.delivery_mode) == (b"0", 2)
    assert properties.headers == {"n": 0, "half": "0.5", "b": b"x"}
    assert len(left_in(channel, queue)) == 999


def test_messages_with_a_key_of_their_own_and_properties(rabbitmq, channel, queue, request):
    exchange = f"exchange {request.node.name}"
    channel.exchange_declare(exchange, "topic")
    channel.queue_bind(queue, exchange, "a.*")
    properties = {"content_type": "text/plain", "delivery_mode": 1}
    with RabbitMQPublisher(rabbitmq.url, exchange=exchange, routing_key="a.b", properties=properties) as publisher:
        assert exchange in publisher.name
        assert publisher.publish([Outgoing(b"1"), Outgoing(b"2", to="a.c")]) == [None, None]
        found = [channel.basic_get(queue, auto_ack=True) for _ in range(2)]
        assert [(method.routing_key, body) for method, _, body in found] == [("a.b", b"1"), ("a.c", b"2")]
        assert {(each.content_type, each.delivery_mode) for _, each, _ in found} == {("text/plain", 1)}
        channel.exchange_delete(exchange)
        results = publisher.publish([Outgoing(b"1"), Outgoing(b"2")])
        assert ["no exchange" in str(each) and type(each) is errors.PublishError for each in results] == [True] * 2
        assert "no exchange" in str(publisher.publish([Outgoing(b"1")]))
        channel.exchange_declare(exchange, "fanout")
        channel.queue_bind(queue, exchange)
        assert publisher.publish([Outgoing(b"3")]) == [None]
    channel.exchange_delete(exchange)


def test_an_unknown_exchange(rabbitmq):
    with pytest.raises(errors.SourceError, match=r"RabbitMQ exchange 'nowhere' .* no exchange 'nowhere'"):
        RabbitMQPublisher(rabbitmq.url, exchange="nowhere").open()


def test_a_queue_that_the_publisher_declares(rabbitmq, channel):
    with RabbitMQPublisher(rabbitmq.url, routing_key="made", declare={"durable": True}) as publisher:
        assert publisher.publish([Outgoing(b"x")]) == [None]
    assert left_in(channel, "made") == [b"x"]
    channel.queue_delete("made")


def failed(results):
    """Return the indices of the messages that are not confirmed."""
    assert all(each is None or type(each) is errors.PublishError for each in results)
    return [index for index, each in enumerate(results) if each is not None]


def test_exactly_those_that_lead_to_no_queue_fail(channel, queue, publisher):
    results = publisher.publish([Outgoing(b"%d" % n, to="nowhere" if n % 7 == 3 else None) for n in range(500)])
    assert failed(results) == list(range(3, 500, 7))
    assert "no queue for routing key 'nowhere': NO_ROUTE (312)" in str(results[3])
    assert len(left_in(channel, queue)) == 500 - len(failed(results))


def test_one_that_leads_to_no_queue_fails_though_others_have_its_message_id(channel, queue, publisher):
    """Those may fail too: the broker tells only the id of what it returns."""
    ids = ["x", b"x", "\xff", b"\xff", None]
    lost = [Outgoing(b"lost", to="nowhere", properties={"message_id": each}) for each in ids]
    others = [Outgoing(b"kept", properties={"message_id": each}) for each in ("x", "y", "")]
    found = failed(publisher.publish([*others, *lost]))
    assert set(range(3, 8)) <= set(found) and 1 not in found
    assert left_in(channel, queue) == [b"kept"] * 3


def test_a_key_becomes_a_header_and_properties_are_those_of_the_message(channel, queue, publisher):
    properties = {"correlation_id": "7", "priority": 3, "message_id": "mine"}
    messages = [Outgoing(b"1", b"k", properties=properties), Outgoing(b"2", b"\xff", {"key": "old"}), Outgoing(b"3")]
    assert publisher.publish(messages) == [None] * 3
    found = [channel.basic_get(queue, auto_ack=True)[1] for _ in range(3)]
    assert [each.headers for each in found] == [{"key": "k"}, {"key": b"\xff"}, None]
    assert [each.correlation_id for each in found] == ["7", None, None] and found[0].priority == 3
    assert found[0].message_id == "mine" and found[1].message_id != found[2].message_id
    bad = [{"colour": "red"}, {"headers": {}}, {"priority": "high"}, {"priority": 1000}, {"type": "t" * 300}]
    assert failed(publisher.publish([Outgoing(b"x", properties=each) for each in [*bad, {}]])) == list(range(5))


def test_exactly_those_that_cannot_be_written_fail(channel, queue, publisher):
    bad = [{"a": object()}, {"a": 2**70}, {"a" * 300: 1}]
    results = publisher.publish([Outgoing(b"x", headers=each) for each in ({}, *bad, {"b": 1})])
    assert failed(results) == [1, 2, 3]
    assert failed(publisher.publish([Outgoing(b"x", to="k" * 300), Outgoing(b"x")])) == [0]
    assert len(left_in(channel, queue)) == 3


def test_exactly_those_that_the_queue_refuses_fail(rabbitmq, channel, publisher):
    channel.queue_declare("full", durable=True, arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    results = publisher.publish([Outgoing(b"x", to="full") for _ in range(100)])
    assert len(failed(results)) == 100 - len(left_in(channel, "full")) >= 50
    assert all("basic.nack" in str(results[index]) for index in failed(results))
    channel.queue_delete("full")


def test_a_message_that_closes_the_channel_takes_no_others_with_it(channel, queue, publisher):
    """The broker wants a list in this header. What is behind such a message in a batch, it does not look at."""
    results = publisher.publish([Outgoing(b"%d" % n, headers={"CC": "x"} if n == 40 else {}) for n in range(100)])
    assert failed(results) == [40]
    assert "unacceptable_type_in_header" in str(results[40])
    assert {int(body) for body in left_in(channel, queue)} == set(range(100)) - {40}


def test_a_connection_closed_while_idle_fails_no_message(rabbitmq, queue, publisher):
    assert publisher.publish([Outgoing(b"1")]) == [None]
    close_all_connections(rabbitmq)
    assert publisher.publish([Outgoing(b"2")]) == [None]
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        assert left_in(connection.channel(), queue) == [b"1", b"2"]


@pytest.mark.slow  # the broker's clock decides
def test_a_publisher_that_sent_no_heartbeats_for_long(rabbitmq, channel, queue):
    with RabbitMQPublisher(f"{rabbitmq.url}?heartbeat=1", routing_key=queue) as publisher:
        link = publisher._link
        deadline = time.monotonic() + LONG
        while connections(rabbitmq) > 1:  # the broker closes one that is silent for two seconds
            assert time.monotonic() < deadline
        assert publisher.publish([Outgoing(b"1")]) == [None]
        assert publisher._link is not link
    assert left_in(channel, queue) == [b"1"]


def test_what_is_confirmed_is_written_however_the_connection_goes(rabbitmq, channel, queue, proxy):
    confirmed, end = set(), threading.Event()

    def cut():
        while not end.wait(0.02):
            proxy.cut()

    cutting = in_thread(cut)
    with RabbitMQPublisher(rabbitmq.url, routing_key=queue) as publisher:
        publisher._parameters = (pika.URLParameters(through(proxy, rabbitmq.url)),)
        publisher.close()
        for lot in range(30):
            numbers = range(100 * lot, 100 * lot + 100)
            results = publisher.publish([Outgoing(b"%d" % number) for number in numbers])
            confirmed |= set(numbers) - {numbers[index] for index in failed(results)}
        end.set()
        cutting()
        # The last cut may reach the publisher only now.
        assert None in (publisher.publish([Outgoing(b"-1")])[0] for _ in range(2))
    assert confirmed <= {int(body) for body in left_in(channel, queue)}


def test_a_broker_that_does_not_answer(rabbitmq, channel, queue, proxy):
    url = through(proxy, rabbitmq.url)
    with RabbitMQPublisher(url, routing_key=queue, timeout_secs=LONG) as publisher:
        with proxy.stalled():
            publisher._timeout_secs = 0.3
            results = publisher.publish([Outgoing(b"1"), Outgoing(b"2")])
            publisher._timeout_secs = LONG
        assert failed(results) == [0, 1] and "no answer within 0.3 s" in str(results[0])
        assert publisher.publish([Outgoing(b"3")]) == [None]
        assert b"3" in left_in(channel, queue)
        with proxy.refusing():
            assert failed(publisher.publish([Outgoing(b"4")])) == [0]
        assert publisher.publish([Outgoing(b"5")]) == [None]


def test_a_broker_that_takes_no_messages_says_why(rabbitmq, channel, queue):
    """It reads nothing more from a connection that publishes while memory is short."""
    with RabbitMQPublisher(rabbitmq.url, routing_key=queue, timeout_secs=1.0) as publisher:
        order(rabbitmq, "vm_memory_monitor:set_vm_memory_high_watermark(0)")
        try:
            deadline = time.monotonic() + LONG  # its word may come later than the end of the first second
            while "takes no messages for the moment: low on memory" not in (
                told := str(publisher.publish([Outgoing(b"1")])[0])
            ):
                assert time.monotonic() < deadline, told
        finally:
            order(rabbitmq, "vm_memory_monitor:set_vm_memory_high_watermark(0.4)")
        publisher._timeout_secs = LONG
        assert publisher.publish([Outgoing(b"2")]) == [None]


def test_each_call_may_come_from_another_thread(channel, queue, publisher):
    for number in range(5):
        assert in_thread(lambda n=number: publisher.publish([Outgoing(b"%d" % n)]))() == [None]
    publisher.close()
    publisher.close()
    assert in_thread(lambda: publisher.publish([Outgoing(b"5")]))() == [None]
    assert len(left_in(channel, queue)) == 6


def test_contract():
    assert issubclass(RabbitMQ, Source)
    assert repr(RabbitMQ("amqp://a:b@c", "jobs")) == "<RabbitMQ queue 'jobs'>"
    assert json.dumps(RabbitMQ.wait_secs_max)


def test_an_urgent_message_comes_before_what_is_not_in_the_process_yet(rabbitmq, channel, urgent_first):
    channel.confirm_delivery()
    put(channel, urgent_first, [b"first", b"second"], priority=0)
    seen = []
    with Consumer(RabbitMQ(rabbitmq.url, urgent_first), open_max=1) as consumer:
        for message in consumer:
            with message:
                seen.append(message.value)
                if len(seen) == 1:
                    put(channel, urgent_first, [b"urgent"], priority=9)
                if len(seen) == 3:
                    break
    assert seen == [b"first", b"urgent", b"second"]
