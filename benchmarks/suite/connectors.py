"""Benchmarks of the connectors: a `Consumer` against the bare client of the broker, on the same server.

Each side takes the same messages of 200 bytes from a queue that was filled before, and acks each after its work, as the
client allows at best: with one ack for many messages where their work ends in order. The clock runs from the first
message to the end of the connection: the last ack is part of it, and not the join of a group. Then the queue is empty,
or the case fails.

The cases start the servers that they need, as the tests do. `ACKER_RABBITMQ_URL` and `ACKER_REDIS_URL` name some that
run already.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from acker.connectors import Consumer, Outgoing, Source
from benchmarks.suite.measure import Case, Goal, Ratio, Result, Scale, expect, per

MESSAGES: Final = 40_000
MESSAGES_KAFKA: Final = 400_000  # where nobody waits for another thread
MESSAGES_WIDE: Final = 4_000  # with children in a thread pool
CHILDREN: Final = 20
FEW: Final = 3  # children, as of an order with three items
MESSAGES_FEW: Final = 16_000
BYTES: Final = 200
PREFETCH: Final = 1000
THREADS: Final = 4
# How many messages of the bare client share an ack, and how many are published at a time.
_ACK_EVERY: Final = 100
_FILL: Final = 2000
_QUEUE, _TOPIC, _GROUP = "acker benchmark", "acker-benchmark", "benchmark"

BARE, CONSUMER = "bare client", "Consumer"
# The bare client with an ack for each message, as its documentation begins.
EACH: Final = "bare client, each ack"
GOAL: Final = Goal(at_least=0.7)
# The bare client's loop over messages of Kafka costs less than a function call for each of them would.
GOAL_KAFKA: Final = Goal(at_least=0.2)

# Take so many messages, which are all that there are: the bare client from a URL, a Consumer from a source.
Bare = Callable[[str, int], None]
Consume = Callable[[Source, int], None]


class Broker(NamedTuple):
    """A broker whose one queue is filled again and again."""

    name: str  # of scripts/broker.py
    fill: Callable[[str, int], None]
    left: Callable[[str], int]
    source: Callable[[str], Source]


# When the work on the first message began, by the clock of a side, in ns.
_began: list[int] = []


def work(body: bytes) -> None:
    """Stand for the work of a child."""
    if not _began:
        _began.append(time.perf_counter_ns())
    assert len(body) == BYTES


def _ns_from_first_work(side: Callable[[], None]) -> int:
    """Return how long a side ran after it had its first message."""
    _began.clear()
    start_ns = time.perf_counter_ns()
    side()
    return time.perf_counter_ns() - (_began[0] if _began else start_ns)


@contextlib.contextmanager
def server(name: str) -> Iterator[str]:
    """Yield the URL of a server."""
    if url := os.environ.get(f"ACKER_{name.upper()}_URL"):
        yield url
        return
    script = Path(__file__).resolve().parents[2] / "scripts/broker.py"
    command = [sys.executable, str(script), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"no server {name}: {script} says why")
        try:
            yield json.loads(line)["url"]
        finally:
            process.stdin.close()


# ---- RabbitMQ -------------------------------------------------------------------------------------------------------


def _fill_rabbitmq(url: str, count: int) -> None:
    from acker.connectors.rabbitmq import RabbitMQPublisher

    with RabbitMQPublisher(url, routing_key=_QUEUE, declare={"durable": True}) as publisher:
        for first in range(0, count, _FILL):
            batch = [Outgoing(b"x" * BYTES)] * min(_FILL, count - first)
            expect("unconfirmed", [fault for fault in publisher.publish(batch) if fault], [])


def _left_in_rabbitmq(url: str) -> int:
    import pika

    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        return int(connection.channel().queue_declare(_QUEUE, passive=True).method.message_count)


def _pika(url: str, count: int, ack_every: int = _ACK_EVERY) -> None:
    """Consume with pika, the work done where the message arrives."""
    import pika

    done = 0
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)

        def received(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            nonlocal done
            work(body)
            done += 1
            if done % ack_every == 0 or done == count:
                channel.basic_ack(method.delivery_tag, multiple=True)

        channel.basic_consume(_QUEUE, received)
        while done < count:
            connection.process_data_events(1.0)


def _pika_pool(url: str, count: int, children: int = CHILDREN) -> None:
    """Consume with pika; a message is acked when the pool has done all of its parts."""
    import pika

    acked = 0
    done: deque[int] = deque()
    lock = threading.Lock()
    connection = pika.BlockingConnection(pika.URLParameters(url))
    with connection, ThreadPoolExecutor(THREADS) as pool:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)

        def ack() -> None:
            nonlocal acked
            while done:
                channel.basic_ack(done.popleft())
                acked += 1

        def received(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            left = children

            def end(_future: Future[None]) -> None:
                nonlocal left
                with lock:
                    left -= 1
                    if left:
                        return
                    done.append(method.delivery_tag)
                    is_first = len(done) == 1
                if is_first:
                    connection.add_callback_threadsafe(ack)

            for _ in range(children):
                pool.submit(work, body).add_done_callback(end)

        channel.basic_consume(_QUEUE, received)
        while acked < count:
            connection.process_data_events(1.0)


def _aio_pika(url: str, count: int) -> None:
    """Consume with aio-pika, a task for each message."""
    import aio_pika

    async def run() -> None:
        done, all_done = 0, asyncio.Event()
        connection = await aio_pika.connect(url)
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=PREFETCH)
            queue = await channel.get_queue(_QUEUE)
            tasks = set()

            async def handle(message: Any) -> None:
                nonlocal done
                async with message.process():
                    work(message.body)
                done += 1
                if done == count:
                    all_done.set()

            async def received(message: Any) -> None:
                task = asyncio.create_task(handle(message))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

            await queue.consume(received)
            await all_done.wait()

    asyncio.run(run())


def _rabbitmq(url: str) -> Source:
    from acker.connectors.rabbitmq import RabbitMQ

    return RabbitMQ(url, _QUEUE)


RABBITMQ: Final = Broker("rabbitmq", _fill_rabbitmq, _left_in_rabbitmq, _rabbitmq)


# ---- Redis Streams --------------------------------------------------------------------------------------------------


def _fill_redis(url: str, count: int) -> None:
    import redis

    from acker.connectors.redis_streams import RedisStreamsPublisher

    with redis.Redis.from_url(url) as client:
        client.delete(_QUEUE)
        client.xgroup_create(_QUEUE, _GROUP, "0", mkstream=True)
    with RedisStreamsPublisher(url, stream=_QUEUE) as publisher:
        for first in range(0, count, _FILL):
            batch = [Outgoing(b"x" * BYTES)] * min(_FILL, count - first)
            expect("unconfirmed", [fault for fault in publisher.publish(batch) if fault], [])


def _left_in_redis(url: str) -> int:
    import redis

    with redis.Redis.from_url(url) as client:
        (group,) = client.xinfo_groups(_QUEUE)
        return int(group["pending"] + group["lag"])


def _redis_py(url: str, count: int) -> None:
    """Consume with redis-py, the work done where the entries arrive, one XACK for each XREADGROUP."""
    import redis

    done = 0
    with redis.Redis.from_url(url) as client:
        while done < count:
            for _, entries in client.xreadgroup(_GROUP, "bare", {_QUEUE: ">"}, count=_ACK_EVERY):
                for _, fields in entries:
                    work(fields[b"value"])
                client.xack(_QUEUE, _GROUP, *(entry_id for entry_id, _ in entries))
                done += len(entries)


def _redis_py_pool(url: str, count: int, children: int = CHILDREN) -> None:
    """Consume with redis-py; an entry is acked when the pool has done all of its parts."""
    import redis

    acked = taken = 0
    done: SimpleQueue[bytes] = SimpleQueue()
    lock = threading.Lock()

    def submit(pool: ThreadPoolExecutor, entry_id: bytes, body: bytes) -> None:
        left = children

        def end(_future: Future[None]) -> None:
            nonlocal left
            with lock:
                left -= 1
                is_last = not left
            if is_last:
                done.put(entry_id)

        for _ in range(children):
            pool.submit(work, body).add_done_callback(end)

    with redis.Redis.from_url(url) as client, ThreadPoolExecutor(THREADS) as pool:
        while acked < count:
            room = min(_ACK_EVERY, PREFETCH - (taken - acked), count - taken)
            if room:
                for _, entries in client.xreadgroup(_GROUP, "bare", {_QUEUE: ">"}, count=room):
                    taken += len(entries)
                    for entry_id, fields in entries:
                        submit(pool, entry_id, fields[b"value"])
            ids = [] if room else [done.get()]
            while not done.empty():
                ids.append(done.get())
            if ids:
                client.xack(_QUEUE, _GROUP, *ids)
                acked += len(ids)


def _redis_asyncio(url: str, count: int) -> None:
    """Consume with redis-py's client for asyncio, a task for each entry."""
    import redis.asyncio

    async def handle(body: bytes) -> None:
        work(body)

    async def run() -> None:
        done = 0
        client: Any  # its answers have types of many shapes
        async with redis.asyncio.Redis.from_url(url) as client:
            while done < count:
                for _, entries in await client.xreadgroup(_GROUP, "bare", {_QUEUE: ">"}, count=_ACK_EVERY):
                    async with asyncio.TaskGroup() as tasks:
                        for _, fields in entries:
                            tasks.create_task(handle(fields[b"value"]))
                    await client.xack(_QUEUE, _GROUP, *(entry_id for entry_id, _ in entries))
                    done += len(entries)

    asyncio.run(run())


