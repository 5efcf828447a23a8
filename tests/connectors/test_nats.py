"""JetStream as a source and as a publisher, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
import uuid

import nats as nats_py
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from acker.connectors import Outgoing
from acker.connectors import nats as nats_module
from acker.connectors.nats import JetStream, JetStreamPublisher
from acker.errors import ArgumentValueError, ConnectionLostError, PublishError, SourceError
from tests.connectors.proxy import port_without_server
from tests.connectors.sources import LONG, Seen, closed_at_the_end, opens

SECRET = "s3cret"


@pytest.fixture
def do(nats):
    """Run a coroutine function with a context of JetStream."""

    def do(work):
        async def connected():
            client = await nats_py.connect(nats.url)
            try:
                return await work(client.jetstream(timeout=LONG))
            finally:
                await client.close()

        return asyncio.run(connected())

    return do


@pytest.fixture
def stream(do):
    name = f"s-{uuid.uuid4().hex}"
    do(lambda context: context.add_stream(name=name, subjects=[name, f"{name}.>"]))
    yield name
    with contextlib.suppress(nats_py.js.errors.NotFoundError):
        do(lambda context: context.delete_stream(name))


@pytest.fixture
def opened(nats, stream):
    """Return open sources for the stream of this test, closed at its end."""

    def new(**settings):
        return JetStream(nats.url, **{"stream": stream, "durable": "workers", **settings})

    with closed_at_the_end(new) as make:
        yield opens(make)


@pytest.fixture
def add(do, stream):
    def add(*values, subject=stream, headers=None):
        async def publish(context):
            for value in values:
                await context.publish(subject, value, headers=headers)

        do(publish)

    return add


@pytest.fixture
def info(do, stream):
    return lambda: do(lambda context: context.consumer_info(stream, "workers"))


def until(condition, what):
    deadline = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


def until_left(info, count):
    """Wait until so many messages are delivered and not acked, and none waits. The server counts acks later."""
    counts = []

    def is_so():
        counts.append((info().num_pending, info().num_ack_pending))
        return counts[-1] == (0, count)

    until(is_so, counts)


def take(source, count):
    found = []
    until(lambda: found.extend(source.poll(count - len(found), 0.1)) or len(found) >= count, f"{count} messages")
    return found


def test_what_a_delivery_says(opened, add, stream):
    add(b"one", headers={"kind": "letter"})
    source = opened()
    (delivery,) = take(source, 1)
    assert (delivery.key, delivery.value, delivery.headers) == (f"{stream}/1", b"one", {"kind": "letter"})
    assert delivery.attempt == 1 and delivery.raw.subject == stream
    assert source.retry(delivery, 0.01)
    assert not source.holds(delivery)
    (again,) = take(source, 1)
    assert (again.key, again.value, again.attempt) == (f"{stream}/1", b"one", 2)
    assert stream in source.name and repr(source) == f"<{source.name}>"
    assert not source.can_give_up


def test_orders_to_the_server_are_no_headers(opened, add, stream):
    orders = {"Nats-Expected-Stream": stream, "Nats-Msg-Id": "7"}
    add(b"a", headers={"kind": "letter", **orders})
    (delivery,) = take(opened(), 1)
    assert delivery.headers == {"kind": "letter"}
    assert delivery.raw.headers == {"kind": "letter", **orders}


def test_a_new_consumer_gets_one_subject(opened, add, stream, info):
    add(b"other")
    add(b"mine", subject=f"{stream}.mine")
    source = opened(subject=f"{stream}.*", lease_secs=7.0)
    assert [delivery.value for delivery in take(source, 1)] == [b"mine"]
    config = info().config
    assert (config.ack_wait, config.ack_policy, config.max_ack_pending) == (7.0, AckPolicy.EXPLICIT, -1)


def test_an_existing_consumer_keeps_its_lease_and_its_risks_are_told(opened, do, stream, caplog):
    config = ConsumerConfig(
        durable_name="workers", ack_policy=AckPolicy.EXPLICIT, ack_wait=9.0, max_deliver=3, max_ack_pending=5
    )
    do(lambda context: context.add_consumer(stream, config))
    with caplog.at_level(logging.WARNING, "acker.connectors"):
        assert opened().lease_secs == 9.0
    assert "gives a message up after 3 deliveries" in caplog.text
    assert "keeps back all but 5 messages" in caplog.text


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (ConsumerConfig(durable_name="workers", ack_policy=AckPolicy.NONE), "has to be explicit"),
        (
            ConsumerConfig(durable_name="workers", ack_policy=AckPolicy.EXPLICIT, deliver_subject="pushed"),
            "a pull consumer is needed",
        ),
    ],
    ids=["ack policy", "push"],
)
def test_a_consumer_of_another_kind_is_a_mistake(opened, do, stream, config, why):
    do(lambda context: context.add_consumer(stream, config))
    with pytest.raises(SourceError, match=why):
        opened()


def test_an_unknown_stream_is_a_mistake(opened):
    with pytest.raises(SourceError, match="no such stream; create it first"):
        opened(stream="unknown")


def test_acks_are_with_the_server_after_close(opened, add, info):
    add(*(b"%d" % number for number in range(50)))
    source = opened()
    source.ack(take(source, 50)[:49])
    source.close()
    until_left(info, 1)


def test_what_was_not_delivered_goes_back_at_once(opened, add, info):
    add(b"a", b"b", b"c")
    source = opened(lease_secs=1000.0)
    # The server sends three for this request; one is delivered.
    source._request(3)
    until(lambda: len(source._arrived) == 3, "three messages arrive")
    assert len(source.poll(1, 0.0)) == 1
    source.close()
    other = opened()
    assert {delivery.value for delivery in take(other, 2)} == {b"b", b"c"}


@pytest.fixture
def end_lease(do):
    """Let the server deliver a message again at once, as if its lease had ended there."""

    def end_lease(delivery):
        async def refuse(context):
            await context._nc.publish(delivery.receipt.reply, b"-NAK")

        do(refuse)

    return end_lease


def test_a_lease_that_was_not_renewed_is_lost(opened, add, info, end_lease):
    add(b"a")
    source = opened()
    (old,) = take(source, 1)
    old.receipt.lease_end = time.monotonic()  # as if this process had been stopped for so long
    assert not source.holds(old)
    assert source.extend([old]) == [old] and not source._leases
    end_lease(old)
    (new,) = take(source, 1)
    assert new.attempt == 2
    source.ack([old])
    assert source.holds(new)
    assert source.extend([new]) == []
    source.ack([new])
    source.close()
    until_left(info, 0)


def test_a_lease_that_ends_unseen_is_told_when_the_message_comes_again(opened, add, end_lease):
    add(b"a")
    source = opened()
    (old,) = take(source, 1)
    end_lease(old)
    (new,) = take(source, 1)
    (concerned,) = source._leases._events.gone
    assert concerned(old) and not concerned(new)
    assert not source.holds(old) and source.holds(new)


def test_a_renewal_that_the_server_does_not_confirm_is_a_lost_connection(opened, add, nats, monkeypatch):
    add(b"a")
    source = opened()
    (delivery,) = take(source, 1)
    lease_end = delivery.receipt.lease_end
    monkeypatch.setattr(nats_module, "ANSWER_SECS", 0.3)
    nats.pause()
    try:
        with pytest.raises(ConnectionLostError):
            source.extend([delivery])
    finally:
        nats.resume()
    assert delivery.receipt.lease_end == lease_end
    source.close()


def test_leases_are_as_good_on_a_new_connection(opened, add, info):
    add(b"a")
    source = opened()
    (delivery,) = take(source, 1)
    source.close()
    source.open(source._leases._events, 100)
    assert source.holds(delivery)
    source.ack([delivery])
    source.close()
    until_left(info, 0)
    source.open(Seen(), 100)  # another consumer of messages
    assert not source.holds(delivery)


def poll_until_lost(source):
    with pytest.raises(ConnectionLostError) as lost:
        until(lambda: source.poll(10, 0.1) and None, "the loss is noticed")
    return str(lost.value)


def test_a_consumer_that_is_deleted_is_made_anew(opened, add, do, stream, caplog):
    add(b"a")
    source = opened()
    take(source, 1)
    source.poll(10, 0.0)  # a request is with the server
    do(lambda context: context.delete_consumer(stream, "workers"))
    assert "does not know the consumer any more" in poll_until_lost(source)
    source.close()
    with caplog.at_level(logging.INFO, "acker.connectors"):
        source.open(source._leases._events, 100)
    assert "the consumer is created" in caplog.text
    assert [delivery.value for delivery in take(source, 1)] == [b"a"]


def test_a_new_connection_asks_for_messages_at_once(opened, monkeypatch):
    monkeypatch.setattr(nats_module, "_PULL_SECS", LONG)  # no request ends by itself
    source = opened()
    source.poll(10, 0.0)
    source.close()
    source.open(source._leases._events, 100)
    assert source._requested == 0
    source.poll(10, 0.0)
    assert source._requested == 10


def test_a_stream_that_is_deleted_ends_the_source(opened, add, do, stream):
    add(b"a")
    source = opened()
    take(source, 1)
    source.poll(10, 0.0)
    do(lambda context: context.delete_stream(stream))
    poll_until_lost(source)
    source.close()
    with pytest.raises(SourceError, match="no such stream"):
        source.open(source._leases._events, 100)


def test_a_wake_before_the_wait_counts(opened, monkeypatch):
    monkeypatch.setattr(nats_module, "_PULL_SECS", 10 * LONG)  # the end of a request ends a wait, too
    source = opened()
    source.poll(10, 0.0)
    source.wake()
    thread = threading.Thread(target=source.poll, args=(10, 10 * LONG))
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive()


def test_no_thread_is_left(opened):
    source = opened()
    name = f"acker {source.name}"
    assert name in {thread.name for thread in threading.enumerate()}
    source.close()
    assert name not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def guarded():
    """The URL of a server that lets nobody in."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                end, _ = listener.accept()
            except OSError:  # the test is over
                return
            with end, contextlib.suppress(OSError):
                end.sendall(b'INFO {"server_id":"a","version":"2.9.0","auth_required":true,"max_payload":1024}\r\n')
                end.recv(4096)
                end.sendall(b"-ERR 'Authorization Violation'\r\n")
                end.recv(4096)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"nats://user:{SECRET}@127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(LONG)


