"""A consumer of a broker: an order is acked when all of its items are packed, and all of their parcels are sent.

Run it: python examples/consumer.py redis://localhost:6379, or with the amqp:// URL of a RabbitMQ.

`python scripts/broker.py redis` starts a Redis and prints its URL; it needs the extra `redis`. The program puts three
orders into the stream (or queue) "orders", and consumes until it is stopped by Ctrl-C or SIGTERM.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from acker.connectors import Child, Consumer, DeadLetterFile, Message, Outgoing, Publisher, Source

ORDERS = (["lamp", "lamp", "desk"], ["chair", "sofa"], ["rug"])


def connect(url: str) -> tuple[Source, Publisher]:
    """Return a source and a publisher of the same broker."""
    if url.startswith("amqp"):
        from acker.connectors.rabbitmq import RabbitMQ, RabbitMQPublisher

        return RabbitMQ(url, queue="orders", declare="quorum"), RabbitMQPublisher(url, routing_key="orders")
    from acker.connectors.redis_streams import RedisStreams, RedisStreamsPublisher

    return RedisStreams(url, stream="orders", group="packers"), RedisStreamsPublisher(url, stream="orders")


def handle(order: Message[list[str]]) -> None:
    """Give each item of an order to the pool. The order is done when all parts are."""
    for item in order.value:
        pool.submit(pack, item, order.child())


def pack(item: str, part: Child) -> None:
    """Pack one item in a thread of the pool. The end of the block says that it is done, an exception that it failed."""
    with part:
        if item == "sofa":
            raise LookupError("no sofa is left")
        part.submit(pool, send, f"parcel with a {item}")  # a part of this part: the order waits for it too


def send(parcel: str) -> None:
    """Send a parcel."""
    print(f"sent {parcel}\n", end="", flush=True)


source, publisher = connect(sys.argv[1])
pool = ThreadPoolExecutor(4)
consumer = Consumer(
    source,
    decode=json.loads,
    attempts_max=3,
    backoff_secs=0.1,
    dead_letters=DeadLetterFile("dead-letters.jsonl"),
)

with publisher:
    for fault in publisher.publish([Outgoing(json.dumps(order).encode()) for order in ORDERS]):
        if fault is not None:
            raise fault
with pool:
    stats = consumer.run(handle)  # until Ctrl-C or SIGTERM
print(stats.acked, "orders were acked,", stats.dead_letters, "was given up")