def _redis_streams(url: str) -> Source:
    from acker.connectors.redis_streams import RedisStreams

    return RedisStreams(url, stream=_QUEUE, group=_GROUP)


REDIS: Final = Broker("redis", _fill_redis, _left_in_redis, _redis_streams)


# ---- Kafka ----------------------------------------------------------------------------------------------------------

# As a Consumer: the most messages of one call, and the time between two commits.
_BATCH: Final = 500
_COMMIT_SECS: Final = 1.0


def _kafka_config(url: str) -> dict[str, Any]:
    return {"bootstrap.servers": url, "group.id": _GROUP, "auto.offset.reset": "earliest"}


def _fill_kafka(url: str, count: int) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined,unused-ignore]

    from acker.connectors.kafka import KafkaPublisher

    admin = AdminClient({"bootstrap.servers": url})  # its end would end the request
    with contextlib.suppress(KafkaException):  # the topic is there already
        admin.create_topics([NewTopic(_TOPIC, 1, 1)])[_TOPIC].result(60)
    with KafkaPublisher({"bootstrap.servers": url}, _TOPIC) as publisher:
        for first in range(0, count, _FILL):
            batch = [Outgoing(b"x" * BYTES)] * min(_FILL, count - first)
            expect("unconfirmed", [fault for fault in publisher.publish(batch) if fault], [])


