"""A message that ends its process, on real servers: it becomes a dead letter, and takes no other message with it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
import uuid

import pika
import pytest

from tests.connectors.harnesses import JetStreamHarness, PostgreSQLHarness, RedisHarness, SQSHarness

POISON = b"17"
VALUES = [b"%d" % number for number in range(40)]
DELIVERIES_MAX = 4
LEASE_SECS = 3.0
LONG = 600.0

PROGRAM = """
import os, signal, sys
from acker.connectors import Consumer, DeadLetterFile, {module}
source = {source}
options = {{"deliveries_max": {deliveries_max}, "dead_letters": DeadLetterFile({letters!r})}}
with open({done!r}, "ab", buffering=0) as done, Consumer(source, drain_secs=5, **options) as consumer:
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    for message in consumer:
        with message:
            if message.value == {poison!r}:
                os.kill(os.getpid(), signal.SIGKILL)
            done.write(message.value + b"\\n")
"""


def run_until_settled(source, folder, lease_secs=0.0):
    """Run the program again and again, until each message is done, or the one dead letter.

    Each run begins when the leases of the one before are over. Else the broker sends new messages first, and then many
    suspects at once: if chance hands out the poison first each time, the others are delivered too often with it.
    """
    letters, done = folder / "letters.jsonl", folder / "done"
    files = {"letters": str(letters), "done": str(done)}
    code = PROGRAM.format(
        module=source.partition(".")[0], source=source, deliveries_max=DELIVERIES_MAX, poison=POISON, **files
    )
    values_of = {letters: lambda line: json.loads(line)["value"].encode(), done: lambda line: line}

    def settled(path):
        return [values_of[path](line) for line in path.read_bytes().splitlines()] if path.exists() else []

    deadline = time.monotonic() + LONG
    runs, logs = 0, []
    while {*settled(letters), *settled(done)} < set(VALUES):
        if runs:
            time.sleep(lease_secs)
        runs += 1
        program = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        while program.poll() is None and {*settled(letters), *settled(done)} < set(VALUES):
            if time.monotonic() > deadline:
                program.kill()
                pytest.fail(f"after {runs} runs: {settled(letters)}, {settled(done)}, {program.communicate()[1]}")
            time.sleep(0.02)
        program.send_signal(signal.SIGTERM)
        logs.append(program.communicate()[1])
        assert program.returncode in {0, -signal.SIGKILL, -signal.SIGTERM}, logs
    assert runs == DELIVERIES_MAX + 1 and settled(letters) == [POISON], (runs, settled(letters), logs)


REDIS = f"redis_streams.RedisStreams({{url!r}}, stream={{name!r}}, group='kit', lease_secs={LEASE_SECS})"
POSTGRESQL = f"postgresql.PostgreSQL({{url!r}}, table={{table!r}}, lease_secs={LEASE_SECS}, poll_secs=0.05)"
NATS = f"nats.JetStream({{url!r}}, stream={{stream!r}}, durable='kit', lease_secs={LEASE_SECS})"
SQS = f"sqs.SQS({{queue_url!r}}, lease_secs={LEASE_SECS}, **{{options!r}})"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "kind", "source"),
    [
        ("redis", RedisHarness, REDIS),
        ("postgresql", PostgreSQLHarness, POSTGRESQL),
        ("nats", JetStreamHarness, NATS),
        ("sqs", SQSHarness, SQS),
    ],
    ids=["redis", "postgresql", "nats", "sqs"],
)
def test_what_ends_its_process_takes_no_other_message_with_it(server, kind, source, request, tmp_path):
    with contextlib.closing(kind(request.getfixturevalue(server))) as harness:
        harness.publish(VALUES)
        options = harness._options(harness.url) if kind is SQSHarness else {}
        source = source.format(**{**vars(harness), "options": options})
        run_until_settled(source, tmp_path, LEASE_SECS)


def test_what_ends_its_process_takes_no_other_message_of_a_quorum_queue_with_it(rabbitmq, tmp_path):
    queue = f"poison-{uuid.uuid4().hex}"
    declare = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, **declare)
        for value in VALUES:
            channel.basic_publish("", queue, value, pika.BasicProperties(delivery_mode=2))
    source = f"rabbitmq.RabbitMQ({rabbitmq.url!r}, {queue!r}, declare='quorum')"
    run_until_settled(source, tmp_path)
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        connection.channel().queue_delete(queue)
