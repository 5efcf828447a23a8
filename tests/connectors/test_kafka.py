"""Kafka as a source, on a real server."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import NewPartitions

from acker.connectors.kafka import Kafka, membership
from acker.connectors.kafka import assignments as kafka_assignments
from acker.connectors.kafka.done import DoneAbove, metadata_of
from acker.errors import ArgumentTypeError, ArgumentValueError, ConnectionLostError, SourceError
from tests.connectors.kafka_kit import LONG, Cluster, Reader, make_source, wait_for
from tests.marks import slow_after

SECRET = "s3cret/#word"
PROTOCOLS = {
    "eager": {"partition_assignment_strategy": "range"},
    "cooperative": {"partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}


@pytest.fixture(scope="module")
def cluster(kafka):
    with contextlib.closing(Cluster(kafka.url)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _patient_close(monkeypatch):
    """The broker may take its time for the last commit."""
    monkeypatch.setattr(membership, "CLOSE_SECS", LONG)


@pytest.fixture
def group():
    return f"group-{uuid.uuid4().hex[:8]}"


def values(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


def keys(topic, offsets, partition=0):
    return [f"{topic}/{partition}@{offset}" for offset in offsets]


# ---- configuration ---------------------------------------------------------------------------------------------------

RIGHT = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}


@pytest.mark.parametrize(
    ("config", "topics", "settings", "text"),
    [
        (RIGHT | {"enable.auto.commit": True}, "t", {}, "enable.auto.commit"),
        (RIGHT | {"enable.auto.commit": "true"}, "t", {}, "enable.auto.commit"),
        ({"bootstrap.servers": "127.0.0.1:1"}, "t", {}, "group.id"),
        ({"group.id": "g"}, "t", {}, "bootstrap.servers"),
        (RIGHT, [], {}, "topics"),
        (RIGHT, "", {}, "topics"),
        (RIGHT, "t", {"rebalance_secs": 300.0}, "rebalance_secs"),
        (RIGHT | {"max.poll.interval.ms": "6000"}, "t", {"rebalance_secs": 6.0}, "6 s"),
        (RIGHT, "t", {"rebalance_secs": -1.0}, "rebalance_secs"),
    ],
)
def test_a_wrong_configuration_is_refused(config, topics, settings, text):
    with pytest.raises(ArgumentValueError, match=text):
        Kafka(config, topics, **settings)
    assert Kafka(RIGHT | {"enable.auto.commit": "false"}, "t")


@pytest.mark.parametrize(("chosen", "expected"), [({}, 10), ({"fetch.queue.backoff.ms": 500}, 500)])
def test_a_client_that_has_fetched_enough_soon_fetches_again_unless_told_otherwise(monkeypatch, chosen, expected):
    configs = []
    monkeypatch.setattr(membership, "Consumer", lambda config: configs.append(config) or Consumer(config))
    source = Kafka(RIGHT | chosen, "t", connect_secs=0.1)
    with pytest.raises(ConnectionLostError):
        source.open(None, 1)
    assert [each["fetch.queue.backoff.ms"] for each in configs] == [expected]


def test_a_configuration_is_a_dict():
    with pytest.raises(ArgumentTypeError, match="dict"):
        Kafka("localhost:9092", "t")


def test_a_property_that_the_client_does_not_know_is_a_mistake():
    source = Kafka(RIGHT | {"no.such.property": "1"}, "t")
    with pytest.raises(SourceError, match="No such configuration property"):
        source.open(Reader(source), 10)
    source.close()


def test_the_name_tells_topics_and_group():
    assert repr(Kafka(RIGHT, ["a", "b"])) == "<Kafka topics 'a', 'b', group 'g'>"


def test_a_source_that_is_not_open_can_be_closed_and_not_polled():
    source = Kafka(RIGHT, "t")
    source.close()
    source.wake()
    with pytest.raises(ConnectionLostError, match="not open"):
        source.poll(1, 0.0)


# ---- opening ---------------------------------------------------------------------------------------------------------


def test_no_broker_is_a_lost_connection():
    source = Kafka(RIGHT, "t")
    with pytest.raises(ConnectionLostError, match="Connection refused"):
        source.open(Reader(source), 10)


def test_an_outage_has_one_line_for_each_kind_of_error_however_often_the_source_is_opened(caplog):
    source = Kafka(RIGHT, "t")
    for _ in range(3):
        with pytest.raises(ConnectionLostError):
            source.open(Reader(source), 10)
    kinds = [line.split(": ")[1] for line in caplog.messages if "goes on trying" in line]
    assert kinds and len(kinds) == len(set(kinds)), caplog.messages


def test_an_unknown_topic_is_a_mistake(cluster):
    source = make_source(cluster, [cluster.topic(), "no-such-topic"])
    with pytest.raises(SourceError, match="no-such-topic"):
        source.open(Reader(source), 10)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sasl_password": SECRET}, "Invalid username or password"),
        ({"sasl_password": SECRET, "sasl_mechanism": "SCRAM-SHA-256"}, "Unsupported SASL mechanism"),
    ],
)
def test_wrong_credentials_are_a_mistake_and_appear_nowhere(kafka, cluster, caplog, settings, text):
    caplog.set_level(logging.DEBUG)
    right = {
        "bootstrap_servers": f"127.0.0.1:{kafka.facts['sasl_port']}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "alice",
        "debug": "all",
    }
    source = make_source(cluster, cluster.topic(), **right | settings)
    with pytest.raises(SourceError, match=text) as refused:
        source.open(Reader(source), 10)
    assert refused.value.__cause__ is None and refused.value.__suppress_context__ in {True, False}
    told = f"{source!r}{source.name}{refused.getrepr(style='long')}{caplog.text}{source.stats()}"
    assert "librdkafka" in caplog.text and SECRET not in told


def test_right_credentials_are_taken(kafka, cluster):
    topic = cluster.topic()
    cluster.write(topic, values(1))
    sasl = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "alice"}
    url = f"127.0.0.1:{kafka.facts['sasl_port']}"
    with Reader(make_source(cluster, topic, sasl_password="wonderland", bootstrap_servers=url, **sasl)) as reader:
        reader.read(1)


def test_a_secret_in_a_text_of_the_client_is_hidden(caplog):
    source = Kafka(RIGHT | {"ssl.key.pem": SECRET, "security.protocol": "ssl"}, "t")
    with pytest.raises(SourceError) as refused:
        source.open(Reader(source), 10)
    source._faults.log(logging.ERROR, "%s [%s] %s", "CONF", "client", f"ssl.key.pem = {SECRET}")
    assert "***" in caplog.text and SECRET not in f"{refused.value}{caplog.text}"


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_a_delivery_shows_its_message(cluster):
    topic = cluster.topic()
    headers = [("kind", b"old"), ("kind", b"new"), ("none", None), ("text", "ä")]
    cluster.write(topic, [b"body"], key=b"k", headers=headers)
    cluster.write(topic, [b"", None])
    with Reader(make_source(cluster, topic)) as reader:
        reader.read(3)
        first, empty, tombstone = reader.open.values()
        assert (first.key, first.value, first.attempt) == (f"{topic}/0@0", b"body", 1)
        assert first.headers == {"kind": b"new", "none": None, "text": "ä".encode()}
        assert first.raw.headers()[0] == ("kind", b"old") and first.raw.key() == b"k"
        assert (empty.value, empty.raw.value(), empty.headers) == (b"", b"", {})
        assert (tombstone.value, tombstone.raw.value()) == (b"", None)


@pytest.mark.slow
def test_a_body_of_100_megabytes(cluster):
    topic = cluster.topic(max_message_bytes=str(105_000_000))
    body = b"x" * 100_000_000
    from acker.connectors.kafka import KafkaPublisher
    from acker.connectors.publisher import Outgoing

    limits = {"message.max.bytes": 105_000_000}
    with KafkaPublisher({"bootstrap.servers": cluster.url, **limits}, topic, timeout_secs=LONG) as publisher:
        assert publisher.publish([Outgoing(body)]) == [None]
    limits = {"fetch_max_bytes": 110_000_000, "receive_message_max_bytes": 120_000_000}
    with Reader(make_source(cluster, topic, message_max_bytes=105_000_000, **limits)) as reader:
        reader.read(1)
        [delivery] = reader.open.values()
        assert delivery.value == body


def test_a_regular_expression_names_topics(cluster):
    stem = f"many-{uuid.uuid4().hex[:6]}"
    for suffix in "ab":
        cluster.write(cluster.topic(name=f"{stem}-{suffix}"), values(1))
    with Reader(make_source(cluster, f"^{stem}-.*")) as reader:
        reader.read(2)
        assert set(reader.open) == {f"{stem}-a/0@0", f"{stem}-b/0@0"}


# ---- commits ---------------------------------------------------------------------------------------------------------


def test_a_commit_never_passes_an_open_message(cluster, group):
    topic = cluster.topic()
    cluster.write(topic, values(10))
    with Reader(make_source(cluster, topic, group)) as reader:
        reader.read(10)
        reader.ack_all(but=keys(topic, [3]))
        wait_for(lambda: cluster.committed(group, topic) == 3, reader.poll)
        for _ in range(20):
            reader.poll()
        assert cluster.committed(group, topic) == 3
        reader.ack_all()
        wait_for(lambda: cluster.committed(group, topic) == 10, reader.poll)
    assert cluster.committed(group, topic) == 10


def test_what_is_open_at_the_end_is_read_again(cluster, group):
    topic = cluster.topic()
    cluster.write(topic, values(10))
    reader = Reader(make_source(cluster, topic, group, commit_secs=LONG))
    with reader:
        reader.read(10)
        reader.ack_all(but=keys(topic, [4, 7]))
        assert cluster.committed(group, topic) < 0
        before = dict(reader.open)
    assert cluster.committed(group, topic) == 4
    assert not any(map(reader.source.holds, before.values()))
    reader.open.clear()
    with reader:  # the same source again
        reader.read(2)
        assert list(reader.open) == keys(topic, [4, 7])
        assert not any(map(reader.source.holds, before.values()))
        reader.source.ack(list(before.values()))  # of the connection before: they mean nothing now
        reader.ack_all(but=keys(topic, [4]))
    assert cluster.committed(group, topic) == 4


def test_partitions_are_committed_each_for_itself(cluster, group):
    topics = [cluster.topic(partitions=3), cluster.topic(partitions=2)]
    places = [(topics[0], 0), (topics[0], 1), (topics[0], 2), (topics[1], 0), (topics[1], 1)]
    for topic, partition in places:
        cluster.write(topic, values(10), partition)
    with Reader(make_source(cluster, topics, group)) as reader:
        reader.read(50)
        held = [keys(topic, [2 * number], partition)[0] for number, (topic, partition) in enumerate(places)]
        reader.ack(*reversed([key for key in reader.open if key not in held]))
        expected = [0, 2, 4, 6, 8]
        wait_for(lambda: [max(0, cluster.committed(group, *place)) for place in places] == expected, reader.poll)
        reader.ack_all()
    assert [cluster.committed(group, *place) for place in places] == [10] * 5


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_markers_of_transactions_do_not_stop_a_commit(cluster, group, isolation):
    topic = cluster.topic()
    producer = cluster.transactional()
    for outcome in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        cluster.write(topic, values(3), producer=producer)
        outcome(LONG)
    end = cluster.ends(topic)[1]
    assert end == 12
    with Reader(make_source(cluster, topic, group, isolation_level=isolation)) as reader:
        reader.read(6 if isolation == "read_committed" else 9)
        assert keys(topic, [0, 1, 2]) == list(reader.open)[:3]
        last = keys(topic, [10])
        reader.ack_all(but=last)
        wait_for(lambda: cluster.committed(group, topic) == 10, reader.poll)
        reader.ack(*last)
        wait_for(lambda: cluster.committed(group, topic) == end, reader.poll)  # so tools show no lag


def test_an_aborted_end_does_not_leave_a_lag(cluster, group):
    topic = cluster.topic()
    producer = cluster.transactional()
    cluster.write(topic, values(2))
    producer.begin_transaction()
    cluster.write(topic, values(3), producer=producer)
    producer.abort_transaction(LONG)
    with Reader(make_source(cluster, topic, group)) as reader:
        reader.read(2)
        wait_for(lambda: cluster.committed(group, topic) == 6, lambda: (reader.poll(), reader.ack_all()))


def test_compacted_messages_do_not_stop_a_commit(cluster, group):
    topic = cluster.topic(
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="100",
        min_compaction_lag_ms="0",
    )
    for number in range(30):
        cluster.write(topic, values(1, number), key=b"same" if number % 3 else b"%d" % number)

    def kept():
        # A new message closes the segment before, and only closed ones are compacted.
        cluster.write(topic, [b"last"], key=b"same")
        with Reader(make_source(cluster, topic)) as looker:
            end = cluster.ends(topic)[1]
            wait_for(lambda: keys(topic, [end - 1])[0] in looker.open, looker.poll)
            return list(looker.open) if len(looker.open) < 20 else None

    wait_for(kept)
    with Reader(make_source(cluster, topic, group)) as reader:
        end = cluster.ends(topic)[1]
        wait_for(lambda: keys(topic, [end - 1])[0] in reader.open, reader.poll)
        assert len(reader.open) < 20
        held = keys(topic, [3])
        reader.ack_all(but=held)
        wait_for(lambda: cluster.committed(group, topic) == 3, reader.poll)
        reader.ack(*held)
        wait_for(lambda: cluster.committed(group, topic) == end, reader.poll)


def test_deleted_messages_do_not_stop_a_commit(cluster, group):
    topic = cluster.topic()
    cluster.write(topic, values(10))
    with Reader(make_source(cluster, topic, group)) as reader:
        reader.read(10)
        reader.ack_all()
    cluster.write(topic, values(10, 10))
    cluster.delete_records(topic, 15)  # the group has committed 10
    with Reader(make_source(cluster, topic, group)) as reader:
        reader.read(5)
        assert list(reader.open) == keys(topic, range(15, 20))
        reader.ack_all(but=keys(topic, [16]))
        wait_for(lambda: cluster.committed(group, topic) == 16, reader.poll)
        reader.ack_all()
    assert cluster.committed(group, topic) == 20


def test_a_new_group_that_begins_at_the_end_misses_nothing_from_then_on(cluster, group):
    topic = cluster.topic(partitions=2)
    cluster.write(topic, values(5))
    settings = {"auto_offset_reset": None}  # the client's default is the end
    with Reader(make_source(cluster, topic, group, **settings)) as reader:
        wait_for(reader.partitions, reader.poll)
        assert (cluster.committed(group, topic), cluster.committed(group, topic, 1)) == (5, 0)
        cluster.write(topic, values(1, 5))
        reader.read(1)
    cluster.write(topic, values(3, 6))
    cluster.write(topic, values(3), partition=1)
    with Reader(make_source(cluster, topic, group, **settings)) as reader:
        reader.read(7)
        assert set(reader.open) == {*keys(topic, range(5, 9)), *keys(topic, range(3), 1)}


@pytest.mark.parametrize("reset", [None, "earliest"])
def test_the_commits_of_new_partitions_are_asked_for_once(cluster, group, monkeypatch, reset):
    asked = []

    class Watched(membership.Consumer):
        def committed(self, partitions, **named):
            asked.extend((each.topic, each.partition) for each in partitions)
            return super().committed(partitions, **named)

    monkeypatch.setattr(membership, "Consumer", Watched)
    topic = cluster.topic(partitions=2)
    with Reader(make_source(cluster, topic, group, auto_offset_reset=reset)) as reader:
        wait_for(lambda: len(reader.partitions()) == 2, reader.poll)
    assert sorted(asked) == [(topic, 0), (topic, 1)]


def add_partitions(cluster, topic, count):
    """Let a topic have so many partitions; return when the brokers show them."""
    cluster.admin.create_partitions([NewPartitions(topic, count)])[topic].result(LONG)
    wait_for(lambda: len(cluster.admin.list_topics(topic, timeout=LONG).topics[topic].partitions) == count)
    # Its producer would not know them for a while.
    cluster.producer = Cluster(cluster.url).producer


def test_a_group_that_begins_at_the_end_misses_nothing_of_a_partition_that_is_added(cluster, group):
    topic = cluster.topic()
    cluster.write(topic, values(5))
    settings = {"auto_offset_reset": None, "topic_metadata_refresh_interval_ms": 200}
    with Reader(make_source(cluster, topic, group, **settings)) as reader:
        wait_for(reader.partitions, reader.poll)
        add_partitions(cluster, topic, 2)
        cluster.write(topic, values(3), partition=1)  # before this member has noticed the partition
        wait_for(lambda: len(reader.keys) >= 3, reader.poll)
        assert reader.keys == keys(topic, range(3), 1)
    add_partitions(cluster, topic, 3)
    cluster.write(topic, values(2), partition=2)  # while no member is there
    with Reader(make_source(cluster, topic, group, **settings)) as reader:
        reader.read(5)
        assert set(reader.open) == {*keys(topic, range(3), 1), *keys(topic, range(2), 2)}


def test_a_group_that_begins_at_the_end_misses_nothing_of_a_topic_that_is_made_later(cluster, group):
    name = f"later-{group}"
    old, settings = cluster.topic(name=f"{name}-old"), {"auto_offset_reset": None}
    cluster.write(old, values(3))
    pattern = {"topic_metadata_refresh_interval_ms": 200}
    with Reader(make_source(cluster, f"^{name}-.*", group, **settings | pattern)) as reader:
        wait_for(reader.partitions, reader.poll)
        new = cluster.topic(name=f"{name}-new")
        cluster.write(new, values(3))
        wait_for(lambda: len(reader.keys) >= 3, reader.poll)
        assert reader.keys == keys(new, range(3))


def test_two_members_of_a_new_group_agree_where_it_begins(cluster, group):
    topic = cluster.topic(partitions=2)
    for partition in range(2):
        cluster.write(topic, values(5), partition=partition)
    settings = {"auto_offset_reset": None}
    with (
        Reader(make_source(cluster, topic, group, **settings)) as one,
        Reader(make_source(cluster, topic, group, **settings)) as other,
    ):
        both = lambda: [each.poll() for each in (one, other)]  # noqa: E731
        wait_for(lambda: len(one.partitions()) == len(other.partitions()) == 1, both)
        assert [cluster.committed(group, topic, partition) for partition in range(2)] == [5, 5]
        for partition in range(2):
            cluster.write(topic, values(1, 5), partition=partition)
        wait_for(lambda: len(one.keys) + len(other.keys) >= 2, both)
        assert {*one.keys, *other.keys} == {*keys(topic, [5]), *keys(topic, [5], 1)}


def test_a_topic_that_was_made_anew_is_read_from_its_start(cluster, group):
    topic = cluster.topic()
    cluster.write(topic, values(5))
    reader = Reader(make_source(cluster, topic, group, topic_metadata_refresh_interval_ms=200))
    with reader:
        reader.read(5)
        reader.ack(*keys(topic, [0, 1]))
        wait_for(lambda: cluster.committed(group, topic) == 2, reader.poll)
        cluster.delete(topic)
        wait_for(lambda: topic not in cluster.admin.list_topics(timeout=LONG).topics)
        # The broker forgets commits a moment later; a topic that is made before that begins at the old one.
        wait_for(lambda: cluster.committed(group, topic) == -1001)
        cluster.topic(name=topic)
        cluster.write(topic, values(3, 100))

        wait_for(lambda: any(each.value == b"102" for each in reader.open.values()), reader.step)
        fresh = [each.value for each in reader.open.values() if int(each.value) >= 100]
        assert fresh == values(3, 100)


# ---- no room ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pauses_at_once(monkeypatch):
    monkeypatch.setattr(membership, "LOOK_SECS", 0.0)
    monkeypatch.setattr(membership, "SURPLUS_MAX", 1)


def test_nothing_is_lost_or_doubled_by_pauses(cluster, pauses_at_once):
    topic = cluster.topic(partitions=3)
    for partition in range(3):
        cluster.write(topic, values(40), partition)
    with Reader(make_source(cluster, topic, fetch_wait_max_ms=10)) as reader:
        limits = itertools.cycle([1, 7, 30, 2, 10])

        def poll_and_pause():
            if reader.poll(next(limits)):
                wait_for(lambda: reader.source._member.is_paused or len(reader.keys) > 100, lambda: reader.poll(0, 0.0))

        wait_for(lambda: len(reader.keys) == 120, poll_and_pause)
        for _ in range(20):
            assert not reader.poll()
        for partition in range(3):
            assert [key for key in reader.keys if f"/{partition}@" in key] == keys(topic, range(40), partition)


def test_a_few_messages_are_read_ahead_and_then_no_more(cluster, monkeypatch):
    monkeypatch.setattr(membership, "LOOK_SECS", 0.0)
    topic = cluster.topic()
    cluster.write(topic, values(100))
    with Reader(make_source(cluster, topic)) as reader:
        wait_for(lambda: reader.source._member.is_paused, lambda: reader.poll(0))
        for _ in range(20):
            assert reader.poll(0) == []
        assert len(reader.source._member.surplus) == 16
        assert [each.key for each in reader.poll(10)] == keys(topic, range(10))
        assert reader.source._member.is_paused, "there are more"
        reader.read(100)
        assert reader.keys == keys(topic, range(100))


def test_one_large_message_is_enough_to_read_ahead(cluster, monkeypatch):
    monkeypatch.setattr(membership, "LOOK_SECS", 0.0)
    topic = cluster.topic(max_message_bytes="3000000")
    for _ in range(3):
        cluster.write(topic, [b"x" * 900_000])
    with Reader(make_source(cluster, topic)) as reader:
        wait_for(lambda: reader.source._member.is_paused, lambda: reader.poll(0))
        assert len(reader.source._member.surplus) == 2


def test_the_client_is_not_called_all_the_time_without_room(cluster, monkeypatch):
    monkeypatch.setattr(membership, "LOOK_SECS", LONG)
    topic = cluster.topic()
    cluster.write(topic, values(10))
    with Reader(make_source(cluster, topic)) as reader:
        wait_for(lambda: reader.keys, lambda: reader.poll(1))
        for _ in range(20):
            assert reader.poll(0, 0.0) == []
        assert len(reader.source._member.surplus) <= 1
        reader.read(10)


def test_a_wait_without_room_can_be_ended(cluster):
    with Reader(make_source(cluster, cluster.topic())) as reader:
        polling = threading.Thread(target=reader.poll, args=[0, 2 * LONG])
        reader.source.wake()
        polling.start()
        polling.join(LONG)
        assert not polling.is_alive()


def test_partitions_that_come_during_a_pause_are_paused_too(cluster, group, monkeypatch):
    monkeypatch.setattr(membership, "LOOK_SECS", 0.0)
    monkeypatch.setattr(membership, "SURPLUS_MAX", 0)
    topic = cluster.topic(partitions=2)
    for partition in range(2):
        cluster.write(topic, values(5), partition)
    with Reader(make_source(cluster, topic, group)) as reader:
        wait_for(lambda: reader.partitions() == {0, 1}, lambda: reader.poll(0))
        for _ in range(20):
            assert reader.poll(0) == []
        assert reader.source._member.is_paused and not reader.source._member.surplus
        reader.read(10)
        assert len(set(reader.keys)) == 10


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_partition_that_went_during_a_pause_flows_when_it_comes_back(cluster, group, pauses_at_once, protocol):
    topic = cluster.topic(partitions=2)
    for partition in range(2):
        cluster.write(topic, values(5), partition)
    first = Reader(make_source(cluster, topic, group, **PROTOCOLS[protocol]))
    with first:
        wait_for(lambda: first.partitions() == {0, 1}, lambda: first.poll(1))
        wait_for(lambda: first.source._member.is_paused, lambda: first.poll(0))
        with Reader(make_source(cluster, topic, group, **PROTOCOLS[protocol])) as second:
            wait_for(second.partitions, lambda: (first.poll(0), second.poll(0)))
            wait_for(lambda: len(first.partitions()) == 1, lambda: (first.poll(0), second.poll(0)))
        wait_for(lambda: first.partitions() == {0, 1}, first.poll)
        first.read(10)


def test_a_partition_is_not_taken_for_empty_before_the_broker_has_answered_for_it(cluster, group):
    with Reader(make_source(cluster, cluster.topic(), group)) as reader:
        wait_for(lambda: reader.source.is_receiving, reader.poll)  # though it is empty
        member = reader.source._member
        client, member._client = member._client, Consumer({"bootstrap.servers": cluster.url, "group.id": group})
        assert member.is_member and not reader.source.is_receiving
        member._client.close()
        member._client = client


# ---- rebalances ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rebalance_in_the_middle_of_open_messages(cluster, group, protocol):
    topic = cluster.topic(partitions=4)
    for partition in range(4):
        cluster.write(topic, values(10), partition)
    settings = PROTOCOLS[protocol] | {"commit_secs": LONG, "rebalance_secs": 5.0}

    def ack_some(reader, concerned):
        """End all messages of the revoked partitions but numbers 6 and 8."""
        reader.ack(*[key for key in concerned if not key.endswith(("@6", "@8"))])

    first = Reader(make_source(cluster, topic, group, **settings), at_finish=ack_some)
    with first:
        first.read(40)
        with Reader(make_source(cluster, topic, group, **settings)) as second:
            wait_for(lambda: len(second.partitions()) == 2, lambda: (first.poll(), second.poll()))
            wait_for(lambda: len(first.partitions()) == 2, lambda: (first.poll(), second.poll()))
            taken, kept = second.partitions(), first.partitions()
            concerned = {key for keys_, _ in first.finished for key in keys_}
            revoked = {0, 1, 2, 3} if protocol == "eager" else taken
            assert concerned == {key for each in revoked for key in keys(topic, range(10), each)}
            assert {secs for _, secs in first.finished} == {5.0}
            # One commit, of what ended in time; what had not is gone here, and read again where the partition is.
            assert [cluster.committed(group, topic, each) for each in sorted(revoked)] == [6] * len(revoked)
            assert sorted(each.key for each in first.gone) == sorted(
                key for each in revoked for key in keys(topic, [6, 8], each)
            )
            assert not any(map(first.source.holds, first.gone))
            first.source.ack(first.gone)  # a late outcome
            # What was done above the commits is passed over.
            second.read(4, first)
            assert set(second.open) == {key for each in taken for key in keys(topic, [6, 8], each)}
            if protocol == "eager":
                wait_for(lambda: len(first.open) == 4, first.poll)
            else:
                assert set(first.open) == {key for each in kept for key in keys(topic, range(10), each)}
            second.ack(*[key for key in second.open if key.endswith("@6")])
        # The other one has left, with a commit; what it had open comes here.
        assert [cluster.committed(group, topic, each) for each in sorted(taken)] == [8, 8]
        wait_for(lambda: first.partitions() == {0, 1, 2, 3}, first.poll)
        rest = {key for each in taken for key in keys(topic, [8], each)}
        if protocol == "eager":  # it has read anew what it kept, too
            rest |= {key for each in kept for key in keys(topic, [6, 8], each)}
        wait_for(lambda: rest <= set(first.open), first.poll)
        assert not any(map(first.source.holds, first.gone)), "they belong to an assignment before"
        first.source.ack(first.gone)
        first.ack_all()
    assert [cluster.committed(group, topic, each) for each in range(4)] == [10] * 4
    assert first.source.stats().left_open >= len(first.gone)
    assert first.source.stats().revoked == len(revoked) + (2 if protocol == "eager" else 0)


@pytest.mark.parametrize("protocol", slow_after(1, ["eager", *(name for name in PROTOCOLS if name != "eager")]))
def test_a_consumer_that_was_away_for_too_long_has_lost_its_partitions(cluster, group, caplog, protocol):
    topic = cluster.topic(partitions=2)
    for partition in range(2):
        cluster.write(topic, values(5), partition)
    # The client's clock decides who was away: not both, where the machine stands still for some seconds.
    settings = PROTOCOLS[protocol] | {"max_poll_interval_ms": 6000, "rebalance_secs": 1.0, "commit_secs": LONG}
    first = Reader(make_source(cluster, topic, group, **settings))
    with first, Reader(make_source(cluster, topic, group, **settings)) as second:
        wait_for(lambda: first.partitions() and second.partitions(), lambda: (first.poll(), second.poll()))
        wait_for(lambda: len(first.open) == len(second.open) == 5, lambda: (first.poll(), second.poll()))
        mine = next(iter(first.partitions()))
        first.ack_all()
        second.ack_all()
        # The first one is not polled: the other one gets what it had, and does all but one of it.
        wait_for(lambda: set(second.open) >= set(keys(topic, range(5), mine)), second.poll)
        second.ack_all(but=keys(topic, [2], mine))
        second.source._member._commits.send_now(
            second.source._member._client, second.source._member.assignments, set(second.source._member.assignments)
        )
        assert cluster.committed(group, topic, mine) == 2
        wait_for(lambda: first.source.stats().lost, lambda: (first.poll(), second.poll()))
        assert "max.poll.interval.ms" in caplog.text
        assert first.source.stats().uncommitted == 5 and first.source.stats().commits_failed == 0
        assert f"lost {topic}/{mine} without notice: 5 messages were done and not committed" in caplog.text
        assert cluster.committed(group, topic, mine) == 2, "it commits nothing of what it lost"
        # Both work on: whoever has the partition now reads on where the other one committed.
        wait_for(lambda: first.partitions() and second.partitions(), lambda: (first.poll(), second.poll()))
        first.open.clear()
        second.open.clear()
        for partition in range(2):
            cluster.write(topic, values(1, 5), partition)
        wait_for(lambda: keys(topic, [5], 0)[0] in {*first.open, *second.open}, lambda: (first.poll(), second.poll()))
        wait_for(lambda: keys(topic, [5], 1)[0] in {*first.open, *second.open}, lambda: (first.poll(), second.poll()))


def test_a_fault_of_the_consumer_during_a_rebalance_comes_out_of_poll(cluster, group):
    topic = cluster.topic(partitions=2)

    def fail(reader, concerned):
        raise ZeroDivisionError("of the consumer")

    first = Reader(make_source(cluster, topic, group), at_finish=fail)
    with first:
        wait_for(first.partitions, first.poll)
        with Reader(make_source(cluster, topic, group)) as second:

            def both():
                second.poll()
                first.poll()

            with pytest.raises(ZeroDivisionError, match="of the consumer"):
                wait_for(lambda: False, both)


def test_a_static_member_that_another_one_replaced_is_a_mistake(cluster, group):
    topic = cluster.topic()
    settings = {"group_instance_id": "one", "session_timeout_ms": 6000, "heartbeat_interval_ms": 200}
    first = Reader(make_source(cluster, topic, group, **settings))
    with first:
        wait_for(first.partitions, first.poll)
        with (
            Reader(make_source(cluster, topic, group, **settings)) as second,
            pytest.raises(SourceError, match="Static consumer fenced"),
        ):
            wait_for(lambda: False, lambda: (second.poll(), first.poll()))


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_restarted_broker_costs_nothing(kafka, cluster, group, caplog):
    topic = cluster.topic()
    cluster.write(topic, values(10))
    with Reader(make_source(cluster, topic, group)) as reader:
        reader.read(10)
        reader.ack(*keys(topic, [0, 1]))
        wait_for(lambda: cluster.committed(group, topic) == 2, reader.poll)
        for down, end in ((kafka.stop, 15), (kafka.kill, 20)):
            down()
            wait_for(lambda: reader.source._faults._logged, reader.poll)
            kafka.start()
            cluster.write(topic, values(5))
            last = keys(topic, [end - 1])[0]
            wait_for(lambda last=last: last in reader.open, reader.step)
        assert set(reader.keys) == set(keys(topic, range(20)))
        held = keys(topic, [4])
        wait_for(lambda: held[0] in reader.open, reader.step)
        reader.ack_all(but=held)
        wait_for(lambda: cluster.committed(group, topic) == 4, reader.step)
        reader.ack_all()
        wait_for(lambda: cluster.committed(group, topic) == 20, reader.step)
    assert reader.source.stats().errors > 0
    warnings = [each.message for each in caplog.records if "goes on trying" in each.message]
    assert 0 < len(warnings) <= 12, "each kind once an outage"


def test_a_failed_commit_is_told_and_tried_again(cluster, group, caplog):
    topic = cluster.topic()
    cluster.write(topic, values(5))
    with Reader(make_source(cluster, topic, group)) as reader:
        reader.read(5)
        reader.ack(*keys(topic, [0, 1, 2]))
        source = reader.source
        commits = source._member._commits
        commits.send_when_due(source._member._client, source._member.assignments)
        assert commits._in_flight
        refused = KafkaError(KafkaError.REBALANCE_IN_PROGRESS, "try again")
        commits.on_commit(refused, [TopicPartition(topic, 0, 3)])
        assert f"the commit of {topic}/0@3 failed: REBALANCE_IN_PROGRESS: try again; it is tried again" in caplog.text
        assert (reader.source.stats().commits, reader.source.stats().commits_failed) == (0, 1)
        wait_for(lambda: reader.source.stats().commits, reader.poll)
        assert cluster.committed(group, topic) == 3


def test_a_commit_that_nobody_answers_is_tried_again(cluster, group, caplog, monkeypatch):
    monkeypatch.setattr(kafka_assignments, "_ANSWER_SECS", 0.0)
    topic = cluster.topic()
    cluster.write(topic, values(5))
    with Reader(make_source(cluster, topic, group)) as reader:
        reader.read(5)
        reader.ack_all()
        [assignment] = reader.source._member.assignments
        reader.source._member._commits._in_flight = {assignment: assignment.at(4)}
        wait_for(lambda: reader.source.stats().commits, reader.poll)
        assert f"the commit of {topic}/0@4 failed: no answer" in caplog.text
        assert cluster.committed(group, topic) == 5


def test_a_broker_that_hangs_holds_nothing_up(kafka, cluster, group, caplog, monkeypatch):
    monkeypatch.setattr(membership, "CLOSE_SECS", 0.5)
    topic = cluster.topic()
    cluster.write(topic, values(5))
    with Reader(make_source(cluster, topic, group)) as reader:
        reader.read(5)
        kafka.pause()
        reader.ack(*keys(topic, [0, 1, 2]))
        for _ in range(10):
            reader.poll()
        reader.source.close()
        kafka.resume()
        assert "leave its group" in caplog.text
        reader.open.clear()
        reader.reopen()
        last = keys(topic, [4])[0]
        wait_for(lambda: last in reader.open, reader.step)
        reader.ack_all()
        wait_for(lambda: cluster.committed(group, topic) == 5, reader.step)


@pytest.mark.slow
def test_a_source_is_closed_in_time_when_its_broker_is_gone(kafka, cluster, group, caplog, monkeypatch):
    monkeypatch.setattr(membership, "CLOSE_SECS", 0.5)
    topic = cluster.topic()
    cluster.write(topic, values(5))
    with Reader(make_source(cluster, topic, group, commit_secs=LONG)) as reader:
        reader.read(5)
        reader.ack_all()
        kafka.kill()
        reader.source.close()
        assert f"the commit of {topic}/0@5 failed: no answer" in caplog.text
        assert reader.source.count_unacked([]) == 5
        kafka.start()
    cluster.write(topic, [b"last"])
    last = f"{topic}/0@5"
    with Reader(make_source(cluster, topic, group)) as reader:
        wait_for(lambda: last in reader.open, reader.poll)
        # The client that was given up may still have told its commit to the broker that came back.
        assert reader.keys in (keys(topic, range(6)), [last])


def test_a_callback_that_fails_costs_no_messages(cluster, group, caplog):
    topic = cluster.topic()

    def stats_cb(text):
        raise ZeroDivisionError("of the user")

    cluster.write(topic, values(200))
    with Reader(make_source(cluster, topic, group, stats_cb=stats_cb, statistics_interval_ms=10)) as reader:
        wait_for(lambda: len(reader.open) == 200 and "of the user" in caplog.text, lambda: reader.poll(20))
        assert reader.keys == keys(topic, range(200))


class UnknownTopic:
    """A message that is an error."""

    def error(self):
        return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)

    def topic(self):
        return "another"


@pytest.mark.parametrize("fault", ["raised by a callback", "among the messages"])
def test_a_commit_does_not_pass_messages_that_nobody_saw(cluster, group, monkeypatch, fault):
    """An error costs the client the messages that it is about to hand out; its position has passed them."""
    drops = [7, 4, 1]

    class DroppingConsumer(Consumer):
        def consume(self, *arguments):
            messages = super().consume(*arguments)
            if messages and drops and len(reader.keys) >= 50 * drops[-1]:
                drops.pop()
                if fault == "among the messages":
                    return [UnknownTopic(), *messages]
                raise ZeroDivisionError("of the user")
            return messages

    monkeypatch.setattr(membership, "Consumer", DroppingConsumer)
    topic = cluster.topic()
    cluster.write(topic, values(400))
    reader = Reader(make_source(cluster, topic, group))
    with reader:
        wait_for(lambda: len(reader.keys) >= 400, lambda: (reader.step(20), reader.ack_all()))
        assert reader.reopened == 3 and reader.keys == keys(topic, range(400))
        wait_for(lambda: cluster.committed(group, topic) == 400, reader.step)


def test_callbacks_of_the_configuration_are_called(cluster, group, caplog):
    topic = cluster.topic()
    cluster.write(topic, values(1))
    commits = []

    def on_commit(error, places):
        commits.append((error, places[0].offset))
        raise ZeroDivisionError("of the user")

    with Reader(make_source(cluster, topic, group, on_commit=on_commit)) as reader:
        reader.read(1)
        reader.ack_all()
        wait_for(lambda: commits, reader.poll)
        assert commits == [(None, 1)] and "ZeroDivisionError" in caplog.text
        errors = []
        source = Kafka(RIGHT | {"error_cb": errors.append}, "t")
        with pytest.raises(ConnectionLostError):
            source.open(reader, 1)
        assert errors


def test_a_place_of_an_offset_is_read_by_people():
    assert str(kafka_assignments.Assignment("t", 3, None)) == "t/3"
    assert kafka_assignments.Assignment("t", 3, None).at(7) == TopicPartition("t", 3, 7)


# ---- what is done above an open message ------------------------------------------------------------------------------


def read_some(reader, count):
    """Read until so many deliveries came; return their offsets."""
    wait_for(lambda: len(reader.keys) >= count, reader.poll, f"{count} deliveries")
    return [int(key.rpartition("@")[2]) for key in reader.keys]


def ack_but(reader, left_open):
    """Ack everything but some offsets."""
    done = [delivery for delivery in reader.open.values() if delivery.raw.offset() not in left_open]
    reader.source.ack(done)


def test_what_is_done_above_an_open_message_is_not_done_again(cluster, group):
    topic = cluster.topic()
    cluster.write(topic, values(10))
    with Reader(make_source(cluster, topic, group)) as reader:
        read_some(reader, 10)
        ack_but(reader, {3, 7})
    cluster.write(topic, values(2, 10))
    for _ in range(2):  # who reads again and finishes nothing keeps what is done
        with Reader(make_source(cluster, topic, group)) as reader:
            assert read_some(reader, 4) == [3, 7, 10, 11]
            assert reader.source.stats().skipped == 5  # 4 to 6, 8 and 9
    with Reader(make_source(cluster, topic, group)) as reader:
        read_some(reader, 4)
        ack_but(reader, ())
    assert cluster.committed(group, topic) == 12 and cluster.metadata(group, topic) == ""


def test_it_is_committed_while_the_open_message_holds_the_offset(cluster, group):
    topic = cluster.topic()
    cluster.write(topic, values(10))
    with Reader(make_source(cluster, topic, group)) as reader:
        read_some(reader, 10)
        for done in ({1}, {1, 2, 3}):
            ack_but(reader, set(range(10)) - done)
            wait_for(lambda: noted(cluster, group, topic) == done, reader.poll, "the commit")  # noqa: B023
            assert cluster.committed(group, topic) == 0


def noted(cluster, group, topic):
    """Return the offsets that the commit of a group names as done."""
    done = DoneAbove(cluster.metadata(group, topic), cluster.committed(group, topic))
    return {offset for first, end in done.runs for offset in range(first, end)}


def test_a_member_that_takes_a_partition_over_does_not_do_it_again(cluster, group):
    topic = cluster.topic(2)
    for partition in range(2):
        cluster.write(topic, values(10), partition)
    settings = {"rebalance_secs": 0.0}
    with Reader(make_source(cluster, topic, group, **settings)) as first:
        read_some(first, 20)
        ack_but(first, {3})
        with Reader(make_source(cluster, topic, group, **settings)) as second:
            wait_for(lambda: second.keys, lambda: (first.poll(), second.poll()), "a rebalance")
            assert [key.rpartition("@")[2] for key in second.keys] == ["3"]


def test_new_messages_with_old_offsets_are_not_taken_for_done(cluster, group):
    """After a loss of data. The commit is of an owner that has read no message as young as these."""
    topic = cluster.topic()
    text, _ = metadata_of(3, [(4, 10)], 1000, 4096)
    cluster.commit(group, topic, 3, text)
    cluster.write(topic, values(10))
    with Reader(make_source(cluster, topic, group)) as reader:
        assert read_some(reader, 7) == list(range(3, 10)) and reader.source.stats().skipped == 0


@pytest.mark.slow
def test_a_broker_that_takes_less_metadata_gets_less(cluster, group, monkeypatch, caplog):
    monkeypatch.setattr("acker.connectors.kafka.assignments._METADATA_BYTES_MAX", 100_000)
    topic = cluster.topic()
    cluster.write(topic, values(30_000))
    with Reader(make_source(cluster, topic, group)) as reader:
        read_some(reader, 30_000)
        ack_but(reader, range(0, 30_000, 2))
        wait_for(lambda: reader.source.stats().cut, reader.poll, "a commit that is cut short")
        wait_for(lambda: reader.source.stats().commits, reader.poll, "a commit")
    assert "OFFSET_METADATA_TOO_LARGE" in caplog.text
    with Reader(make_source(cluster, topic, group)) as reader:
        found = read_some(reader, 15_000)
        assert set(range(0, 30_000, 2)) < set(found) | set(range(found[-1], 30_000)) and found[0] == 0
        assert reader.source.stats().skipped > 9_000
