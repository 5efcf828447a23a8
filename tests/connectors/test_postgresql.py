"""A table of PostgreSQL as a source and as a publisher, on a real server."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from acker.connectors import Consumer, Outgoing
from acker.connectors.postgresql import PostgreSQL, PostgreSQLPublisher, table_sql
from acker.errors import ArgumentValueError, ConnectionLostError, PublishError, SourceError
from tests.connectors.sources import (
    LONG,
    OwnerContract,
    Seen,
    check_that_a_stop_counts_unacked,
    closed_at_the_end,
    opens,
    take,
    texts_of,
    values,
)


@pytest.fixture
def database(postgresql):
    """Run statements on the table of the test, whose name stands for {}; return the rows."""

    def run(statement, *values):
        with psycopg.connect(postgresql.url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def table(database):
    name = f"jobs_{uuid.uuid4().hex}"
    database(table_sql(name))
    return name


@pytest.fixture
def make(postgresql, table):
    """Return sources for the table of this test, closed at its end."""

    def new(conninfo=postgresql.url, **settings):
        return PostgreSQL(conninfo, **{"table": table, "poll_secs": 0.01, **settings})

    with closed_at_the_end(new) as make:
        yield make


@pytest.fixture
def opened(make):
    return opens(make)


@pytest.fixture
def add(database, table):
    def add(count, first=0):
        numbers = "generate_series(%s::int, %s::int) AS n"
        statement = f"INSERT INTO {table} (value) SELECT convert_to(n::text, 'UTF8') FROM {numbers}"
        database(statement, first, first + count - 1)

    return add


@pytest.fixture
def rows(database, table):
    def rows():
        return database(f"SELECT *, due_at IS NULL AS never FROM {table} ORDER BY id")

    return rows


@pytest.fixture
def end_leases(database, table):
    """Let leases end."""

    def end_leases(deliveries):
        ids = [delivery.receipt.row_id for delivery in deliveries]
        database(f"UPDATE {table} SET due_at = now() WHERE id = ANY (%s)", ids)

    return end_leases


def look(source):
    """The next poll looks at the table."""
    source._look_at = 0.0


def polls_nothing(source):
    look(source)
    return not source.poll(100, 0.0)


def test_rows_come_once_in_their_order_and_are_gone_when_acked(opened, add, rows):
    add(250)
    source = opened()
    found = take(source, 250)
    assert values(found) == list(range(250))
    assert {delivery.attempt for delivery in found} == {1}
    assert polls_nothing(source)
    source.ack(found[::2])
    assert [int(row["value"]) for row in rows()] == list(range(1, 250, 2))
    assert [source.holds(delivery) for delivery in found[:2]] == [False, True]


def test_what_a_delivery_says(opened, database, table):
    headers = '{"kind": "größe", "n": 7, "none": null, "list": [1]}'
    database(f"INSERT INTO {table} (value, key, headers) VALUES ('\\x00ff', '\\x01', %s)", headers)
    (delivery,) = take(opened(), 1)
    assert delivery.key == f"{table}/1"
    assert delivery.value == b"\0\xff"
    assert delivery.headers == {"kind": "größe", "n": 7, "none": None, "list": [1]}
    assert delivery.raw["key"] == b"\1"


def test_done_rows_can_stay(opened, add, rows):
    add(2)
    source = opened(keep_done=True)
    source.ack(take(source, 2)[:1])
    first, second = rows()
    assert first["never"]
    assert first["done_at"] is not None
    assert not second["never"]
    assert polls_nothing(source)


@pytest.mark.slow
def test_a_body_of_100_mb_and_an_empty_one(postgresql, table, opened):
    big = os.urandom(1 << 20) * 100
    with PostgreSQLPublisher(postgresql.url, table=table) as publisher:
        assert publisher.publish([Outgoing(big), Outgoing(b"")]) == [None, None]
    source = opened()
    first, second = take(source, 2)
    assert first.value == big
    assert second.value == b""
    source.ack([first, second])
    assert polls_nothing(source)


def test_two_consumers_share_a_table(opened, add):
    add(1000)
    sources = [opened() for _ in range(4)]

    def drain(source):
        found = []
        while got := source.poll(7, 0.0):
            found += got
            source.ack(got)
        return values(found)

    with ThreadPoolExecutor(4) as pool:
        found = [value for drained in pool.map(drain, sources) for value in drained]
    assert sorted(found) == list(range(1000))


def test_a_poll_that_waits_is_woken(opened):
    source = opened(poll_secs=LONG)
    source.poll(10, 0.0)
    threading.Timer(0.05, source.wake).start()
    begin = time.monotonic()
    assert not source.poll(10, LONG)
    assert time.monotonic() - begin < LONG


# ---- leases ---------------------------------------------------------------------------------------------------------


class TestLeases(OwnerContract):
    attempt_of_released = 1  # a stop is no attempt

    def look(self, source):
        look(source)

    def stand_still(self, source):
        source._polled_at -= 10 * source.lease_secs
        look(source)

    @pytest.fixture
    def end_all_leases(self, database, table):
        return lambda: database(f"UPDATE {table} SET due_at = now()")

    @pytest.fixture
    def source_code(self, postgresql, table):
        return f"""
