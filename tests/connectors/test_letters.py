"""Dead letters at each place, on real servers: found, published again, dropped; and a kill in the middle of it."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from urllib.parse import urlsplit, urlunsplit

import pytest
import redis

from acker import SourceError
from acker.connectors import Consumer, DeadLetterFile, DeadLetters, Outgoing
from acker.connectors.redis_streams import RedisStreamsPublisher
from acker.testing.connectors import MemoryPublisher
from tests.marks import slow

PATIENCE_SECS = 300.0

# Publishes letters again; the second call of the broker, or the only one, is confirmed, and then this hangs.
HANG = """
import sys, threading
from acker.connectors import DeadLetters
from tests.connectors.test_letters import made
place, target, count = made(sys.argv[1]), made(sys.argv[2]), int(sys.argv[3])
write, confirmed = target.write, 0
def write_and_hang(messages):
    global confirmed
    answers = write(messages)
    assert not any(answers), answers
    is_second, confirmed = confirmed > 0, confirmed + len(messages)
    if is_second or confirmed == count:
        print("published", flush=True)
        threading.Event().wait()
    return answers
target.write = write_and_hang
DeadLetters(place, lease_secs=6).retry(to=target)
"""


def made(told):
    """Return the object that a text of JSON tells of: module, class, options."""
    module, name, options = json.loads(told)
    return getattr(importlib.import_module(f"acker.connectors.{module}"), name)(**options)


class LettersContract:
    """A queue with a consumer, and a place for its dead letters.

    A subclass has `queue`, a publisher to the queue, and `place`, one to the place, as JSON of `made`; and `source`.
    """

    key = None
    headers = {"colour": "green", "size": "7"}
    count = 700

    def consumer(self, **options):
        options = {"attempts_max": 1, "backoff_secs": 0.01, "timeout_secs": 60.0, **options}
        return Consumer(self.source(), dead_letters=made(self.place), **options)

    def publish(self, publisher, messages):
        with publisher:
            answers = publisher.publish(messages)
        assert not any(answers), answers

    def fail_all(self, count):
        """Let so many messages come to the place of dead letters."""
        messages = [Outgoing(b"%d" % number, self.key, self.headers) for number in range(count)]
        self.publish(made(self.queue), messages)
        consumer = self.consumer()

        def fail(message):
            raise LookupError(f"no lamp {message.value.decode()}")

        consumer.run(fail, threads=1, until="empty")
        return consumer

    def text_headers(self, headers):
        return {name: text.decode() if isinstance(text, bytes) else str(text) for name, text in headers.items()}

    def test_letters_are_found_published_again_and_dropped(self):
        letters = self.fail_all(3).letters()
        report = letters.find()
        found = {letter.value: letter for letter in report.letters}
        assert found.keys() == {b"0", b"1", b"2"} and report.is_all and report.others == 0
        lamp = found[b"0"]
        assert "LookupError: no lamp 0" in lamp.reason and lamp.attempts == 1
        assert lamp.source == self.source().name and lamp.key
        assert 0 <= lamp.age_secs() < 600
        # To find letters takes none away, and each is the same again.
        assert {letter.letter_id for letter in letters.find().letters} == {each.letter_id for each in found.values()}
        assert [each.value for each in letters.drop(lambda letter: "lamp 1" in letter.reason).letters] == [b"1"]
        report = letters.retry(lambda letter: letter.letter_id == lamp.letter_id)
        assert [each.value for each in report.letters] == [b"0"] and report.refused == []
        assert [each.value for each in letters.find().letters] == [b"2"]

        taken = []
        self.consumer().run(taken.append, threads=1, until="empty")
        assert [message.value for message in taken] == [b"0"]
        headers = self.text_headers(taken[0].headers)
        assert not [name for name in headers if name.startswith(("acker-", "x-"))], headers
        assert headers == LettersContract.headers
        assert self.key_of(taken[0]) == self.key

    def key_of(self, message):
        """Return the broker's own key of a message."""
        del message
        return self.key

    def test_what_is_not_confirmed_stays(self):
        letters = self.fail_all(3).letters()
        target = MemoryPublisher()
        target.refuse(2)
        report = letters.retry(to=target)
        assert (len(report.letters), len(report.refused), len(target.published)) == (1, 2, 1)
        assert "refuses the message" in str(report.refused[0][1])
        left = {letter.value for letter in letters.find().letters}
        assert left == {letter.value for letter, _ in report.refused}

    def test_letters_of_other_sources_are_left_alone(self):
        self.fail_all(2)
        alien = Outgoing(b"alien", headers={"acker-source": "another one", "acker-reason": "lost"})
        self.publish(made(self.place), [alien])
        report = self.consumer().letters().drop()
        assert {each.value for each in report.letters} == {b"0", b"1"} and report.others == 1
        assert [each.value for each in DeadLetters(made(self.place)).find().letters] == [b"alien"]

    def test_a_kill_in_the_middle_loses_nothing(self):
        names = [b"%d" % number for number in range(self.count)]
        self.publish(made(self.place), [Outgoing(name, headers={"acker-reason": "why"}) for name in names])
        command = [sys.executable, "-c", HANG, self.place, self.queue, str(self.count)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        assert process.stdout.readline() == "published\n"
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        # What was confirmed and not dropped comes again, once the leases of the dead process are over.
        letters = DeadLetters(made(self.place), lease_secs=6)
        target = made(self.queue)
        arrived, until = Counter(), time.monotonic() + PATIENCE_SECS
        while len(arrived) < self.count or letters.find().letters:
            assert time.monotonic() < until, f"{len(arrived)} of {self.count}"
            letters.retry(to=target)
            self.consumer().run(lambda message: arrived.update([message.value]), until="empty")
        assert set(arrived) == set(names) and max(arrived.values()) <= 2


class OneOfEachKind(LettersContract):
    """What `make test` runs where another place works in the same way; the rest is slow."""

    test_what_is_not_confirmed_stays = slow(LettersContract.test_what_is_not_confirmed_stays)
    test_letters_of_other_sources_are_left_alone = slow(LettersContract.test_letters_of_other_sources_are_left_alone)
    test_a_kill_in_the_middle_loses_nothing = slow(LettersContract.test_a_kill_in_the_middle_loses_nothing)


class TestFile(OneOfEachKind):
    """A file, and Redis as the source."""

    @pytest.fixture(autouse=True)
    def _place(self, redis, tmp_path):
        self.url, self.name = redis.url, f"letters-{uuid.uuid4().hex[:8]}"
        self.place = json.dumps(["dead_letter_file", "DeadLetterFile", {"path": str(tmp_path / "letters.jsonl")}])
        self.queue = json.dumps(["redis_streams", "RedisStreamsPublisher", {"server": self.url, "stream": self.name}])

    def source(self):
        from acker.connectors.redis_streams import RedisStreams

        return RedisStreams(self.url, stream=self.name, group="g")


class TestRedisStreams(LettersContract):
    @pytest.fixture(autouse=True)
    def _place(self, redis):
        self.url, self.name = redis.url, f"letters-{uuid.uuid4().hex[:8]}"
        self.place, self.queue = (
            json.dumps(["redis_streams", "RedisStreamsPublisher", {"server": self.url, "stream": stream}])
            for stream in (f"{self.name}-dead", self.name)
        )

    source = TestFile.source

    def test_a_retry_publishes_nothing_where_this_user_may_not_delete(self):
        self.publish(made(self.place), [Outgoing(b"lamp")])
        url = urlsplit(self.url)
        with redis.Redis.from_url(self.url) as client:
            client.acl_setuser(self.name, enabled=True, nopass=True, keys=["*"], commands=["+@all", "-xdel"])
        server = urlunsplit(url._replace(netloc=f"{self.name}:any@{url.hostname}:{url.port}"))
        refuses_removal(RedisStreamsPublisher(server, stream=f"{self.name}-dead"), "xdel")


def refuses_removal(place, why):
    """Check that a retry publishes nothing where no letter can be dropped."""
    target = MemoryPublisher()
    with pytest.raises(SourceError, match=f"^nothing was published, since no letter can be dropped: .*{why}"):
        DeadLetters(place).retry(to=target)
    assert target.published == []


class TestPostgreSQL(OneOfEachKind):
    key = b"k\xff"

    @pytest.fixture(autouse=True)
    def _place(self, postgresql):
        self.options = {"conninfo": postgresql.url, "create": True}
        self.name = f"letters_{uuid.uuid4().hex[:8]}"
        self.place, self.queue = (
            json.dumps(["postgresql", "PostgreSQLPublisher", {**self.options, "table": table}])
            for table in (f"{self.name}_dead", self.name)
        )

    def source(self):
        from acker.connectors.postgresql import PostgreSQL

        return PostgreSQL(table=self.name, **self.options)

    def key_of(self, message):
        return message.raw["key"]

    @pytest.mark.slow
    def test_a_retry_publishes_nothing_where_this_user_may_not_delete(self, postgresql):
        import psycopg

        from acker.connectors.postgresql import PostgreSQLPublisher

        self.publish(made(self.place), [Outgoing(b"lamp")])
        with psycopg.connect(postgresql.url) as connection:
            connection.execute(f"CREATE ROLE {self.name} LOGIN PASSWORD 'any'")
            connection.execute(f"GRANT SELECT ON {self.name}_dead TO {self.name}")
        conninfo = psycopg.conninfo.make_conninfo(postgresql.url, user=self.name, password="any")
        refuses_removal(PostgreSQLPublisher(conninfo, table=f"{self.name}_dead"), "permission denied")


class TestJetStream(OneOfEachKind):
    @pytest.fixture(autouse=True)
    def _place(self, nats):
        self.url, self.name = nats.url, f"letters-{uuid.uuid4().hex[:8]}"
        asyncio.run(self.add_streams(self.name))
        self.place, self.queue = (
            json.dumps(["nats", "JetStreamPublisher", {"servers": self.url, "subject": f"{self.name}.{part}"}])
            for part in ("dead", "work")
        )

    async def add_streams(self, name, **options):
        import nats

        client = await nats.connect(self.url)
        for part in ("dead", "work"):
            await client.jetstream(timeout=60).add_stream(name=f"{name}-{part}", subjects=[f"{name}.{part}"], **options)
        await client.close()

    def source(self):
        from acker.connectors.nats import JetStream

        return JetStream(self.url, stream=f"{self.name}-work", durable="g")

    @pytest.mark.slow
    def test_a_retry_publishes_nothing_where_the_stream_denies_to_delete(self):
        from acker.connectors.nats import JetStreamPublisher

        asyncio.run(self.add_streams(f"{self.name}-kept", deny_delete=True))
        place = JetStreamPublisher(self.url, subject=f"{self.name}-kept.dead")
        self.publish(place, [Outgoing(b"lamp")])
        refuses_removal(place, "deny_delete")


class TestRabbitMQ(OneOfEachKind):
    declare = {"durable": True, "arguments": {"x-queue-type": "classic"}}
    headers = {**LettersContract.headers, "x-first-death-queue": "old"}  # of a queue that it came through

    @pytest.fixture(autouse=True)
    def _place(self, rabbitmq):
        self.url, self.name = rabbitmq.url, f"letters-{uuid.uuid4().hex[:8]}"
        self.place, self.queue = (
            json.dumps(
                [
                    "rabbitmq",
                    "RabbitMQPublisher",
                    {"parameters": self.url, "routing_key": queue, "declare": self.declare},
                ]
            )
            for queue in (f"{self.name}-dead", self.name)
        )

    def source(self):
        from acker.connectors.rabbitmq import RabbitMQ

        return RabbitMQ(self.url, self.name, declare=self.declare)

    @pytest.mark.parametrize("way", ["a publisher", "a file", "the broker"])
    def test_a_letter_keeps_the_properties_of_its_message(self, tmp_path, way):
        from acker.connectors.rabbitmq import RabbitMQ, RabbitMQPublisher

        texts = {name: f"the {name}" for name in ("content_type", "correlation_id", "reply_to", "message_id", "type")}
        kept = {**texts, "content_encoding": "gzip", "priority": 3, "timestamp": 1_700_000_000, "app_id": "shop"}
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{self.name}-dead"}
        options = {"declare": {"durable": True, "arguments": arguments}}
        place = made(self.place) if way != "a file" else DeadLetterFile(tmp_path / "letters")
        place.open()  # it declares the queue
        place.close()
        queue = RabbitMQPublisher(self.url, routing_key=f"{self.name}-from", **options)
        self.publish(queue, [Outgoing(b"lamp", properties={**kept, "expiration": "3600000", "delivery_mode": 1})])

        def consumer():
            source = RabbitMQ(self.url, f"{self.name}-from", **options)
            return Consumer(source, attempts_max=1, dead_letters="broker" if way == "the broker" else place)

        consumer().run(lambda message: message.fail(), threads=1, until="empty")
        report = consumer().letters(place).retry()
        assert ([letter.properties for letter in report.letters], report.refused) == ([kept], [])
        taken = []
        consumer().run(taken.append, threads=1, until="empty")
        assert [message.key for message in taken] == [f"{self.name}-from/the message_id"]
        found = taken[0].raw.properties
        assert {name: getattr(found, name) for name in kept} == kept
        assert (found.expiration, found.delivery_mode, found.headers) == (None, 2, None)


@pytest.mark.slow
class TestQuorumQueue(TestRabbitMQ):
    declare = "quorum"


class TestSQS(OneOfEachKind):
    count = 25

    @pytest.fixture(autouse=True)
    def _place(self, sqs):
        import boto3.session

        self.options = {
            "endpoint_url": sqs.url,
            "region_name": "us-east-1",
            "aws_access_key_id": "anybody",
            "aws_secret_access_key": "s3cret",
        }
        client = boto3.session.Session().client("sqs", **self.options)
        name = f"letters-{uuid.uuid4().hex[:8]}"
        self.url, dead = (client.create_queue(QueueName=each)["QueueUrl"] for each in (name, f"{name}-dead"))
        client.close()
        self.place, self.queue = (
            json.dumps(["sqs", "SQSPublisher", {"queue_url": url, **self.options}]) for url in (dead, self.url)
        )

    def source(self):
        from acker.connectors.sqs import SQS

        return SQS(self.url, **self.options)


class TestKafka(OneOfEachKind):
    key = b"k"

    @pytest.fixture(autouse=True)
    def _place(self, kafka):
        from tests.connectors.kafka_kit import Cluster

        cluster = Cluster(kafka.url)
        self.config = {"bootstrap.servers": kafka.url}
        self.name, dead = cluster.topic(), cluster.topic()
        self.place, self.queue = (
            json.dumps(["kafka", "KafkaPublisher", {"config": {**self.config, "acks": "all"}, "topic": topic}])
            for topic in (dead, self.name)
        )
        yield
        for topic in (self.name, dead):
            cluster.delete(topic)
        cluster.close()

    def source(self):
        from acker.connectors.kafka import Kafka

        return Kafka({**self.config, "group.id": self.name, "auto.offset.reset": "earliest"}, self.name)

    def key_of(self, message):
        return message.raw.key()
