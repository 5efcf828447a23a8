"""Redis Streams as a source and as a publisher, on a real server."""

from __future__ import annotations

import json
import logging
import os
import uuid

import pytest
import redis as redis_py

from acker.connectors import Outgoing, redis_streams
from acker.connectors.redis_streams import RedisStreams, RedisStreamsPublisher
from acker.errors import ArgumentValueError, ConnectionLostError, PublishError, SourceError
from tests.connectors.sources import (
    OwnerContract,
    Seen,
    check_that_a_stop_counts_unacked,
    closed_at_the_end,
    opens,
    take,
    texts_of,
    values,
)
from tests.servers import PATIENCE_SECS

GROUP = "workers"
SECRET = "s3cret/#word"


@pytest.fixture
def client(redis):
    with redis_py.Redis.from_url(redis.url, socket_timeout=PATIENCE_SECS) as client:
        yield client


@pytest.fixture
def stream():
    return f"stream-{uuid.uuid4().hex}"


@pytest.fixture
def make(redis, stream):
    """Return sources for the stream of this test, closed at its end."""

    def new(server=redis.url, **settings):
        return RedisStreams(server, **{"stream": stream, "group": GROUP, **settings})

    with closed_at_the_end(new) as make:
        yield make


@pytest.fixture
def opened(make):
    return opens(make)


def add(client, stream, count, first=0):
    return [client.xadd(stream, {"value": str(first + number)}) for number in range(count)]


def polls_nothing(source, rounds=5):
    return all(not source.poll(100, 0.0) for _ in range(rounds))


def pending(client, stream):
    return {row["message_id"]: row for row in client.xpending_range(stream, GROUP, "-", "+", 1000)}


def end_leases_of(client, stream, ids):
    """Let entries look as if nobody had cared for them since 1970."""
    for id_, row in pending(client, stream).items():
        if id_ in ids:
            client.xclaim(stream, GROUP, row["consumer"], 0, [id_], time=1, justid=True)


def end_leases(client, stream, deliveries):
    end_leases_of(client, stream, {delivery.receipt.entry_id for delivery in deliveries})


def look_for_idle(source):
    """The next poll looks for entries whose lease is over."""
    source._claim_due = 0.0


def test_entries_come_once_in_their_order_and_are_gone_when_acked(client, stream, opened):
    add(client, stream, 250)
    source = opened()
    found = take(source, 250)
    assert values(found) == list(range(250))
    assert {delivery.attempt for delivery in found} == {1}
    assert polls_nothing(source)
    assert len(pending(client, stream)) == 250
    source.ack(found[::2])
    source.poll(0, 0.0)
    assert set(pending(client, stream)) == {delivery.receipt.entry_id for delivery in found[1::2]}
    assert [source.holds(delivery) for delivery in found[:2]] == [False, True]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True])
def test_what_a_delivery_says(client, redis, stream, opened, protocol, decode):
    fields = {"value": b"\0\xff body", "kind": "größe", "digest": b"\xff\xfe", "empty": ""}
    id_ = client.xadd(stream, fields)
    source = opened(server=redis_py.Redis.from_url(redis.url, protocol=protocol, decode_responses=decode))
    (delivery,) = take(source, 1)
    assert delivery.key == f"{stream}/{id_.decode()}"
    assert delivery.value == b"\0\xff body"
    assert delivery.headers == {"kind": "größe", "digest": b"\xff\xfe", "empty": ""}
    assert delivery.raw == {
        b"value": b"\0\xff body",
        b"kind": "größe".encode(),
        b"digest": b"\xff\xfe",
        b"empty": b"",
    }
    end_leases(client, stream, [delivery])
    (again,) = take(opened(), 1)
    assert (again.value, again.headers, again.attempt) == (delivery.value, delivery.headers, 2)
    assert source.extend([delivery]) == [delivery]


def test_an_entry_without_the_field_of_the_value(client, stream, opened):
    client.xadd(stream, {"order": 7, "bytes": b"\xff"})
    (delivery,) = take(opened(), 1)
    assert delivery.value == b""
    assert delivery.headers == {"order": "7", "bytes": b"\xff"}
    (delivery,) = take(opened(group="others", field=None), 1)
    assert json.loads(delivery.value) == {"order": "7", "bytes": "\udcff"}
    assert delivery.headers == {}
    (delivery,) = take(opened(group="third", field="order"), 1)
    assert delivery.value == b"7"