def _left_in_kafka(url: str) -> int:
    from confluent_kafka import Consumer as Client
    from confluent_kafka import TopicPartition

    client = Client(_kafka_config(url))
    place = TopicPartition(_TOPIC, 0)
    end = client.get_watermark_offsets(place, timeout=30.0)[1]
    committed = client.committed([place], timeout=30.0)[0].offset
    client.close()
    return int(end - max(0, committed))


@contextlib.contextmanager
def _kafka_client(url: str) -> Iterator[Any]:
    """Yield a client that reads the topic, and commits by hand."""
    from confluent_kafka import Consumer as Client

    client = Client(_kafka_config(url) | {"enable.auto.commit": False})
    client.subscribe([_TOPIC])
    try:
        yield client
    finally:
        client.close()


def _confluent(url: str, count: int) -> None:
    """Consume with confluent-kafka, the work done where the messages arrive, a commit a second."""
    done = 0
    commit_at = time.monotonic() + _COMMIT_SECS
    with _kafka_client(url) as client:
        while done < count:
            messages = client.consume(_BATCH, 0.05)
            for message in messages:
                work(message.value())
            done += len(messages)
            if messages and (done == count or time.monotonic() >= commit_at):
                client.commit(message=messages[-1], asynchronous=done < count)
                commit_at = time.monotonic() + _COMMIT_SECS


def _confluent_pool(url: str, count: int, children: int = CHILDREN) -> None:
    """Consume with confluent-kafka; the commit is the lowest offset of which the pool has not done all parts."""
    from confluent_kafka import TopicPartition

    taken = acked = 0
    lowest = -1  # not known yet
    done: SimpleQueue[int] = SimpleQueue()
    waiting: set[int] = set()
    lock = threading.Lock()
    commit_at = time.monotonic() + _COMMIT_SECS

    def submit(pool: ThreadPoolExecutor, offset: int, body: bytes) -> None:
        left = children

        def end(_future: Future[None]) -> None:
            nonlocal left
            with lock:
                left -= 1
                is_last = not left
            if is_last:
                done.put(offset)

        for _ in range(children):
            pool.submit(work, body).add_done_callback(end)

    with _kafka_client(url) as client, ThreadPoolExecutor(THREADS) as pool:
        while acked < count:
            room = min(_BATCH, PREFETCH - (taken - acked), count - taken)
            messages = client.consume(room, 0.05) if room else []
            for message in messages:
                lowest = message.offset() if lowest < 0 else lowest
                submit(pool, message.offset(), message.value())
            taken += len(messages)
            if not room:
                waiting.add(done.get())
            while not done.empty():
                waiting.add(done.get())
            while lowest in waiting:
                waiting.remove(lowest)
                lowest += 1
                acked += 1
            if acked == count or time.monotonic() >= commit_at:
                client.commit(offsets=[TopicPartition(_TOPIC, 0, lowest)], asynchronous=acked < count)
                commit_at = time.monotonic() + _COMMIT_SECS


