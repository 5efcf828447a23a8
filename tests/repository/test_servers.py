"""The servers of the tests: each dies, hangs and comes back as it is told, with the data that it confirmed."""

from __future__ import annotations

import confluent_kafka
import confluent_kafka.admin
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