@pytest.mark.slow
def test_a_body_of_100_mb_and_an_empty_one(client, stream, opened):
    big = os.urandom(1 << 20) * 100
    client.xadd(stream, {"value": big})
    client.xadd(stream, {"value": b""})
    source = opened()
    first, second = take(source, 2)
    assert first.value == big
    assert second.value == b""
    source.ack([first, second])
    source.close()
    assert not pending(client, stream)
    client.delete(stream)


def test_a_new_group_begins_where_it_is_told(client, stream, opened):
    add(client, stream, 3)
    late = opened(start="$")
    early = opened(group="others")
    assert polls_nothing(late)
    assert values(take(early, 3)) == [0, 1, 2]
    add(client, stream, 1, first=3)
    assert values(take(late, 1)) == [3]


def test_several_streams_are_read_within_the_limit(client, stream, opened):
    streams = [f"{stream}-{number}" for number in range(3)]
    for each in streams:
        add(client, each, 20)
    source = opened(stream=streams)
    found = []
    for limit in [2, 1, 5, 7] * 100:
        got = source.poll(limit, 0.0)
        assert len(got) <= limit
        found += got
    assert sorted(delivery.receipt.stream for delivery in found) == sorted(streams * 20)
    assert repr(streams[1]) in source.name
    source.ack(found)
    source.close()
    assert [client.xpending(each, GROUP)["pending"] for each in streams] == [0, 0, 0]


# ---- leases ---------------------------------------------------------------------------------------------------------


class TestLeases(OwnerContract):
    def look(self, source):
        look_for_idle(source)

    def stand_still(self, source):
        source._claim_due -= 10 * source.lease_secs

    @pytest.fixture
    def add(self, client, stream):
        return lambda count: add(client, stream, count)

    @pytest.fixture
    def end_leases(self, client, stream):
        return lambda deliveries: end_leases(client, stream, deliveries)

    @pytest.fixture
    def end_all_leases(self, client, stream):
        return lambda: end_leases_of(client, stream, pending(client, stream))

    @pytest.fixture
    def source_code(self, redis, stream):
        return f"""
from acker.connectors.redis_streams import RedisStreams
source = RedisStreams({redis.url!r}, stream={stream!r}, group={GROUP!r})
"""

    @pytest.fixture
    def left(self, client, stream):
        return lambda: len(pending(client, stream))


def test_an_extended_lease_is_no_delivery(client, stream, opened):
    add(client, stream, 3)
    source = opened()
    assert not source.extend(take(source, 3)[:2])
    assert [row["times_delivered"] for row in pending(client, stream).values()] == [1, 1, 1]


def test_an_ack_after_the_lease_leaves_the_entry_to_its_new_owner(client, stream, opened, caplog):
    add(client, stream, 2)
    slow, other = opened(), opened()
    found = take(slow, 2)
    end_leases(client, stream, found[:1])
    look_for_idle(other)
    (taken,) = take(other, 1)
    for delivery in found:
        delivery.receipt.renewed -= slow.lease_secs  # as if this process had been stopped for so long
    slow.ack(found)
    slow.poll(0, 0.0)
    assert set(pending(client, stream)) == {taken.receipt.entry_id}
    assert "1 acks came too late" in caplog.text and slow.late_acks == 1


def test_entries_that_are_done_are_acked_before_idle_ones_are_looked_for(client, stream, opened):
    add(client, stream, 2)
    source = opened()
    found = take(source, 2)
    end_leases(client, stream, found)
    source.ack(found)
    look_for_idle(source)
    assert polls_nothing(source)
    assert not pending(client, stream)


# ---- trimmed entries ------------------------------------------------------------------------------------------------