from acker.connectors.postgresql import PostgreSQL
source = PostgreSQL({postgresql.url!r}, table={table!r})
"""

    @pytest.fixture
    def left(self, rows):
        return lambda: len(rows())


def test_an_ack_after_the_lease_leaves_the_row_to_its_new_owner(opened, add, end_leases, rows, caplog):
    add(2)
    slow, other = opened(), opened()
    found = take(slow, 2)
    end_leases(found[:1])
    look(other)
    (taken,) = take(other, 1)
    slow.ack(found)
    (left,) = rows()
    assert left["id"] == taken.receipt.row_id
    assert "1 of 2 messages are settled too late" in caplog.text and slow.late_acks == 1
    assert not any(map(slow.holds, found))


def test_rows_of_a_process_that_was_killed_are_told_and_those_given_back_are_not(opened, add, end_leases, caplog):
    add(3)
    killed, other = opened(), opened()
    found = take(killed, 3)
    killed.release(found[:2])
    take(other, 2)
    assert caplog.text == ""
    end_leases(found[2:])
    look(other)
    take(other, 1)
    (row,) = (delivery.receipt.row_id for delivery in found[2:])
    assert f"took over 1 rows, such as {row} of {killed._owner}, whose leases were over" in caplog.text


def test_a_failed_message_is_due_after_its_delay(opened, add, database, table):
    add(2)
    source = opened()
    first, second = take(source, 2)
    assert source.retry(first, 3600.0)
    assert not source.holds(first)
    assert polls_nothing(source)
    statement = f"SELECT due_at BETWEEN now() + '3000 s' AND now() + '3600 s' AS late FROM {table} WHERE owner IS NULL"
    assert database(statement) == [{"late": True}]
    assert source.retry(second, 0.0)
    look(source)
    (again,) = take(source, 1)
    assert (again.value, again.attempt) == (second.value, 2)


def test_a_message_that_is_given_up_keeps_its_row(opened, add, rows):
    add(2)
    source = opened()
    first, _ = take(source, 2)
    assert source.can_give_up
    source.give_up(first, "ValueError: \0 größe")
    dead, _ = rows()
    assert dead["never"]
    assert dead["dead_at"] is not None
    assert dead["reason"] == "ValueError: \\0 größe"
    assert not source.holds(first)


def test_a_reason_that_quotes_half_an_emoji_is_kept_as_well(make, database, table, rows):
    names = "Ann \ud83d", "Bob"
    database(f"INSERT INTO {table} (value) VALUES (%s), (%s)", *(json.dumps(name).encode() for name in names))

    def handle(message):
        raise LookupError(f"no customer {message.value}")

    Consumer(make(), decode=json.loads, attempts_max=1, dead_letters="broker").run(handle, until="empty")
    assert [row["reason"] for row in rows()] == [
        "failed: LookupError: no customer Ann \\ud83d (attempt 1)",
        "failed: LookupError: no customer Bob (attempt 1)",
    ]


# ---- connections ----------------------------------------------------------------------------------------------------


def cut(database, source):
    pid = source._link._client.info.backend_pid
    database("SELECT pg_terminate_backend(%s, 10000)", pid)


def test_a_lost_connection_takes_no_deliveries_with_it(opened, add, database, end_leases, rows):
    add(5)
    source, other = opened(), opened()
    found = take(source, 4, limit=4)
    cut(database, source)
    with pytest.raises(ConnectionLostError):
        source.ack(found[:1])
    with pytest.raises(ConnectionLostError):
        source.poll(10, 0.0)
    end_leases(found[3:])
    look(other)
    assert values(take(other, 2)) == [4, 3]
    source.close()
    assert all(map(source.holds, found))
    source.open(source._leases._events, 100)
    assert list(map(source.holds, found)) == [True, True, True, False]
    source.ack(found[:3])
    assert [int(row["value"]) for row in rows()] == [3, 4]


def test_outcomes_without_a_connection_wait_for_the_next_one(opened, add, database, rows, end_leases):
    add(3)
    source = opened()
    failed, dead, lost = take(source, 3)
    cut(database, source)
    assert not source.retry(failed, 3600.0), "the consumer keeps it"
    source.give_up(dead, "too often")
    source.give_up(lost, "too often")
    assert all(map(source.holds, (failed, dead, lost)))
    end_leases([lost])
    other = opened()
    assert values(take(other, 1)) == [2]
    source.close()
    source.open(source._leases._events, 100)
    assert list(map(source.holds, (failed, dead, lost))) == [True, False, False]
    assert [row["reason"] for row in rows()] == [None, "too often", None]


def test_a_killed_server(postgresql, opened, add):
    add(5)
    source = opened()
    found = take(source, 3, limit=3)
    postgresql.kill()
    with pytest.raises(ConnectionLostError):
        source.extend(found)
    source.close()
    with pytest.raises(ConnectionLostError):
        source.open(source._leases._events, 100)
    postgresql.start()
    source.open(source._leases._events, 100)
    assert all(map(source.holds, found))
    assert values(take(source, 2)) == [3, 4]
    source.ack(found)
    assert polls_nothing(source)


def test_a_server_that_hangs_is_a_lost_connection(postgresql, make, add):
    add(1)
    source = make(lease_secs=1.0)
    assert source._link._answer_secs == 0.5
    source._link._answer_secs = LONG  # for the server that does not hang
    source.open(Seen(), 100)
    source._link.client.answer_secs = 0.5
    postgresql.pause()
    with pytest.raises(ConnectionLostError, match="not answered"):
        source.poll(10, 0.0)
    source.close()
    postgresql.resume()
    source.open(source._leases._events, 100)
    assert values(take(source, 1)) == [0]


def test_a_stop_while_the_server_hangs_counts_what_is_done(postgresql, make, add, monkeypatch, caplog):
    add(3)
    check_that_a_stop_counts_unacked(postgresql, make(), monkeypatch, caplog)


# ---- mistakes -------------------------------------------------------------------------------------------------------


def test_a_missing_table_is_a_mistake_unless_it_is_to_be_created(opened, make, table, postgresql):
    name = f"public.{table}_other"
    with pytest.raises(SourceError, match="create=True"):
        make(table=name).open(Seen(), 10)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: opened(table=name, create=True), range(8)))
    with PostgreSQLPublisher(postgresql.url, table=name) as publisher:
        assert publisher.publish([Outgoing(b"7")]) == [None]
    assert values(take(opened(table=name), 1)) == [7]


def test_a_table_with_other_columns_is_a_mistake(make, table, database):
    database(f"ALTER TABLE {table} DROP COLUMN reason")
    with pytest.raises(SourceError, match="reason"):
        make().open(Seen(), 10)


def test_a_table_that_vanishes_is_a_mistake(opened, table, database):
    source = opened()
    database(f"DROP TABLE {table}")
    look(source)
    with pytest.raises(SourceError, match="does not exist"):
        source.poll(10, 0.0)


def test_the_name_of_a_table_is_never_code(make):
    with pytest.raises(SourceError, match="does not exist"):
        make(table='jobs"; DROP TABLE jobs; --').open(Seen(), 10)


def test_wrong_arguments(make):
    with pytest.raises(ArgumentValueError):
        make(lease_secs=0)


def test_credentials_are_told_to_nobody(postgresql, table, caplog, make):
    caplog.set_level(logging.DEBUG)
    texts = []

    for changed in ({"password": "s3cret"}, {"dbname": "nowhere"}, {"user": "nobody", "password": "s3cret"}):
        wrong = make(conninfo=make_conninfo(postgresql.url, **changed))
        with pytest.raises(SourceError) as caught:
            wrong.open(Seen(), 10)
        texts += texts_of(caught.value)
        publisher = PostgreSQLPublisher(make_conninfo(postgresql.url, **changed), table=table)
        (error,) = publisher.publish([Outgoing(b"")])
        assert isinstance(error, PublishError)
        texts += texts_of(error)
        texts += [repr(publisher), publisher.name]
    for broken in ("postgresql://u:s3cret%zz@h/d", "password='s3cret", "postgresql://u:s3cret@h:port:5/x?y"):
        with pytest.raises(ArgumentValueError, match="%2F") as caught:
            make(conninfo=broken).open(Seen(), 10)
        texts += texts_of(caught.value)
    nobody = make(conninfo="postgresql://u:s3cret@127.0.0.1:1/d")
    with pytest.raises(ConnectionLostError) as caught:
        nobody.open(Seen(), 10)
    texts += texts_of(caught.value)
    texts += [repr(wrong), wrong.name, caplog.text]
    for text in texts:
        assert "s3cret" not in text


# ---- publisher ------------------------------------------------------------------------------------------------------


def test_what_is_published_is_what_is_read(postgresql, table, opened, database):
    headers = {"text": "größe", "bytes": b"a\xff", "int": 7, "float": 0.5, "bool": True, "none": None}
    other = f"{table}_other"
    database(table_sql(other))
    with PostgreSQLPublisher(postgresql.url, table=table) as publisher:
        messages = [Outgoing(b"\0body", key=b"k", headers=headers), Outgoing(b""), Outgoing(b"5", to=other)]
        assert publisher.publish(messages) == [None] * 3
        assert publisher.publish([]) == []
        assert publisher.publish([Outgoing(str(n).encode()) for n in range(1200)]) == [None] * 1200
    first, second, *rest = take(opened(), 1202)
    assert first.value == b"\0body"
    assert first.raw["key"] == b"k"
    assert first.headers == headers | {"bytes": "a\\xff"}
    assert second.value == b""
    assert values(rest) == list(range(1200))
    assert values(take(opened(table=other), 1)) == [5]


def test_each_message_has_its_own_error(postgresql, table, rows):
    messages = [
        Outgoing(b"1"),
        Outgoing(b"2", to="no_such_table"),
        Outgoing(b"3", to="neither"),
        Outgoing(b"4"),
    ]
    with PostgreSQLPublisher(postgresql.url, table=table) as publisher:
        errors = publisher.publish(messages)
    assert [type(error) for error in errors] == [type(None), *[PublishError] * 2, type(None)]
    assert "no_such_table" in str(errors[1])
    assert "neither" in str(errors[2])
    assert [row["value"] for row in rows()] == [b"1", b"4"]


def test_a_message_that_the_table_refuses_takes_no_other_with_it(postgresql, table, database, rows):
    database(f"ALTER TABLE {table} ADD CHECK (length(value) < 3)")
    with PostgreSQLPublisher(postgresql.url, table=table) as publisher:
        errors = publisher.publish([Outgoing(b"1"), Outgoing(b"22"), Outgoing(b"333"), Outgoing(b"4")])
    assert [type(error) for error in errors] == [type(None), type(None), PublishError, type(None)]
    assert [row["value"] for row in rows()] == [b"1", b"22", b"4"]


def test_a_publisher_connects_again(postgresql, table, rows):
    publisher = PostgreSQLPublisher(postgresql.url, table=table)
    publisher.close()
    with publisher:
        postgresql.kill()
        for _ in range(2):
            errors = publisher.publish([Outgoing(b"1"), Outgoing(b"2")])
            assert [type(error) for error in errors] == [PublishError] * 2
        postgresql.start()
        assert publisher.publish([Outgoing(b"3")]) == [None]
    publisher.close()
    assert [row["value"] for row in rows()] == [b"3"]


def test_a_publisher_without_its_table(postgresql, table):
    with pytest.raises(SourceError, match="create=True"):
        PostgreSQLPublisher(postgresql.url, table=f"{table}_none").open()
    with PostgreSQLPublisher(postgresql.url, table=f"{table}_none", create=True) as publisher:
        assert publisher.publish([Outgoing(b"")]) == [None]


def test_headers_that_jsonb_does_not_take_become_texts(postgresql, table, rows):
    headers = {
        "nul": b"\0\xff",
        "half": "\ud800",
        "nan": float("nan"),
        "list": [1],
        "name\0": 1,
        "int": 7,
        "none": None,
    }
    with PostgreSQLPublisher(postgresql.url, table=table) as publisher:
        assert publisher.publish([Outgoing(b"a", headers=headers)]) == [None]
    (row,) = rows()
    written = {"nul": "\\x00\\xff", "half": "\\ud800", "nan": "nan", "list": "[1]", "name\\x00": 1, "int": 7}
    assert row["headers"] == {**written, "none": None}