def test_wrong_credentials_are_a_mistake_and_stay_secret(guarded, caplog):
    source = JetStream(guarded, stream="jobs", durable="workers")
    publisher = JetStreamPublisher(guarded, subject="jobs")
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(SourceError, match="refuses the credentials") as caught:
            source.open(Seen(), 1)
        source.close()
        with pytest.raises(SourceError, match="refuses the credentials"):
            publisher.open()
        (answer,) = publisher.publish([Outgoing(b"a")])
    texts = [
        str(caught.value),
        repr(caught.value),
        repr(source),
        source.name,
        repr(publisher),
        str(answer),
        caplog.text,
    ]
    assert not any(SECRET in text for text in texts)


def test_a_server_that_is_not_there_is_a_lost_connection():
    with port_without_server() as port:
        source = JetStream(f"nats://user:{SECRET}@127.0.0.1:{port}", stream="jobs", durable="workers")
        with pytest.raises(ConnectionLostError) as caught:
            source.open(Seen(), 1)
        assert SECRET not in str(caught.value)
        with pytest.raises(ConnectionLostError):
            source.poll(1, 0.0)
        source.close()


def test_a_lease_is_positive():
    with pytest.raises(ArgumentValueError, match="lease_secs"):
        JetStream(stream="jobs", durable="workers", lease_secs=0)