def test_a_trimmed_entry_of_a_dead_consumer_is_counted_and_told(client, stream, opened, caplog):
    ids = add(client, stream, 3)
    found = take(opened(), 3)
    end_leases(client, stream, found)
    client.xdel(stream, *ids[:2])
    other = opened()
    assert values(take(other, 1)) == [2]
    assert other.trimmed_count == 2
    assert ids[0].decode() in caplog.text and "are lost" in caplog.text
    assert len(pending(client, stream)) == 1


def test_a_trimmed_entry_that_is_open_stays_so(client, stream, opened, caplog):
    ids = add(client, stream, 2)
    source = opened()
    found = take(source, 2)
    client.xdel(stream, ids[0])
    assert not source.extend(found)
    assert caplog.text.count("live in this process alone") == 1
    assert not source.extend(found)
    assert caplog.text.count("live in this process alone") == 1, "once is enough"
    assert all(map(source.holds, found))
    source.ack(found)
    source.close()
    assert "too late" not in caplog.text
    assert not pending(client, stream)


def test_a_trimmed_entry_of_an_earlier_run_is_counted(client, stream, opened):
    ids = add(client, stream, 3)
    take(opened(consumer="me"), 3)
    client.xdel(stream, ids[1])
    source = opened(consumer="me")
    assert values(take(source, 2)) == [0, 2]
    assert source.trimmed_count == 1


@pytest.mark.parametrize("cause", ["XGROUP DELCONSUMER", "XACK"])
def test_what_is_pending_for_nobody_is_taken_back_and_finished(client, stream, opened, caplog, cause):
    ids = add(client, stream, 3)
    source = opened(consumer="me")
    found = take(source, 3)
    if cause == "XACK":
        client.xack(stream, GROUP, *ids)
    else:
        assert client.xgroup_delconsumer(stream, GROUP, "me") == 3
    assert not pending(client, stream)
    assert not source.extend(found)
    assert "3 open messages" in caplog.text and "pending for nobody" in caplog.text
    assert {row["consumer"] for row in pending(client, stream).values()} == {b"me"}
    source.ack(found[:1])
    source.release(found[1:2])
    source.close()
    assert values(take(opened(), 1)) == [1], "released to others"
    # The third one is still pending for this consumer, with its lease.
    assert set(pending(client, stream)) == set(ids[1:])


def test_what_is_pending_for_nobody_is_released_to_others(client, stream, opened):
    add(client, stream, 2)
    source, other = opened(consumer="me"), opened()
    found = take(source, 2)
    client.xgroup_delconsumer(stream, GROUP, "me")
    source.release(found)
    look_for_idle(other)
    assert values(take(other, 2)) == [0, 1]


def test_what_others_have_done_after_the_lease_is_lost(client, stream, opened):
    ids = add(client, stream, 2)
    source = opened()
    found = take(source, 2)
    client.xack(stream, GROUP, ids[0])
    for delivery in found:
        delivery.receipt.renewed -= source.lease_secs
    assert source.extend(found) == found[:1]


def test_a_consumer_begins_at_a_server_that_has_no_memory_left(client, stream, opened):
    add(client, stream, 2)
    opened().close()
    before = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", 1)
    try:
        found = take(opened(), 2)
    finally:
        client.config_set("maxmemory", before)
    assert values(found) == [0, 1]


# ---- connections ----------------------------------------------------------------------------------------------------


def test_the_same_name_goes_on_with_its_entries_after_a_restart(client, stream, opened):
    add(client, stream, 7)
    first = opened(consumer="me")
    found = take(first, 5, limit=5)
    first.ack(found[:1])
    first.close()
    again = opened(consumer="me")
    taken = take(again, 6, limit=2)
    assert values(taken) == [1, 2, 3, 4, 5, 6]
    assert [delivery.attempt for delivery in taken] == [2, 2, 2, 2, 1, 1]


def test_a_consumer_with_nothing_pending_leaves_the_group(client, stream, opened):
    add(client, stream, 3)
    idle, busy = opened(), opened()
    idle.ack(take(idle, 1, limit=1))
    assert values(take(busy, 2)) == [1, 2]
    assert len(client.xinfo_consumers(stream, GROUP)) == 2
    idle.close()
    busy.close()
    (left,) = client.xinfo_consumers(stream, GROUP)
    assert left["pending"] == 2