def _confluent_asyncio(url: str, count: int) -> None:
    """Consume with confluent-kafka on another thread than the loop's, a task for each message."""

    async def handle(body: bytes) -> None:
        work(body)

    async def run() -> None:
        done = 0
        commit_at = time.monotonic() + _COMMIT_SECS
        with _kafka_client(url) as client:
            while done < count:
                messages = await asyncio.to_thread(client.consume, _BATCH, 0.05)
                async with asyncio.TaskGroup() as tasks:
                    for message in messages:
                        tasks.create_task(handle(message.value()))
                done += len(messages)
                if messages and (done == count or time.monotonic() >= commit_at):
                    client.commit(message=messages[-1], asynchronous=done < count)
                    commit_at = time.monotonic() + _COMMIT_SECS

    asyncio.run(run())


def _kafka(url: str) -> Source:
    from acker.connectors.kafka import Kafka

    return Kafka(_kafka_config(url), _TOPIC)


KAFKA: Final = Broker("kafka", _fill_kafka, _left_in_kafka, _kafka)


# ---- the consumer ---------------------------------------------------------------------------------------------------


def _consume(source: Source, count: int) -> None:
    with Consumer(source, open_max=PREFETCH) as consumer:
        for number, message in enumerate(consumer, 1):
            with message, message.child() as child:
                work(message.value)
                del child
            if number == count:
                break


def _consume_pool(source: Source, count: int, children: int = CHILDREN) -> None:
    with ThreadPoolExecutor(THREADS) as pool, Consumer(source, open_max=PREFETCH) as consumer:
        for number, message in enumerate(consumer, 1):
            with message:
                for _ in range(children):
                    message.submit(pool, work, message.value)
            if number == count:
                break


def _consume_async(source: Source, count: int) -> None:
    async def handle(message: Any) -> None:
        work(message.value)

    async def run() -> None:
        number = 0
        async with Consumer(source, open_max=PREFETCH) as consumer:
            async for message in consumer.aiter():
                message.spawn(handle(message))
                number += 1
                if number == count:
                    break

    asyncio.run(run())


def _compare(
    scale: Scale,
    *,
    broker: Broker,
    bare: Bare,
    consumer: Consume,
    messages: int,
    children: int,
    goal: Goal | None,
    each: Bare | None = None,
) -> Result:
    """Time all sides in turns, each on a queue that was filled just before."""
    count = scale.size(messages, 20)
    with server(broker.name) as url:
        sides = {BARE: lambda: bare(url, count), CONSUMER: lambda: consumer(broker.source(url), count)}
        if each is not None:
            sides[EACH] = partial(each, url, count)
        samples: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(scale.pairs + 1):  # the first pair warms up
            for side in list(sides)[:: -1 if number % 2 else 1]:
                broker.fill(url, count)
                taken = _ns_from_first_work(sides[side])
                expect(f"messages left by {side}", broker.left(url), 0)
                if number:
                    samples[side].append(taken)
    rates = {side: [1e9 / each for each in taken] for side, taken in per(samples, count).items()}
    return Result(
        unit="messages/s",
        samples=rates,
        ratios=[Ratio(CONSUMER, BARE, scale.goal(goal)), *([Ratio(CONSUMER, EACH)] if each is not None else [])],
        parameters={"messages": count, "children": children, "bytes": BYTES, "prefetch": PREFETCH},
        checksum={"messages": count},
    )


