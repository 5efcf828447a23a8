"""The recipe for Kafka of docs/spark-sinks.md: a micro-batch that is written twice is there once."""

import contextlib
import re
import uuid

import pytest

from acker import Completions, Outcome
from blocks import ROOT
from tests.connectors.kafka_kit import Cluster
from tests.connectors.running_page import programs_of, run

(BLOCK,) = programs_of("spark-sinks.md", "tests/spark/test_sinks_page.py")


def ended(*messages, outcome=Outcome.ACKED):
    return Completions.from_rows([(100 + message, message, 0, outcome, 5) for message in messages])


def read(url, topic):
    """Return what a reader of committed messages sees: (key, value, batch id).

    A server confirms a commit before its markers are in the topic, and readers come to the end before them.
    """
    from confluent_kafka import Consumer, TopicPartition

    config = {"bootstrap.servers": url, "group.id": uuid.uuid4().hex, "enable.partition.eof": True}
    with contextlib.closing(Consumer({**config, "isolation.level": "read_uncommitted"})) as looker:
        _, end = looker.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while True:
        message = consumer.poll(60)
        assert message is not None, f"the transactions up to {end} do not end; {found}"
        if not message.error():
            found.append((message.key(), message.value(), dict(message.headers())["batch-id"]))
        elif message.offset() >= end:
            consumer.close()
            return found


@pytest.fixture
def start(kafka):
    """Start a driver with the sink of the page; several of them have one query and one topic."""
    names = run(BLOCK, {"localhost:9092": kafka.url})
    topic, query = Cluster(kafka.url).topic(), uuid.uuid4().hex
    return lambda: names["kafka_sink"](topic, query), lambda: read(kafka.url, topic)


def test_kafka_has_a_micro_batch_once_that_ran_twice(start):
    begin, written = start
    first = begin()
    first(ended(1, 2), 0)
    first(ended(1, 2), 0)
    again = begin()
    again(ended(2, 1), 0)
    again(ended(3, outcome=Outcome.FAILED), 4)
    begin()(ended(3, outcome=Outcome.FAILED), 4)
    expected = [(b"1", b"ACKED", b"0"), (b"2", b"ACKED", b"0"), (b"3", b"FAILED", b"4")]
    assert written() == expected


def test_kafka_has_nothing_of_a_transaction_that_its_driver_left(start):
    begin, written = start
    old = begin()
    with pytest.raises(ValueError, match="77 is not a valid Outcome"):
        old(Completions.concat([ended(1), ended(2, outcome=77)]), 0)
    new = begin()
    new(ended(1, 2), 0)
    assert written() == [(b"1", b"ACKED", b"0"), (b"2", b"ACKED", b"0")]
    with pytest.raises(Exception, match=r"(?i)fenced|state"):
        old(ended(5), 1)
    new(ended(5), 1)
    assert [key for key, _, _ in written()] == [b"1", b"2", b"5"]


def test_the_other_recipes_run_on_the_release_that_their_jars_are_for():
    """They are not run here: `make spark-versions` has a Spark of that release."""
    blocks = programs_of("spark-sinks.md", "tests/spark/table_sinks.py")
    text = "\n".join(block.body for block in blocks)
    compile(text, "spark-sinks.md", "exec")
    assert set(re.findall(r"_(\d+\.\d+)_2\.13:", text)) == {"4.1"}
    program = (ROOT / "scripts/spark_versions.py").read_text(encoding="utf-8")
    assert '"4.1": ("table_sinks.py",)' in program