def test_names_of_killed_consumers_leave_the_group_after_a_day(client, stream, opened, monkeypatch):
    add(client, stream, 1)
    busy = opened(consumer="busy")
    take(busy, 1)
    client.xgroup_createconsumer(stream, GROUP, "killed")

    def names():
        return {consumer["name"] for consumer in client.xinfo_consumers(stream, GROUP)}

    opened()
    assert names() == {b"busy", b"killed"}
    monkeypatch.setattr(redis_streams, "_SWEEP", redis_streams._SWEEP.replace("86400000", "-1"))
    opened()
    assert names() == {b"busy"}


def test_a_lost_connection_takes_no_deliveries_with_it(client, stream, opened):
    add(client, stream, 4)
    source = opened()
    found = take(source, 3, limit=3)
    source.ack(found[:1])
    client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(ConnectionLostError):
        source.poll(10, 0.0)
    with pytest.raises(ConnectionLostError):
        source.ack(found[1:2])
    source.close()
    assert all(map(source.holds, found[1:]))
    source.open(source._leases._events, 100)
    assert all(map(source.holds, found[1:]))
    assert values(take(source, 1)) == [3], "what is open is not read again"
    assert len(pending(client, stream)) == 3, "the ack that waited is sent"


def test_what_was_on_its_way_when_the_connection_broke_is_read_again(client, stream, opened):
    add(client, stream, 4)
    source = opened()
    found = take(source, 2, limit=2)
    # The server hands out two more, and the answer never arrives.
    client.xreadgroup(GROUP, source._consumer, {stream: ">"}, count=10)
    source.close()
    source.open(source._leases._events, 100)
    assert values(take(source, 2)) == [2, 3]
    assert all(map(source.holds, found))


def test_deliveries_that_were_taken_over_meanwhile_are_lost_after_a_reconnect(client, stream, opened):
    add(client, stream, 3)
    source, other = opened(), opened()
    found = take(source, 3)
    source.ack(found[2:])
    source._link.close()
    end_leases(client, stream, found[1:])
    look_for_idle(other)
    take(other, 2)
    source.close()
    source.open(source._leases._events, 100)
    assert list(map(source.holds, found)) == [True, False, False]
    source.poll(0, 0.0)
    assert len(pending(client, stream)) == 3, "an ack that waited is not for the new owner's delivery"


def test_another_consumer_on_the_same_object_gets_what_the_first_left(client, stream, opened):
    add(client, stream, 2)
    source = opened()
    found = take(source, 2)
    source.close()
    source.open(Seen(), 100)
    assert values(take(source, 2)) == [0, 1]
    assert not any(map(source.holds, found))


def test_a_killed_server_that_kept_its_data(redis, client, stream, opened):
    add(client, stream, 5)
    source = opened()
    found = take(source, 3, limit=3)
    redis.kill()
    with pytest.raises(ConnectionLostError):
        source.poll(10, 0.0)
    source.close()
    with pytest.raises(ConnectionLostError):
        source.open(source._leases._events, 100)
    redis.start()
    source.open(source._leases._events, 100)
    assert all(map(source.holds, found))
    assert not source.extend(found)
    assert values(take(source, 2)) == [3, 4]
    source.ack(found)
    source.poll(0, 0.0)
    assert len(pending(client, stream)) == 2


def test_a_server_that_hangs_is_a_lost_connection(redis, client, stream, opened):
    assert opened(socket_timeout=7)._link.client.socket_timeout == 7
    source = opened()
    add(client, stream, 1)
    source._link.client._sock.settimeout(0.3)  # of this connection alone: the next one finds a server that answers
    redis.pause()
    with pytest.raises(ConnectionLostError):
        source.poll(10, 0.0)
    source.close()
    redis.resume()
    source.open(source._leases._events, 100)
    assert values(take(source, 1)) == [0]


def test_a_stop_while_the_server_hangs_counts_what_is_done(redis, client, stream, make, monkeypatch, caplog):
    add(client, stream, 3)
    check_that_a_stop_counts_unacked(redis, make(), monkeypatch, caplog)


