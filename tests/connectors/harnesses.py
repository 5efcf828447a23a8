"""Harnesses of the conformance kit for the brokers of acker's own sources, against real servers through a proxy."""

from __future__ import annotations

import asyncio
import json
import uuid
from urllib.parse import urlsplit, urlunsplit

from acker.testing.connectors import SourceHarness
from tests.connectors.proxy import Proxy
from tests.servers import PATIENCE_SECS

# How long a publisher waits for a confirmation, from a server that may stand still for seconds.
CONFIRM_SECS = 30.0


def with_port(url: str, port: int) -> str:
    """Return a URL that names this port of loopback instead of its own host and port."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}" if user else f"127.0.0.1:{port}"))


class ServerHarness(SourceHarness):
    """A broker on a server of `tests/servers.py`. Sources connect through a proxy; the harness itself does not."""

    patience_secs = 60.0

    def __init__(self, server):
        self.server = server
        self.name = f"kit-{uuid.uuid4().hex[:12]}"
        self.proxy = Proxy(urlsplit(server.url).port)
        self.url = with_port(server.url, self.proxy.port)

    def close(self):
        self.proxy.close()

    def cut(self):
        self.proxy.cut()

    def stalled(self):
        return self.proxy.stalled()

    def unreachable(self):
        return self.proxy.refusing()

    def restart(self):
        self.server.kill()
        self.server.start()


class RedisHarness(ServerHarness):
    """A stream with one group, and a user with a password of its own."""

    secret = "s3cret"
    takes_over_secs = 4.0

    def __init__(self, server):
        super().__init__(server)
        import redis

        self.client = redis.Redis.from_url(server.url, socket_timeout=PATIENCE_SECS)
        self._make_user()
        self.url = self._url_of(self.secret)

    def _make_user(self):
        self.client.execute_command("ACL", "SETUSER", "kit", "on", f">{self.secret}", "~*", "&*", "+@all")

    def _url_of(self, password):
        return f"redis://kit:{password}@127.0.0.1:{self.proxy.port}/0"

    def close(self):
        super().close()
        self.client.delete(self.name, f"{self.name}-text")
        self.client.close()

    def restart(self):
        # The server forgets its users. Nobody is let in before it has them again.
        with self.proxy.refusing():
            super().restart()
            self._make_user()

    def source(self, **settings):
        from acker.connectors.redis_streams import RedisStreams

        settings = {"stream": self.name, "group": "kit", "lease_secs": self.lease_secs, **settings}
        return RedisStreams(settings.pop("server", self.url), **settings)

    def publish(self, values, headers=None):
        with self.client.pipeline() as pipeline:
            for value in values:
                pipeline.xadd(self.name, {"value": value, **(headers or {})})
            pipeline.execute()

    def left(self):
        groups = self.client.xinfo_groups(self.name) if self.client.exists(self.name) else []
        for group in groups:
            after = self.client.xrange(self.name, min=b"(" + group["last-delivered-id"])
            return group["pending"] + len(after)
        return self.client.xlen(self.name)

    def take_back(self):
        # Another consumer takes them over, and they are idle for longer than a lease.
        ids = [entry["message_id"] for entry in self.client.xpending_range(self.name, "kit", "-", "+", 1000)]
        self.client.xclaim(self.name, "kit", "other", 0, ids, idle=10_000, justid=True)

    def mistakes(self):
        self.client.set(f"{self.name}-text", "no stream")
        return [self.source(stream=f"{self.name}-text"), self.source(server=self._url_of("wrong"))]

    def publisher(self, stream=None):
        from acker.connectors.redis_streams import RedisStreamsPublisher

        return RedisStreamsPublisher(self.url, stream=stream or self.name)

    def publisher_to_nowhere(self):
        self.client.set(f"{self.name}-text", "no stream")
        return self.publisher(f"{self.name}-text")


class PostgreSQLHarness(ServerHarness):
    """A table."""

    counts_releases = False
    takes_over_secs = 4.0

    def __init__(self, server):
        super().__init__(server)
        import psycopg

        from acker.connectors.postgresql import table_sql

        self.secret = urlsplit(server.url).password
        self.table = self.name.replace("-", "_")
        self.psycopg = psycopg
        self.connection = self._connect()
        self._run(table_sql(self.table))

    def _connect(self):
        return self.psycopg.connect(self.server.url, autocommit=True)

    def _run(self, statement, *values):
        cursor = self.connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []

    def close(self):
        super().close()
        self._run(f"DROP TABLE {self.table}")
        self.connection.close()

    def restart(self):
        super().restart()
        self.connection.close()
        self.connection = self._connect()

    def source(self, **settings):
        from acker.connectors.postgresql import PostgreSQL

        settings = {"table": self.table, "lease_secs": self.lease_secs, "poll_secs": 0.05, **settings}
        return PostgreSQL(settings.pop("conninfo", self.url), **settings)

    def publish(self, values, headers=None):
        text = json.dumps(headers or {})
        with self.connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {self.table} (value, headers) VALUES (%s, %s)", [(value, text) for value in values]
            )

    def left(self):
        return self._run(f"SELECT count(*) FROM {self.table} WHERE dead_at IS NULL")[0][0]

    def take_back(self):
        self._run(f"UPDATE {self.table} SET due_at = now(), owner = NULL WHERE dead_at IS NULL")

    def given_up(self):
        return [row[0] for row in self._run(f"SELECT value FROM {self.table} WHERE dead_at IS NOT NULL")]

    def mistakes(self):
        wrong = self.url.replace(f":{self.secret}@", f":{self.secret}-wrong@")
        return [self.source(table="no_such_table"), self.source(conninfo=wrong)]

    def publisher(self, table=None):
        from acker.connectors.postgresql import PostgreSQLPublisher

        return PostgreSQLPublisher(self.url, table=table or self.table)

    def publisher_to_nowhere(self):
        return self.publisher("no_such_table")


class SQSHarness(ServerHarness):
    """A standard queue of moto. It keeps nothing when it is killed, so it is not restarted here."""

    secret = "s3cret"
    takes_over_secs = 4.0
    is_stateless = True
    many = 100
    bodies = (b"", b"plain", "größer".encode(), bytes(range(256)), b"x" * 150_000)

    def __init__(self, server):
        super().__init__(server)
        import boto3.session

        self.client = boto3.session.Session().client("sqs", **self._options(server.url))
        self.queue_url = self.client.create_queue(QueueName=self.name)["QueueUrl"]

    restart = SourceHarness.restart

    def _options(self, endpoint_url):
        return {
            "endpoint_url": endpoint_url,
            "region_name": "us-east-1",
            "aws_access_key_id": "anybody",
            "aws_secret_access_key": self.secret,
        }

    def close(self):
        super().close()
        self.client.delete_queue(QueueUrl=self.queue_url)
        self.client.close()

    def source(self, queue_url=None):
        from acker.connectors.sqs import SQS

        source = SQS(queue_url or self.queue_url, lease_secs=self.lease_secs, **self._options(self.url))
        source.wait_secs_max = 0.05  # A second for each poll would add up.
        return source

    def publish(self, values, headers=None):
        from acker.connectors import Outgoing
        from acker.connectors.sqs import SQSPublisher

        with SQSPublisher(self.queue_url, **self._options(self.server.url)) as publisher:
            answers = publisher.publish([Outgoing(value, headers=headers or {}) for value in values])
        assert not any(answers), answers

    def left(self):
        # moto counts one state after the other: a message that becomes visible meanwhile may be in none of them, but
        # hardly twice in a row.
        count, again = None, self._count()
        while count != again:
            count, again = again, self._count()
        return count

    def _count(self):
        names = [f"ApproximateNumberOfMessages{name}" for name in ("", "NotVisible", "Delayed")]
        told = self.client.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)["Attributes"]
        return sum(int(told[name]) for name in names)

    def mistakes(self):
        return [self.source(f"{self.queue_url}-unknown")]

    def publisher(self, queue_url=None):
        from acker.connectors.sqs import SQSPublisher

        return SQSPublisher(queue_url or self.queue_url, **self._options(self.url))

    def publisher_to_nowhere(self):
        return self.publisher(f"{self.queue_url}-unknown")


class JetStreamHarness(ServerHarness):
    """A stream of one subject, with one durable consumer."""

    takes_over_secs = 4.0

    def __init__(self, server):
        super().__init__(server)
        self.stream = self.name
        self.run(lambda context: context.add_stream(name=self.stream, subjects=[self.stream]))

    def run(self, work):
        """Run a coroutine function with a context of JetStream."""
        import nats

        async def connected():
            client = await nats.connect(self.server.url)
            try:
                return await work(client.jetstream(timeout=30))
            finally:
                await client.close()

        return asyncio.run(connected())

    def close(self):
        super().close()
        self.run(lambda context: context.delete_stream(self.stream))

    def source(self, **settings):
        from acker.connectors.nats import JetStream

        return JetStream(
            self.url, **{"stream": self.stream, "durable": "kit", "lease_secs": self.lease_secs, **settings}
        )

    def publish(self, values, headers=None):
        async def publish(context):
            for value in values:
                await context.publish(self.stream, value, headers=dict(headers or {}) or None)

        self.run(publish)

    def left(self):
        import nats.js.errors

        async def count(context):
            try:
                info = await context.consumer_info(self.stream, "kit")
            except nats.js.errors.NotFoundError:
                return (await context.stream_info(self.stream)).state.messages
            return info.num_pending + info.num_ack_pending

        return self.run(count)

    def mistakes(self):
        return [self.source(stream="no-such-stream")]

    def publisher(self, subject=None):
        from acker.connectors.nats import JetStreamPublisher

        return JetStreamPublisher(self.url, subject=subject or self.stream, answer_secs=CONFIRM_SECS)

    def publisher_to_nowhere(self):
        return self.publisher("no.such.subject")


class KafkaHarness(ServerHarness):
    """A topic of one partition. Its own port of the server tells clients the address of the proxy."""

    is_log = True
    counts_attempts = False
    takes_over_secs = 15.0
    # The client connects by itself; what is open stays open.
    is_stateless = True
    many = 500

    def __init__(self, server):
        from tests.connectors.kafka_kit import Cluster

        self.server = server
        self.cluster = Cluster(server.url)
        self.name = self.cluster.topic(max_message_bytes="2000000")
        self.proxy = Proxy(server.facts["proxied_port"], own_port=server.facts["proxy_port"])
        self.url = f"127.0.0.1:{self.proxy.port}"

    def close(self):
        self.proxy.close()
        self.cluster.delete(self.name)

    def source(self, topics=None, **settings):
        from acker.connectors.kafka import Kafka

        config = {
            "bootstrap.servers": self.url,
            "group.id": self.name,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "max.poll.interval.ms": 6000,
            "heartbeat.interval.ms": 200,
            "reconnect.backoff.max.ms": 500,
            "message.max.bytes": 2_000_000,
        }
        return Kafka(config | settings, topics or self.name, commit_secs=0.05, rebalance_secs=0.5, connect_secs=5.0)

    def publish(self, values, headers=None):
        self.cluster.write(self.name, values, headers=list((headers or {}).items()))

    def left(self):
        return self.cluster.ends(self.name)[1] - max(0, self.cluster.committed(self.name, self.name))

    def rebalance(self):
        # Another member joins the group, which revokes all partitions with the default assignors, and leaves it.
        from confluent_kafka import Consumer

        from tests.connectors.kafka_kit import Quiet, wait_for

        joined = []
        config = {"bootstrap.servers": self.server.url, "group.id": self.name, "enable.auto.commit": False}
        member = Consumer({**config, "logger": Quiet()})
        member.subscribe([self.name], on_assign=lambda _, partitions: joined.append(partitions))
        wait_for(lambda: joined, lambda: member.poll(0.1), "an assignment")
        member.close()

    def mistakes(self):
        sasl = {
            "bootstrap.servers": f"127.0.0.1:{self.server.facts['sasl_port']}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "wrong",
        }
        return [self.source("no-such-topic"), self.source(**sasl)]

    def publisher(self, topic=None, **settings):
        from acker.connectors.kafka import KafkaPublisher

        config = {"bootstrap.servers": self.url, "message.max.bytes": 2_000_000}
        limits = {"timeout_secs": CONFIRM_SECS, "connect_secs": CONFIRM_SECS}
        return KafkaPublisher(config | settings, topic or self.name, **limits)

    def publisher_to_nowhere(self):
        settings = {"allow.auto.create.topics": False, "topic.metadata.propagation.max.ms": 100}
        return self.publisher("no-such-topic", **settings)
