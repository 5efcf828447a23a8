"""The brokers: a source for the consumer, and the client's own means to fill a queue and to count what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from acker.connectors import Source

# Of the brokers that have leases. Long enough for a renewal on a machine that is busy.
LEASE_SECS: Final = 4.0
_PARTITIONS: Final = 4
# For a server that has just started on a machine with much else to do.
_SLOW_SECS: Final = 60


class Broker(NamedTuple):
    """What a run needs of a broker. All functions take the server's URL and the name of a queue.

    Attributes
    ----------
    source : callable
        Returns a new source; a third argument says whether it connects through the proxy.
    fill : callable
        Creates the queue and publishes bodies, each confirmed.
    left : callable
        Returns how many messages are not settled.
    is_log : bool
        Whether the broker keeps a position, and not what was acked of the messages after it.
    """

    source: Callable[[str, str], Source]
    fill: Callable[[str, str, Sequence[bytes]], None]
    left: Callable[[str, str], int]
    is_log: bool = False


# ---- RabbitMQ -------------------------------------------------------------------------------------------------------

_QUORUM: Final = {"durable": True, "arguments": {"x-queue-type": "quorum"}}


def _rabbitmq_source(url: str, queue: str) -> Source:
    from acker.connectors.rabbitmq import RabbitMQ

    return RabbitMQ(url, queue)


def _rabbitmq_fill(url: str, queue: str, bodies: Sequence[bytes]) -> None:
    import pika

    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, **(_QUORUM if queue.startswith("quorum") else {"durable": True}))
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def _rabbitmq_left(url: str, queue: str) -> int:
    """Count what is ready, when no consumer is left that could hold any."""
    import pika

    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


# ---- Redis Streams --------------------------------------------------------------------------------------------------

_GROUP: Final = "outages"


def _redis_source(url: str, queue: str) -> Source:
    from acker.connectors.redis_streams import RedisStreams

    return RedisStreams(url, stream=queue, group=_GROUP, lease_secs=LEASE_SECS)


def _redis_fill(url: str, queue: str, bodies: Sequence[bytes]) -> None:
    import redis

    with redis.Redis.from_url(url) as client:
        pipeline = client.pipeline(transaction=False)
        for body in bodies:
            pipeline.xadd(queue, {"value": body})
        pipeline.execute()
        client.xgroup_create(queue, _GROUP, id="0")


def _redis_left(url: str, queue: str) -> int:
    import redis

    with redis.Redis.from_url(url) as client:
        (group,) = client.xinfo_groups(queue)
        return int(group["pending"]) + int(group["lag"] or 0)


# ---- Kafka ----------------------------------------------------------------------------------------------------------


def _kafka_source(url: str, queue: str) -> Source:
    from acker.connectors.kafka import Kafka

    config = {
        "bootstrap.servers": url,
        "group.id": queue,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "partition.assignment.strategy": "cooperative-sticky" if queue.startswith("cooperative") else "range",
    }
    return Kafka(config, [queue])


def _kafka_fill(url: str, queue: str, bodies: Sequence[bytes]) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": url})  # its end would end the request
    admin.create_topics([NewTopic(queue, _PARTITIONS, 1)])[queue].result(60)
    producer = Producer({"bootstrap.servers": url, "enable.idempotence": True})
    for number, body in enumerate(bodies):
        producer.produce(queue, body, partition=number % _PARTITIONS)
        producer.poll(0)
    assert producer.flush(120) == 0


def _kafka_left(url: str, queue: str) -> int:
    from confluent_kafka import Consumer, TopicPartition

    from tests.connectors.kafka_kit import answer_of

    client = Consumer({"bootstrap.servers": url, "group.id": queue})
    partitions = [TopicPartition(queue, number) for number in range(_PARTITIONS)]

    def left() -> int:
        count = 0
        for found in client.committed(partitions, timeout=60):
            assert found.error is None, found
            low, high = client.get_watermark_offsets(found, timeout=60)
            count += high - (found.offset if found.offset >= 0 else low)
        return count

    try:
        return answer_of(left)
    finally:
        client.close()


# ---- NATS JetStream -------------------------------------------------------------------------------------------------


def _nats_source(url: str, queue: str) -> Source:
    from acker.connectors.nats import JetStream

    return JetStream(url, stream=queue, durable=_GROUP)


async def _nats_client(url: str) -> Any:
    import nats

    return await nats.connect(url, allow_reconnect=False, connect_timeout=_SLOW_SECS)


def _nats_fill(url: str, queue: str, bodies: Sequence[bytes]) -> None:
    async def fill() -> None:
        client = await _nats_client(url)
        stream = client.jetstream(timeout=_SLOW_SECS)
        await stream.add_stream(name=queue, subjects=[f"{queue}.in"])
        from nats.js.api import AckPolicy, ConsumerConfig

        config = ConsumerConfig(
            durable_name=_GROUP, ack_policy=AckPolicy.EXPLICIT, ack_wait=LEASE_SECS, max_ack_pending=100_000
        )
        await stream.add_consumer(queue, config)
        for first in range(0, len(bodies), 100):
            await asyncio.gather(*(stream.publish(f"{queue}.in", body) for body in bodies[first : first + 100]))
        await client.close()

    asyncio.run(fill())


def _nats_left(url: str, queue: str) -> int:
    async def left() -> int:
        client = await _nats_client(url)
        info = await client.jetstream(timeout=_SLOW_SECS).consumer_info(queue, _GROUP)
        await client.close()
        return int(info.num_pending or 0) + int(info.num_ack_pending or 0)

    return asyncio.run(left())


# ---- PostgreSQL -----------------------------------------------------------------------------------------------------


def _postgresql_source(url: str, queue: str) -> Source:
    from acker.connectors.postgresql import PostgreSQL

    return PostgreSQL(url, table=queue, create=True, lease_secs=LEASE_SECS)


def _postgresql_fill(url: str, queue: str, bodies: Sequence[bytes]) -> None:
    from acker.connectors import Outgoing
    from acker.connectors.postgresql import PostgreSQLPublisher

    with PostgreSQLPublisher(url, table=queue, create=True) as publisher:
        assert not any(publisher.publish([Outgoing(body) for body in bodies]))


def _postgresql_left(url: str, queue: str) -> int:
    import psycopg
    from psycopg import sql

    with psycopg.connect(url) as connection:
        row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(queue))).fetchone()
    assert row is not None
    return int(row[0])


BROKERS: Final[dict[str, Broker]] = {
    "rabbitmq": Broker(_rabbitmq_source, _rabbitmq_fill, _rabbitmq_left),
    "redis": Broker(_redis_source, _redis_fill, _redis_left),
    "kafka": Broker(_kafka_source, _kafka_fill, _kafka_left, is_log=True),
    "nats": Broker(_nats_source, _nats_fill, _nats_left),
    "postgresql": Broker(_postgresql_source, _postgresql_fill, _postgresql_left),
}


def port_of(url: str) -> int:
    """Return the port of a server's URL."""
    port = urlsplit(url if "//" in url else f"//{url}").port
    assert port is not None
    return port


def with_port(url: str, port: int) -> str:
    """Return a URL with another port."""
    return url.replace(f":{port_of(url)}", f":{port}", 1)