def test_a_group_that_vanishes_is_made_anew_and_told(client, stream, opened, caplog):
    add(client, stream, 3)
    source = opened(start="$")
    add(client, stream, 2, first=3)
    found = take(source, 2)
    client.delete(stream)
    with pytest.raises(ConnectionLostError, match="NOGROUP"):
        source.poll(10, 0.0)
    last_ms = max(int(delivery.receipt.entry_id.partition(b"-")[0]) for delivery in found)
    while client.time()[0] * 1000 + client.time()[1] // 1000 <= last_ms + 1:
        pass  # entries of the new stream within this millisecond would have the ids of the old ones
    add(client, stream, 2, first=5)
    source.close()
    source.open(source._leases._events, 100)
    assert "was gone and is created again" in caplog.text
    assert values(take(source, 2)) == [5, 6], "not from the end on: nothing added meanwhile is skipped"
    assert all(map(source.holds, found)), "they exist in this process alone"
    source.ack(found)
    source.close()


@pytest.mark.parametrize("method", ["extend", "release"])
def test_a_stream_that_vanishes_while_a_consumer_is_full_is_made_anew(client, stream, opened, caplog, method):
    """Then no read tells of it, but a lease that is renewed or ended."""
    add(client, stream, 2)
    source = opened()
    found = take(source, 2)
    client.delete(stream)
    with pytest.raises(ConnectionLostError, match="no such key"):
        getattr(source, method)(found)
    source.close()
    source.open(source._leases._events, 100)
    assert "was gone and is created again" in caplog.text
    assert all(map(source.holds, found)), "they exist in this process alone"
    assert not getattr(source, method)(found)


def test_a_group_that_was_destroyed_delivers_again(client, stream, opened):
    add(client, stream, 2)
    source = opened()
    found = take(source, 2)
    client.xgroup_destroy(stream, GROUP)
    with pytest.raises(ConnectionLostError, match="NOGROUP"):
        source.extend(found)
    source.close()
    source.open(source._leases._events, 100)
    assert not any(map(source.holds, found))
    assert values(take(source, 2)) == [0, 1]


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_a_key_of_another_type_is_a_mistake(client, stream, make):
    client.set(stream, "text")
    with pytest.raises(SourceError, match="WRONGTYPE"):
        make().open(Seen(), 10)


@pytest.mark.parametrize("settings", [{"stream": []}, {"lease_secs": 0}, {"server": "http://x"}])
def test_wrong_arguments(make, settings):
    with pytest.raises(ArgumentValueError):
        make(**settings)


def test_unknown_options_are_errors_at_once(make, redis):
    with pytest.raises(TypeError, match="no_such_option"):
        make(no_such_option=1)
    with pytest.raises(ArgumentValueError, match="db"):
        make(server=redis_py.Redis.from_url(redis.url), db=1)


@pytest.fixture
def account(client, stream):
    """A user who may do nothing but this stream's commands; its password has characters that URLs do not like."""
    name = f"user-{stream}"
    client.acl_setuser(name, enabled=True, passwords=[f"+{SECRET}"], keys=[stream], commands=["+@all", "-xadd"])
    yield name
    client.acl_deluser(name)


def test_credentials_are_told_to_nobody(redis, account, stream, caplog, make):
    caplog.set_level(logging.DEBUG)
    host = redis.url.rpartition("//")[2]
    right = f"redis://{account}:s3cret%2F%23word@{host}"
    texts = []

    wrong = make(server=right.replace("word@", "wordwrong@"))
    with pytest.raises(SourceError, match="credentials") as caught:
        wrong.open(Seen(), 10)
    texts += texts_of(caught.value)
    with pytest.raises(ArgumentValueError, match="%2F") as caught:
        make(server=f"redis://{account}:{SECRET}@{host}")
    texts += texts_of(caught.value)
    source = make(server=right)
    source.open(Seen(), 10)
    with RedisStreamsPublisher(right, stream=stream) as publisher:
        (error,) = publisher.publish([Outgoing(b"x")])
        texts += texts_of(error)
        texts += [repr(publisher), publisher.name]
    assert "NOPERM" in str(error) or "permissions" in str(error)
    with pytest.raises(SourceError, match="permissions") as caught:
        make(server=right, stream="forbidden").open(Seen(), 10)
    texts += texts_of(caught.value)
    nobody = make(server=right.replace(host, "127.0.0.1:1"))
    with pytest.raises(ConnectionLostError) as caught:
        nobody.open(Seen(), 10)
    texts += texts_of(caught.value)
    texts += [repr(source), source.name, wrong.name, repr(vars(source)), caplog.text]
    for text in texts:
        assert "s3cret" not in text


