"""Kafka as a publisher, on a real server."""

from __future__ import annotations

import contextlib
import logging
import uuid

import pytest

from acker.connectors import Outgoing
from acker.connectors.kafka import KafkaPublisher
from acker.errors import ArgumentTypeError, ArgumentValueError, ConnectionLostError, PublishError, SourceError
from tests.connectors.kafka_kit import LONG, Cluster, Reader, make_source

SECRET = "s3cret/#word"
RIGHT = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture(scope="module")
def cluster(kafka):
    with contextlib.closing(Cluster(kafka.url)) as cluster:
        yield cluster


def make_publisher(cluster, topic, **config):
    named = {name.replace("_", "."): value for name, value in config.items()}
    return KafkaPublisher({"bootstrap.servers": cluster.url} | named, topic, timeout_secs=LONG)


@pytest.mark.parametrize(
    ("config", "topic", "text"),
    [
        ({}, "t", "bootstrap.servers"),
        (RIGHT, "", "topic"),
        (RIGHT | {"transactional.id": "x"}, "t", "transactional.id"),
    ],
)
def test_a_wrong_configuration_is_refused(config, topic, text):
    with pytest.raises(ArgumentValueError, match=text):
        KafkaPublisher(config, topic)
    with pytest.raises(ArgumentTypeError, match="dict"):
        KafkaPublisher("localhost", "t")


def test_a_publisher_that_is_not_open_can_be_closed():
    KafkaPublisher(RIGHT, "t").close()


def test_no_broker_is_a_lost_connection():
    with pytest.raises(ConnectionLostError, match="Connection refused"):
        KafkaPublisher(RIGHT, "t").open()
    [answer] = KafkaPublisher(RIGHT, "t").publish([Outgoing(b"x")])
    assert isinstance(answer, PublishError) and "Connection refused" in str(answer)


def test_an_unknown_topic_is_a_mistake(cluster):
    with pytest.raises(SourceError, match="no-such-topic"):
        make_publisher(cluster, "no-such-topic", allow_auto_create_topics=False).open()


def test_wrong_credentials_are_a_mistake_and_appear_nowhere(kafka, cluster, caplog):
    caplog.set_level(logging.DEBUG)
    publisher = KafkaPublisher(
        {
            "bootstrap.servers": f"127.0.0.1:{kafka.facts['sasl_port']}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": SECRET,
        },
        cluster.topic(),
    )
    with pytest.raises(SourceError, match="Invalid username or password") as refused:
        publisher.open()
    [answer] = publisher.publish([Outgoing(b"x")])
    assert SECRET not in f"{publisher!r}{refused.getrepr(style='long')}{answer}{caplog.text}"


def test_messages_are_written_as_they_are(cluster):
    topic, other = cluster.topic(), cluster.topic()
    headers = {"text": "ä", "bytes": b"\xff", "none": None, "number": 3, "float": 0.5, "bool": True}
    with make_publisher(cluster, topic) as publisher:
        assert publisher.publish([]) == []
        answers = publisher.publish([Outgoing(b"one", key=b"k", headers=headers), Outgoing(b"", to=other)])
        assert answers == [None, None]
    with Reader(make_source(cluster, [topic, other])) as reader:
        reader.read(2)
        first, empty = reader.open[f"{topic}/0@0"], reader.open[f"{other}/0@0"]
        assert (first.value, first.raw.key(), empty.value, empty.raw.value()) == (b"one", b"k", b"", b"")
        texts = {"number": b"3", "float": b"0.5", "bool": b"True"}
        assert first.headers == {"text": "ä".encode(), "bytes": b"\xff", "none": None} | texts


def test_many_messages_pass_a_short_queue(cluster):
    topic = cluster.topic()
    with make_publisher(cluster, topic, queue_buffering_max_messages=10) as publisher:
        assert publisher.publish([Outgoing(b"%d" % number) for number in range(1000)]) == [None] * 1000
    assert cluster.ends(topic) == (0, 1000)


def test_each_refused_message_is_told(cluster):
    topic = cluster.topic()
    unknown = f"unknown-{uuid.uuid4().hex[:6]}"
    settings = {"allow_auto_create_topics": False, "topic_metadata_propagation_max_ms": 100}
    with make_publisher(cluster, topic, **settings) as publisher:
        messages = [
            Outgoing(b"good"),
            Outgoing(b"x" * 2_000_000),
            Outgoing(b"x", to=unknown),
            Outgoing("no bytes", headers={"h": "x"}, key=3),
            Outgoing(b"good too"),
        ]
        good, large, lost, wrong, too = publisher.publish(messages)
        assert good is too is None
        assert isinstance(large, PublishError) and "MSG_SIZE_TOO_LARGE" in str(large) and topic in str(large)
        assert isinstance(lost, PublishError) and unknown in str(lost)
        assert isinstance(wrong, PublishError)
    assert cluster.ends(topic) == (0, 2)


@pytest.mark.slow  # as the scenario a_publisher_connects_again, with a restart
def test_a_broker_that_is_away_is_told_and_then_used_again(kafka, cluster):
    topic = cluster.topic()
    with KafkaPublisher({"bootstrap.servers": cluster.url}, topic, timeout_secs=LONG) as publisher:
        assert publisher.publish([Outgoing(b"before")]) == [None]
    with KafkaPublisher({"bootstrap.servers": cluster.url}, topic, timeout_secs=1.0) as publisher:
        kafka.kill()
        answers = publisher.publish([Outgoing(b"lost"), Outgoing(b"lost too")])
        assert all(isinstance(answer, PublishError) for answer in answers)
        kafka.start()
    with KafkaPublisher({"bootstrap.servers": cluster.url}, topic, timeout_secs=LONG) as publisher:
        assert publisher.publish([Outgoing(b"after")]) == [None]


def test_a_client_that_can_be_used_no_more_is_replaced(cluster):
    topic = cluster.topic()
    with make_publisher(cluster, topic) as publisher:
        before = publisher._producer
        publisher._faults.fatal = SourceError("the client ended")
        assert publisher.publish([Outgoing(b"x")]) == [None] and publisher._producer is None
        assert publisher.publish([Outgoing(b"x")]) == [None] and publisher._producer is not before