def test_each_message_has_its_own_answer(nats, stream, opened):
    headers = {"bytes": b"\xff", "true": True, "none": None, "lines": "one\r\ntwo ", "number": 7}
    messages = [
        Outgoing(b"a", key=b"k", headers=headers),
        Outgoing(b"b", to="no.such.subject"),
        Outgoing(b"c", headers={"no name\r\n": "x"}),
        Outgoing(b"d", to="a b"),
        Outgoing(b"e", to=f"{stream}.e"),
    ]
    with JetStreamPublisher(nats.url, subject=stream) as publisher:
        answers = publisher.publish(messages)
        assert publisher.publish([]) == []
    assert [type(answer) for answer in answers] == [type(None), PublishError, PublishError, PublishError, type(None)]
    assert "no stream takes the subject 'no.such.subject'" in str(answers[1])
    first, last = take(opened(), 2)
    assert (first.value, last.value) == (b"a", b"e")
    assert first.headers == {"bytes": "\\xff", "true": "true", "lines": "one two", "number": "7", "key": "k"}


def test_a_publisher_of_another_stream_is_refused(nats, stream):
    with JetStreamPublisher(nats.url, subject=stream, stream="other") as publisher:
        (answer,) = publisher.publish([Outgoing(b"a")])
    assert isinstance(answer, PublishError) and "expected stream" in str(answer)


def test_a_publisher_waits_for_a_server_that_was_killed(nats, stream, opened):
    with JetStreamPublisher(nats.url, subject=stream) as publisher:
        nats.kill()
        assert isinstance(publisher.publish([Outgoing(b"a")])[0], PublishError)
        nats.start()
        until(lambda: publisher.publish([Outgoing(b"b")]) == [None], "the publisher connects again")
    assert {delivery.value for delivery in take(opened(), 1)} <= {b"a", b"b"}