# ---- publisher ------------------------------------------------------------------------------------------------------


def test_what_is_published_is_what_is_read(redis, client, stream, opened):
    headers = {
        "text": "größe",
        "bytes": b"\xff",
        "int": 7,
        "float": 0.5,
        "bool": True,
        "none": None,
        "\udcff": "\udcff",
    }
    other = f"{stream}-other"
    with RedisStreamsPublisher(redis.url, stream=stream) as publisher:
        messages = [
            Outgoing(b"\0body", key=b"k", headers=headers),
            Outgoing(b""),
            Outgoing(b"x", to=other),
        ]
        assert publisher.publish(messages) == [None] * 3
        assert publisher.publish([]) == []
        assert publisher.publish([Outgoing(str(n).encode()) for n in range(1200)]) == [None] * 1200
    first, second, *rest = take(opened(), 1202)
    assert first.value == b"\0body"
    assert first.headers == {
        "text": "größe",
        "bytes": b"\xff",
        "int": "7",
        "float": "0.5",
        "bool": "true",
        "none": "",
        "\\udcff": "\\udcff",
        "key": "k",
    }
    assert second.value == b""
    assert values(rest) == list(range(1200))
    assert client.xlen(other) == 1


def test_each_message_has_its_own_error(redis, client, stream):
    wrong = f"{stream}-text"
    client.set(wrong, "text")
    with RedisStreamsPublisher(redis.url, stream=stream) as publisher:
        first, second, third = publisher.publish([Outgoing(b"1"), Outgoing(b"2", to=wrong), Outgoing(b"3")])
    assert first is None
    assert third is None
    assert isinstance(second, PublishError)
    assert "WRONGTYPE" in str(second)
    assert client.xlen(stream) == 2


def test_a_publisher_connects_again(redis, client, stream):
    publisher = RedisStreamsPublisher(redis.url, stream=stream)
    publisher.close()
    with publisher:
        redis.kill()
        for _ in range(2):
            errors = publisher.publish([Outgoing(b"1"), Outgoing(b"2")])
            assert [type(error) for error in errors] == [PublishError] * 2
        redis.start()
        assert publisher.publish([Outgoing(b"3")]) == [None]
    publisher.close()
    assert [fields for _, fields in client.xrange(stream)] == [{b"value": b"3"}]


def test_a_publisher_that_cannot_connect(stream):
    with pytest.raises(ConnectionLostError):
        RedisStreamsPublisher("redis://127.0.0.1:1", stream=stream).open()


def test_a_wait_for_replicas_beyond_the_clients_patience_is_refused():
    text = "replicas_secs is 20 and the client's socket_timeout is 10, .* lower replicas_secs, or raise socket_timeout"
    with pytest.raises(ArgumentValueError, match=text):
        RedisStreamsPublisher(stream="jobs", replicas=1, replicas_secs=20)
    RedisStreamsPublisher(stream="jobs", replicas=1, replicas_secs=20, socket_timeout=30)
    RedisStreamsPublisher(stream="jobs", replicas_secs=20)


def test_too_few_replicas_are_an_error(redis, client, stream):
    with RedisStreamsPublisher(redis.url, stream=stream, replicas=1, replicas_secs=0.05) as publisher:
        errors = publisher.publish([Outgoing(b"1"), Outgoing(b"2")])
    assert [str(error).rpartition(": ")[2] for error in errors] == ["0 of 1 replicas have it"] * 2


def test_a_stream_keeps_about_so_many_entries(redis, client, stream):
    with RedisStreamsPublisher(redis.url, stream=stream, maxlen=100) as publisher:
        assert publisher.publish([Outgoing(b"x")] * 1000) == [None] * 1000
    assert 100 <= client.xlen(stream) < 400
