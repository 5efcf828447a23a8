"""The driver of a topology on Spark is killed: what becomes of messages of RabbitMQ and Redis Streams."""

import json
import signal
import subprocess
import sys
import uuid
from collections import Counter

import pika
import pytest
import redis as redis_client

from acker.connectors import Outgoing
from acker.connectors.rabbitmq import RabbitMQPublisher
from acker.connectors.redis_streams import RedisStreamsPublisher
from tests.servers import PATIENCE_SECS
from tests.spark.topologies.broker_words import ATTEMPTS_MAX
from tests.torture.topology_kills.account import counts_in

WORDS = [f"word{number % 7}" for number in range(90)]
SHY = [f"shy{number}" for number in range(5)]
BAD = ["bad0", "bad1"]
GOOD = Counter([*WORDS, *SHY])


class RabbitMQQueue:
    """A queue of the server."""

    def __init__(self, url):
        self.url, self.name = url, f"words-{uuid.uuid4().hex[:8]}"

    def publish(self, words):
        with RabbitMQPublisher(self.url, routing_key=self.name, declare={"durable": True}) as publisher:
            assert set(publisher.publish([Outgoing(word.encode()) for word in words])) == {None}

    def left(self):
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            return connection.channel().queue_declare(self.name, passive=True).method.message_count

    def counted(self):
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            bodies = iter(lambda: channel.basic_get(f"{self.name}-counted", auto_ack=True)[2], None)
            return Counter(body.decode() for body in bodies)


class RedisStream:
    """A stream of the server."""

    def __init__(self, url):
        self.url, self.name = url, f"words-{uuid.uuid4().hex[:8]}"

    def publish(self, words):
        with RedisStreamsPublisher(self.url, stream=self.name) as publisher:
            assert set(publisher.publish([Outgoing(word.encode()) for word in words])) == {None}

    def left(self):
        with redis_client.Redis.from_url(self.url, socket_timeout=PATIENCE_SECS) as client:
            (group,) = client.xinfo_groups(self.name)
            return group["pending"] + group["lag"]

    def counted(self):
        with redis_client.Redis.from_url(self.url, socket_timeout=PATIENCE_SECS) as client:
            return Counter(fields[b"value"].decode() for _, fields in client.xrange(f"{self.name}-counted"))


QUEUES = {"rabbitmq": RabbitMQQueue, "redis": RedisStream}


def run_words(**settings):
    """Run the program; return how it ended, and what it said."""
    command = [sys.executable, "-m", "tests.spark.topologies.broker_words", json.dumps(settings)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    return ended.returncode, ended.stderr


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("broker", "spout", "kill"),
    [
        ("redis", "SourceSpout", "committed"),
        ("rabbitmq", "JournaledSourceSpout", "acked"),
        pytest.param("redis", "ArrowSourceSpout", "committed", marks=pytest.mark.soak),
    ],
)
def test_no_message_is_lost_and_state_counts_twice_only_what_was_promised(request, tmp_path, broker, spout, kill):
    queue = QUEUES[broker](request.getfixturevalue(broker).url)
    queue.publish([*WORDS[:45], *SHY, *BAD, *WORDS[45:]])
    settings = {"broker": broker, "url": queue.url, "name": queue.name, "spout": spout, "folder": str(tmp_path)}
    code, text = run_words(**settings, kill=kill, words=sys.maxsize, letters=0)
    assert code == -signal.SIGKILL, text
    # A SourceSpout's message is counted twice if its micro-batch was committed and its ack was not sent; no other.
    committed = counts_in(tmp_path / "checkpoint")
    assert bool(committed) is (kill == "committed")
    code, text = run_words(**settings, words=(GOOD + committed).total(), letters=len(BAD))
    assert code == 0, text
    assert counts_in(tmp_path / "checkpoint") == GOOD + committed
    assert queue.left() == 0
    letters = [json.loads(line) for line in (tmp_path / "letters").read_text().splitlines()]
    assert sorted(letter["value"] for letter in letters) == BAD
    assert {letter["headers"]["acker-attempts"] for letter in letters} == {ATTEMPTS_MAX}
    if spout == "ArrowSourceSpout":  # An evaluation that runs again publishes again.
        published = queue.counted()
        assert published.keys() == GOOD.keys() and not GOOD - published
