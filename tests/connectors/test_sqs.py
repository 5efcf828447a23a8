"""SQS as a source and as a publisher, on the server of moto."""

from __future__ import annotations

import logging
import math
import os
import time
import uuid

import boto3.session
import pytest
from botocore.client import BaseClient

from acker.connectors import Consumer, Outgoing
from acker.connectors.sqs import SQS, SQSPublisher
from acker.errors import ArgumentValueError, ConnectionLostError, PublishError, SourceError
from acker.testing.connectors.consumer_run import wait_until
from tests.connectors.sources import LONG, LeaseContract, Seen, closed_at_the_end, opens, take, texts_of, values

SECRET = "s3cret/access+key"


@pytest.fixture
def options(sqs):
    return {
        "endpoint_url": sqs.url,
        "region_name": "us-east-1",
        "aws_access_key_id": "anybody",
        "aws_secret_access_key": SECRET,
    }


@pytest.fixture
def client(options):
    client = boto3.session.Session().client("sqs", **options)
    yield client
    client.close()


@pytest.fixture
def queue_url(client):
    return client.create_queue(QueueName=uuid.uuid4().hex)["QueueUrl"]


@pytest.fixture
def fifo_url(client):
    return client.create_queue(QueueName=f"{uuid.uuid4().hex}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]


@pytest.fixture
def make(options, queue_url):
    """Return sources for the queue of this test, closed at its end."""
    with closed_at_the_end(lambda url=queue_url, **settings: SQS(url, **{**options, **settings})) as make:
        yield make


@pytest.fixture
def opened(make):
    return opens(make)


@pytest.fixture
def add(client, queue_url):
    def add(count):
        for number in range(count):
            client.send_message(QueueUrl=queue_url, MessageBody=str(number))

    return add


@pytest.fixture
def counts(client, queue_url):
    """Return how many messages are visible, and how many are not."""

    def counts(url=queue_url):
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return tuple(int(found[name]) for name in names)

    return counts


@pytest.fixture
def end_leases(client, queue_url):
    """Let messages become visible."""

    def end_leases(deliveries):
        for delivery in deliveries:
            handle = delivery.receipt.handle
            client.change_message_visibility(QueueUrl=queue_url, ReceiptHandle=handle, VisibilityTimeout=0)

    return end_leases


def polls_nothing(source):
    return not any(source.poll(10, 0.0) for _ in range(3))


def test_messages_come_once_and_are_gone_when_acked(opened, add, counts):
    add(25)
    source = opened()
    found = take(source, 25, limit=7)
    assert sorted(values(found)) == list(range(25))
    assert {delivery.attempt for delivery in found} == {1}
    assert polls_nothing(source)
    assert counts() == (0, 25)
    source.ack(found[:13])
    source.poll(0, 0.0)
    assert counts() == (0, 12)
    assert [source.holds(delivery) for delivery in (found[0], found[13])] == [False, True]
    source.ack(found[13:14])
    source.close()
    assert counts() == (0, 11)


def test_what_a_delivery_says(opened, client, queue_url):
    attributes = {
        "kind": {"DataType": "String", "StringValue": "größe"},
        "n": {"DataType": "Number", "StringValue": "7"},
        "x": {"DataType": "Number.float", "StringValue": "0.5"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
    }
    sent = client.send_message(QueueUrl=queue_url, MessageBody="größe", MessageAttributes=attributes)
    source = opened()
    (delivery,) = take(source, 1)
    assert delivery.key == f"{queue_url.rpartition('/')[2]}/{sent['MessageId']}"
    assert delivery.value == "größe".encode()
    assert delivery.headers == {"kind": "größe", "n": 7, "x": 0.5, "bytes": b"\0\xff"}
    assert delivery.raw["Body"] == "größe"
    source.release([delivery])
    (again,) = take(opened(), 1)
    assert (again.key, again.value, again.attempt) == (delivery.key, delivery.value, 2)


@pytest.mark.parametrize("body", ["no base64 at all", "Grüße"])
def test_an_attribute_of_someone_else_is_a_header(opened, client, queue_url, body):
    encoding = {"Content-Transfer-Encoding": {"DataType": "String", "StringValue": "base64"}}
    client.send_message(QueueUrl=queue_url, MessageBody=body, MessageAttributes=encoding)
    (delivery,) = take(opened(), 1)
    assert delivery.value == body.encode()
    assert delivery.headers == {"Content-Transfer-Encoding": "base64"}


def test_headers_that_no_publisher_of_acker_has_written_are_one_header(opened, client, queue_url):
    deep = "[" * 100_000
    attributes = {"acker-headers": {"DataType": "String", "StringValue": deep}}
    client.send_message(QueueUrl=queue_url, MessageBody="lamp", MessageAttributes=attributes)
    (delivery,) = take(opened(), 1)
    assert (delivery.value, delivery.headers) == (b"lamp", {"acker-headers": deep})


# ---- leases ---------------------------------------------------------------------------------------------------------


# Nobody but the broker's clock ends a lease whose handle is lost.
SHORT_LEASE_SECS = 5


class TestLeases(LeaseContract):
    in_order = False

    @pytest.mark.slow  # the broker's clock decides, and the machine may stand still for as long as the lease
    def test_extended_leases_are_left_alone(self, opened, add):
        add(12)
        holder, other = opened(lease_secs=4 * SHORT_LEASE_SECS), opened()
        found, taken = take(holder, 12), []
        end = time.monotonic() + LONG
        while not taken and time.monotonic() < end:
            assert not holder.extend(found[:11])
            taken += other.poll(10, 0.0)
        assert values(taken) == values(found[11:])
        assert holder.extend(found) == found[11:]

    @pytest.fixture
    def end_all_leases(self):
        return lambda: None  # only who has a handle could: they end by themselves

    @pytest.fixture
    def source_code(self, queue_url, options):
        return f"""
from acker.connectors.sqs import SQS
source = SQS({queue_url!r}, lease_secs={SHORT_LEASE_SECS}, **{options!r})
"""

    @pytest.fixture
    def left(self, counts):
        return lambda: sum(counts())


def test_a_lease_that_is_over_is_lost_and_never_acked(opened, add, counts, caplog):
    add(2)
    source = opened()
    first, second = take(source, 2)
    first.receipt.until = time.monotonic()  # as if this process had been stopped for so long
    assert not source.holds(first)
    source.ack([first, second])
    source.poll(0, 0.0)
    assert counts() == (0, 1)
    assert "1 acks came too late" in caplog.text and source.late_acks == 1
    assert source.extend([first]) == [first]


def test_a_message_whose_lease_sqs_does_not_extend_is_lost(opened, add, client, queue_url):
    add(2)
    source = opened()
    first, second = take(source, 2)
    client.delete_message(QueueUrl=queue_url, ReceiptHandle=first.receipt.handle)
    assert source.extend([first, second]) == [first]
    assert not source.holds(first)


def test_what_is_released_is_visible_at_once(opened, add, counts):
    add(14)
    source = opened()
    source.release(take(source, 14)[2:])
    assert counts() == (12, 2)


def test_a_failed_message_is_visible_after_its_delay(opened, add, counts):
    add(3)
    source = opened()
    first, second, third = take(source, 3)
    assert source.retry(first, 3600.0)
    assert source.retry(second, 0.0)
    third.receipt.began -= 12 * 3600 - 10  # it cannot be kept for longer than 12 hours
    assert source.retry(third, 1e6)
    assert not any(map(source.holds, (first, second, third)))
    assert counts() == (1, 2)
    (again,) = take(source, 1)
    assert (again.value, again.attempt) == (second.value, 2)


# ---- answers to a part of a batch -----------------------------------------------------------------------------------


def refuse(source, operation, failures):
    """Let SQS refuse some entries of the next call of an operation."""
    real = source._link.call

    def call(name, **parameters):
        if name != operation:
            return real(name, **parameters)
        source._link.call = real
        entries = parameters["Entries"]
        failed = {str(number): failure for number, failure in failures.items()}
        left = [entry for entry in entries if entry["Id"] not in failed]
        reply = real(name, **{**parameters, "Entries": left}) if left else {}
        return {**reply, "Failed": [{"Id": id_, "Message": "refused", **failed[id_]} for id_ in failed]}

    source._link.call = call


PASSING = {"Code": "RequestThrottled", "SenderFault": True}
BROKEN = {"Code": "InternalError", "SenderFault": False}
FINAL = {"Code": "ReceiptHandleIsInvalid", "SenderFault": True}


def test_acks_that_sqs_cannot_do_now_are_sent_again(opened, add, counts, caplog):
    add(4)
    source = opened()
    found = take(source, 4)
    source.ack(found)
    refuse(source, "delete_message_batch", {0: PASSING, 1: BROKEN, 2: FINAL})
    source.poll(0, 0.0)
    assert counts() == (0, 3)
    assert list(map(source.holds, found)) == [True, True, False, False]
    assert "ReceiptHandleIsInvalid: refused" in caplog.text
    source.poll(0, 0.0)
    assert counts() == (0, 1)
    assert not any(map(source.holds, found))


def test_a_lease_that_sqs_cannot_extend_now_lasts_as_long_as_it_did(opened, add):
    add(2)
    source = opened()
    first, second = take(source, 2)
    before = first.receipt.until, second.receipt.until
    refuse(source, "change_message_visibility_batch", {0: PASSING})
    assert not source.extend([first, second])
    assert first.receipt.until == before[0]
    assert second.receipt.until > before[1]


# ---- connections ----------------------------------------------------------------------------------------------------


def test_a_queue_that_cannot_be_reached(opened, make, add, monkeypatch, options):
    with pytest.raises(ConnectionLostError):
        make(endpoint_url="http://127.0.0.1:1").open(Seen(), 10)
    add(3)
    source = opened()
    found = take(source, 3)
    source.ack(found[:1])
    client = source._link._client
    monkeypatch.setattr(client._endpoint, "host", "http://127.0.0.1:1")
    client.meta.events.register("before-send.sqs", lambda request, **_: setattr(request, "url", "http://127.0.0.1:1/"))
    with pytest.raises(ConnectionLostError):
        source.poll(10, 0.0)
    with pytest.raises(ConnectionLostError):
        source.ack(found[1:2])
    source.close()
    assert all(map(source.holds, found))
    source.open(source._leases._events, 100)
    assert all(map(source.holds, found))
    source.poll(0, 0.0)
    assert list(map(source.holds, found)) == [False, True, True], "the ack that waited is sent"


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secs", [0, 0.5, 12 * 3600 + 1])
def test_wrong_leases(make, secs):
    with pytest.raises(ArgumentValueError, match="lease_secs"):
        make(lease_secs=secs)


def test_an_unknown_queue_is_a_mistake(make, queue_url):
    with pytest.raises(SourceError, match="NonExistentQueue"):
        make(f"{queue_url}-not").open(Seen(), 10)


def test_a_queue_that_vanishes_is_a_mistake(opened, client, queue_url):
    source = opened()
    client.delete_queue(QueueUrl=queue_url)
    with pytest.raises(SourceError):
        source.poll(10, 0.0)


def test_a_missing_region_or_credentials_are_mistakes(queue_url, sqs, monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(SourceError, match="region"):
        SQS(queue_url, endpoint_url=sqs.url).open(Seen(), 10)
    with pytest.raises(SourceError, match="credentials"):
        SQS(queue_url, endpoint_url=sqs.url, region_name="us-east-1").open(Seen(), 10)
    with pytest.raises(SourceError):
        SQS(queue_url, endpoint_url="no URL", region_name="us-east-1").open(Seen(), 10)


def test_credentials_are_told_to_nobody(make, opened, queue_url, options, caplog):
    caplog.set_level(logging.INFO)
    source = opened()
    texts = [repr(source), source.name]
    for wrong in (make(f"{queue_url}-not"), make(endpoint_url="http://127.0.0.1:1")):
        with pytest.raises((SourceError, ConnectionLostError)) as caught:
            wrong.open(Seen(), 10)
        texts += texts_of(caught.value)
    publisher = SQSPublisher(f"{queue_url}-not", **options)
    texts += [repr(publisher), publisher.name, str(publisher.publish([Outgoing(b"x")])), caplog.text]
    for text in texts:
        assert "s3cret" not in text


# ---- publisher ------------------------------------------------------------------------------------------------------


def test_what_is_published_is_what_is_read(opened, queue_url, options, client):
    headers = {"text": "größe", "bytes": b"\xff", "int": 7, "float": 0.5, "bool": True}
    bodies = [b"text", "größe".encode(), b"", b"\0", b"\xff\xfe", b"=", b"a\tb\n", "\ufffe".encode(), b"x" * 200_000]
    other = client.create_queue(QueueName=uuid.uuid4().hex)["QueueUrl"]
    with SQSPublisher(queue_url, **options) as publisher:
        messages = [Outgoing(body, headers=headers) for body in bodies]
        assert publisher.publish([*messages, Outgoing(b"5", to=other)]) == [None] * (len(bodies) + 1)
        assert publisher.publish([]) == []
    found = take(opened(), len(bodies))
    assert sorted(delivery.value for delivery in found) == sorted(bodies)
    assert all(delivery.headers == headers for delivery in found)
    assert values(take(opened(other), 1)) == [5]


@pytest.mark.parametrize(
    ("headers", "others"),
    [
        ({str(number): f"{number}" for number in range(10)}, {}),
        ({str(number): f"{number}" for number in range(25)}, {}),
        ({"none": None, "empty": "", "no bytes": b"", "false": False, "a space": "x", "": "y"}, {"no bytes": ""}),
        ({"nul": "\0", "half": "\ud800", "AWS.x": "x", ".x": "x", "x.": "x", "x..x": "x", "ok.x": "x"}, {}),
        ({"list": [1], "big": 10**40, "huge": 1e300, "tiny": 1e-300, "inf": float("inf"), "0": 0.0}, {"list": "[1]"}),
    ],
)
def test_headers_of_any_kind_and_number_arrive(queue_url, options, opened, headers, others):
    with SQSPublisher(queue_url, **options) as publisher:
        assert publisher.publish([Outgoing(b"\0", headers=headers), Outgoing(b"x", headers=headers)]) == [None] * 2
    for delivery in take(opened(), 2):
        assert delivery.headers == headers | others
        assert len(delivery.raw["MessageAttributes"]) <= 10


def test_many_and_large_messages_are_sent_in_batches(queue_url, options, counts):
    sizes = [1] * 25 + [100_000] * 5
    with SQSPublisher(queue_url, **options) as publisher:
        batches = [
            [len(entry["MessageBody"]) for entry in entries]
            for _, entries in publisher._batches([Outgoing(b"x" * size) for size in sizes])
        ]
        assert publisher.publish([Outgoing(b"x" * size) for size in sizes]) == [None] * 30
    assert batches == [[1] * 10, [1] * 10, [1] * 5 + [100_000] * 2, [100_000] * 2, [100_000]]
    assert counts() == (30, 0)


def test_each_message_has_its_own_error(queue_url, options, counts):
    messages = [
        Outgoing(b"1"),
        Outgoing(b"2" * (2 << 20)),
        Outgoing(b"3" * (3 << 20)),
        Outgoing(b"4"),
        Outgoing(b"5", to=f"{queue_url}-not"),
        Outgoing(b"6"),
    ]
    with SQSPublisher(queue_url, **options) as publisher:
        errors = publisher.publish(messages)
    assert [type(error) for error in errors] == [
        type(None),
        PublishError,
        PublishError,
        type(None),
        PublishError,
        type(None),
    ]
    assert counts()[0] >= 3  # moto has taken some entries of a batch that it refuses; SQS would not.


def test_an_entry_that_fails_is_the_error_of_its_message(queue_url, options, counts):
    with SQSPublisher(queue_url, **options) as publisher:
        refuse(publisher, "send_message_batch", {1: BROKEN})
        errors = publisher.publish([Outgoing(b"1"), Outgoing(b"2"), Outgoing(b"3")])
    assert [type(error) for error in errors] == [type(None), PublishError, type(None)]
    assert "InternalError: refused" in str(errors[1])
    assert counts() == (2, 0)


def test_a_publisher_that_cannot_connect(queue_url, options):
    publisher = SQSPublisher(queue_url, **{**options, "endpoint_url": "http://127.0.0.1:1"})
    with pytest.raises(ConnectionLostError):
        publisher.open()
    (error,) = publisher.publish([Outgoing(b"1")])
    assert isinstance(error, PublishError)


def test_a_fifo_queue_keeps_the_order_of_a_key(fifo_url, options, opened, counts):
    keys = [b"a", b"b", None]
    messages = [Outgoing(str(number).encode(), key=keys[number % 3]) for number in range(30)]
    with SQSPublisher(fifo_url, **options) as publisher:
        assert publisher.publish(messages) == [None] * 30
    source, found = opened(fifo_url), []
    while sum(counts(fifo_url)):
        got = source.poll(10, 1.0)
        found += [(delivery.raw["Attributes"]["MessageGroupId"], int(delivery.value)) for delivery in got]
        source.ack(got)
        source.poll(0, 0.0)
    for group, begin in (("a", 0), ("b", 1), ("none", 2)):
        assert [number for name, number in found if name == group] == list(range(begin, 30, 3))


def test_sqs_itself_waits_while_nothing_is_held_and_else_the_consumer_that_a_wake_ends(make, add, monkeypatch):
    """Without the former, a message waits for the next call, and an idle consumer pays for twice as many."""
    waits, call = [], BaseClient._make_api_call

    def noted(self, operation, parameters):
        if operation == "ReceiveMessage":
            waits.append(parameters["WaitTimeSeconds"])
        return call(self, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", noted)
    with Consumer(make()) as consumer:
        wait_until(lambda: 1 in waits, "SQS waits", LONG)
        add(1)
        with next(iter(consumer)):
            waits.clear()
            wait_until(lambda: len(waits) > 1, "two calls", LONG)
            assert set(waits) == {0}


def test_leases_are_whole_seconds(make):
    assert math.isclose(make(lease_secs=2.9).lease_secs, 2.0)