CASES: Final[list[Case]] = [
    Case(
        "connectors/rabbitmq/one-child",
        "What does a Consumer cost against pika's consume and ack, one child a message?",
        partial(
            _compare,
            broker=RABBITMQ,
            bare=_pika,
            each=partial(_pika, ack_every=1),
            consumer=_consume,
            messages=MESSAGES,
            children=1,
            goal=GOAL,
        ),
        needs=("pika",),
    ),
    Case(
        "connectors/rabbitmq/three-children",
        "And with three children a message in a thread pool?",
        partial(
            _compare,
            broker=RABBITMQ,
            bare=partial(_pika_pool, children=FEW),
            consumer=partial(_consume_pool, children=FEW),
            messages=MESSAGES_FEW,
            children=FEW,
            goal=GOAL,
        ),
        needs=("pika",),
    ),
    Case(
        "connectors/rabbitmq/pool",
        "And with 20?",
        partial(
            _compare,
            broker=RABBITMQ,
            bare=_pika_pool,
            consumer=_consume_pool,
            messages=MESSAGES_WIDE,
            children=CHILDREN,
            goal=GOAL,
        ),
        needs=("pika",),
    ),
    Case(
        "connectors/rabbitmq/asyncio",
        "What does a Consumer cost on an event loop, against aio-pika?",
        partial(
            _compare, broker=RABBITMQ, bare=_aio_pika, consumer=_consume_async, messages=MESSAGES, children=1, goal=GOAL
        ),
        needs=("pika", "aio_pika"),
    ),
    Case(
        "connectors/redis/one-child",
        "What does a Consumer cost against redis-py's xreadgroup and xack, one child a message?",
        partial(_compare, broker=REDIS, bare=_redis_py, consumer=_consume, messages=MESSAGES, children=1, goal=GOAL),
        needs=("redis",),
    ),
    Case(
        "connectors/redis/three-children",
        "And with three children a message in a thread pool?",
        partial(
            _compare,
            broker=REDIS,
            bare=partial(_redis_py_pool, children=FEW),
            consumer=partial(_consume_pool, children=FEW),
            messages=MESSAGES_FEW,
            children=FEW,
            goal=GOAL,
        ),
        needs=("redis",),
    ),
    Case(
        "connectors/redis/pool",
        "And with 20?",
        partial(
            _compare,
            broker=REDIS,
            bare=_redis_py_pool,
            consumer=_consume_pool,
            messages=MESSAGES_WIDE,
            children=CHILDREN,
            goal=GOAL,
        ),
        needs=("redis",),
    ),
    Case(
        "connectors/redis/asyncio",
        "What does a Consumer cost on an event loop, against redis-py's client for asyncio?",
        partial(
            _compare,
            broker=REDIS,
            bare=_redis_asyncio,
            consumer=_consume_async,
            messages=MESSAGES,
            children=1,
            goal=GOAL,
        ),
        needs=("redis",),
    ),
    Case(
        "connectors/kafka/one-child",
        "What does a Consumer cost against a loop over confluent-kafka's consume, one child a message?",
        partial(
            _compare,
            broker=KAFKA,
            bare=_confluent,
            consumer=_consume,
            messages=MESSAGES_KAFKA,
            children=1,
            goal=GOAL_KAFKA,
        ),
        needs=("confluent_kafka",),
    ),
    Case(
        "connectors/kafka/one-child-in-pool",
        "And where a thread pool works on it?",
        partial(
            _compare,
            broker=KAFKA,
            bare=partial(_confluent_pool, children=1),
            consumer=partial(_consume_pool, children=1),
            messages=MESSAGES,
            children=1,
            goal=GOAL,
        ),
        needs=("confluent_kafka",),
    ),
    Case(
        "connectors/kafka/three-children",
        "And with three children a message in a thread pool?",
        partial(
            _compare,
            broker=KAFKA,
            bare=partial(_confluent_pool, children=FEW),
            consumer=partial(_consume_pool, children=FEW),
            messages=MESSAGES_FEW,
            children=FEW,
            goal=GOAL,
        ),
        needs=("confluent_kafka",),
    ),
    Case(
        "connectors/kafka/pool",
        "And with 20?",
        partial(
            _compare,
            broker=KAFKA,
            bare=_confluent_pool,
            consumer=_consume_pool,
            messages=MESSAGES_WIDE,
            children=CHILDREN,
            goal=GOAL,
        ),
        needs=("confluent_kafka",),
    ),
    Case(
        "connectors/kafka/asyncio",
        "What does a Consumer cost on an event loop, against confluent-kafka on a thread beside the loop?",
        partial(
            _compare,
            broker=KAFKA,
            bare=_confluent_asyncio,
            consumer=_consume_async,
            messages=MESSAGES,
            children=1,
            goal=GOAL,
        ),
        needs=("confluent_kafka",),
    ),
]
