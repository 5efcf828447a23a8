"""The examples of docs/rabbitmq.md, on a real server: as they stand on the page, but for address and queues."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pika
import pytest

import acker.connectors
from blocks import ROOT, blocks_of
from running import run_blocks

pytestmark = pytest.mark.repository

LONG = 60.0
BLOCKS = [block for block in blocks_of(ROOT / "docs/rabbitmq.md") if block.note.startswith("run by")]
CONSUMER, CONNECTIONS, QUORUM, PUBLISH = range(4)


@pytest.fixture
def queues(rabbitmq):
    """A channel, and the names of the queues of the page, which are those of the tests."""
    names = {"jobs": "jobs of the page", "jobs.dead": "dead jobs of the page"}
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        for name in names.values():
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        yield channel, names
        for name in names.values():
            channel.queue_delete(name)


def adapted(block, url, names):
    """Return a block with another address and other queues."""
    code = block.body.replace('"amqp://localhost"', repr(url))
    for name, other in names.items():
        code = code.replace(f'"{name}"', f'"{other}"')
    prints = None if block.prints is None else block.prints.replace("'jobs'", f"'{names.get('jobs', 'jobs')}'")
    return block._replace(body=code, prints=prints)


def test_the_consumer_of_the_page(rabbitmq, queues, monkeypatch):
    """It runs until all messages are acked; one is no JSON, and becomes a dead letter."""
    channel, names = queues
    made = []

    class Seen(acker.connectors.Consumer):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(acker.connectors, "Consumer", Seen)
    bodies = [b'{"parts": [1, 2]}', b'{"parts": []}', b'{"parts": [3]}']
    for body in [*bodies, b"no JSON"]:
        channel.basic_publish("", names["jobs"], body)

    def stop():
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            if made:
                stats = made[0].stats()
                if stats.acked == 3 and stats.dead_letters == 1:
                    break
            time.sleep(0.01)
        made[0].stop()

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    worked = []
    scope = {"__name__": "docs", "print": lambda *words: worked.append(words)}
    run_blocks([adapted(BLOCKS[CONSUMER], rabbitmq.url, names)], scope)
    stopping.join(LONG)
    assert Counter(worked) == Counter(("worked on", part) for part in (1, 2, 3))
    assert channel.basic_get(names["jobs"], auto_ack=True)[2] is None
    _, properties, body = channel.basic_get(names["jobs.dead"], auto_ack=True)
    assert body == b"no JSON"
    assert "cannot be decoded" in properties.headers["acker-reason"]


@pytest.mark.parametrize("number", [CONNECTIONS, PUBLISH])
def test_an_example_prints_what_the_page_says(rabbitmq, queues, number):
    _, names = queues
    assert run_blocks([adapted(BLOCKS[number], rabbitmq.url, names)], {"__name__": "docs"}) == 1


def test_the_quorum_queue_is_declared_by_publisher_and_consumer(rabbitmq):
    name = "orders of the page"
    assert run_blocks([adapted(BLOCKS[QUORUM], rabbitmq.url, {"orders": name})], {"__name__": "docs"}) == 1
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        options = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
        assert channel.queue_declare(name, **options).method.message_count == 0
        channel.queue_delete(name)


def test_the_page_has_these_examples():
    assert len(BLOCKS) == 4
