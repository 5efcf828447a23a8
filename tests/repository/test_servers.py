"""The servers of the tests: each dies, hangs and comes back as it is told, with the data that it confirmed."""

from __future__ import annotations

import asyncio
import contextlib
import select
import urllib.request

import confluent_kafka
import confluent_kafka.admin
import nats as nats_client
import pika
import psycopg
import pytest
import redis as redis_client

pytestmark = pytest.mark.repository

LONG = 60.0
ENDS = pytest.mark.parametrize("end", ["stop", "kill"])


def end_and_start(server, end):
    getattr(server, end)()
    server.start()


@ENDS
def test_redis_keeps_what_it_confirmed(redis, end):
    with redis_client.Redis.from_url(redis.url) as client:
        entry = client.xadd(f"kept over {end}", {"value": "1"})
        end_and_start(redis, end)
        assert client.xrange(f"kept over {end}") == [(entry, {b"value": b"1"})]


def test_a_paused_server_hangs_until_it_is_resumed(redis):
    with redis_client.Redis.from_url(redis.url, socket_timeout=0.2) as client:
        client.ping()
        redis.pause()
        with pytest.raises(redis_client.TimeoutError):
            client.ping()
        redis.resume()
        assert client.ping()


@ENDS
def test_kafka_keeps_what_it_confirmed(kafka, end):
    """Several partitions on one node, written in a transaction, read by a group that commits."""
    topic = f"kept-over-{end}"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.url})
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, 3, 1)])[topic].result(LONG)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.url, "transactional.id": topic})
    producer.init_transactions(LONG)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(topic, str(partition), partition=partition)
    producer.commit_transaction(LONG)
    end_and_start(kafka, end)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.url,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found = [consumer.poll(LONG) for _ in range(3)]
    assert sorted((message.partition(), message.value()) for message in found) == [(0, b"0"), (1, b"1"), (2, b"2")]
    consumer.commit(asynchronous=False)
    consumer.close()


@ENDS
def test_rabbitmq_keeps_what_it_confirmed(rabbitmq, end):
    queue = f"kept over {end}"
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection, connection.channel() as channel:
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        channel.basic_publish("", queue, "1", pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent))
    end_and_start(rabbitmq, end)
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection, connection.channel() as channel:
        assert channel.basic_get(queue, auto_ack=True)[2] == b"1"
        channel.queue_delete(queue)


@ENDS
def test_jetstream_keeps_what_it_confirmed(nats, end):
    async def with_stream(act):
        async with await nats_client.connect(nats.url) as client:
            return await act(client.jetstream())

    async def publish(stream):
        await stream.add_stream(name=end, subjects=[f"kept.{end}"])
        await stream.publish(f"kept.{end}", b"1")

    async def read(stream):
        return (await stream.get_msg(end, 1)).data

    asyncio.run(with_stream(publish))
    end_and_start(nats, end)
    assert asyncio.run(with_stream(read)) == b"1"


@ENDS
def test_postgresql_keeps_what_it_committed_whatever_sessions_there_are(postgresql, end):
    with contextlib.closing(psycopg.connect(postgresql.url)) as session:
        session.execute(f"CREATE TABLE kept_over_{end} AS SELECT 1 AS value")
        session.commit()
        session.execute("SELECT 1")  # the session stays open, in a transaction
        end_and_start(postgresql, end)
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
    with psycopg.connect(postgresql.url) as session:
        assert session.execute(f"SELECT value FROM kept_over_{end}").fetchall() == [(1,)]


def test_a_pause_reaches_processes_that_left_the_group_of_their_parent(postgresql):
    """PostgreSQL makes a session of its own for each client."""
    with psycopg.connect(postgresql.url) as session:
        postgresql.pause()
        session.pgconn.send_query(b"SELECT 1")
        session.pgconn.flush()
        assert not readable(session.pgconn.socket, 0.2)
        postgresql.resume()
        assert readable(session.pgconn.socket, LONG)
        while session.pgconn.get_result():
            pass


def readable(socket, seconds):
    return bool(select.select([socket], [], [], seconds)[0])


@ENDS
def test_sqs_answers_again(sqs, end):
    end_and_start(sqs, end)
    with urllib.request.urlopen(f"{sqs.url}/moto-api/data.json", timeout=LONG) as answer:
        assert answer.status == 200
