"""Completions in Kafka, on a real server: what readers of committed messages see of drivers that end in any way."""

from __future__ import annotations

import contextlib
import json
import pickle
import signal
import subprocess
import sys
import uuid
from types import SimpleNamespace

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException

from acker import Completions, Outcome
from acker.connectors.kafka import KafkaSink, sink
from acker.errors import ArgumentTypeError, ArgumentValueError, PublishError, SourceError
from blocks import ROOT
from tests.connectors.kafka_kit import Cluster
from tests.connectors.kafka_sink_kills import PATIENT, SIZE, STEPS, completions_of, write_all

RIGHT = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture(scope="module")
def cluster(kafka):
    with contextlib.closing(Cluster(kafka.url)) as cluster:
        yield cluster


class Query:
    """A query with a topic, and the sinks of its drivers."""

    def __init__(self, cluster):
        self.cluster, self.name, self.sinks = cluster, uuid.uuid4().hex, []
        self.topic = cluster.topic()

    def start(self, **config):
        """Return the function of a new driver that writes a micro-batch."""
        named = {name.replace("_", "."): value for name, value in config.items()}
        self.sinks.append(KafkaSink({"bootstrap.servers": self.cluster.url, **PATIENT, **named}, self.topic))
        return self.writer_of(self.sinks[-1])

    def writer_of(self, made, name=None):
        return lambda done, batch_id: made.write(done, batch_id, name or self.name)

    def read(self):
        """Return what a reader of committed messages sees: the message ids."""
        return [int(message.key()) for message in self.cluster.committed_messages(self.topic)]

    def close(self):
        for each in self.sinks:
            each.close()


@pytest.fixture
def query(cluster):
    with contextlib.closing(Query(cluster)) as query:
        yield query


def ended(*messages, outcome=Outcome.ACKED):
    return Completions.from_rows([(100 + message, message, 0, outcome, 5) for message in messages])


def test_a_micro_batch_that_runs_again_is_there_once(query, cluster):
    first = query.start()
    first(ended(1, 2), 0)
    first(ended(1, 2), 0)
    again = query.start()
    again(ended(2, 1), 0)
    again(ended(3, outcome=Outcome.FAILED), 4)
    query.start()(ended(3, outcome=Outcome.FAILED), 4)
    assert query.read() == [1, 2, 3]
    *_, last = cluster.committed_messages(query.topic)
    value = {"outcome": "FAILED", "task_id": 0, "root_id": 103, "elapsed_ms": 5}
    assert json.loads(last.value()) == value
    assert dict(last.headers()) == {"query": query.name.encode(), "batch-id": b"4"}


@pytest.mark.timeout(600)
def test_drivers_that_are_killed_at_each_step_of_a_transaction_leave_each_micro_batch_once(query, cluster):
    """Each driver begins with the micro-batch in which the one before was killed, as Spark does."""
    for first, step in enumerate(STEPS):
        # It is killed in the second transaction, which is that of the next micro-batch.
        command = [sys.executable, "-m", "tests.connectors.kafka_sink_kills", cluster.url, query.topic, query.name]
        command += [str(first), str(first + 1), step, "2"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, start_new_session=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
    write_all(query.start(), len(STEPS), len(STEPS) + 1)
    assert query.read() == list(range(SIZE * (len(STEPS) + 2)))


def test_a_driver_that_still_lives_is_locked_out_by_the_next_one(query):
    old = query.start()
    old(ended(1), 0)
    new = query.start()
    new(ended(1), 0)
    with pytest.raises(PublishError, match=r"micro-batch 1: .*_FENCED"):
        old(ended(2), 1)
    new(ended(2), 1)
    assert query.read() == [1, 2]


def test_an_error_leaves_nothing_and_the_same_sink_begins_anew(query):
    write = query.start()
    with pytest.raises(ValueError, match="77 is not a valid Outcome"):
        write(Completions.concat([ended(1), ended(2, outcome=77)]), 0)
    write(ended(3), 0)
    assert query.read() == [3]


@pytest.mark.parametrize("raises", [True, False])
def test_a_broker_that_does_not_know_its_groups_yet_is_asked_again(query, monkeypatch, raises):
    answers = ["COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"]

    class Starting(sink.Consumer):
        """Hears at first what brokers answer that have just started."""

        def committed(self, partitions, timeout):
            if not answers:
                return super().committed(partitions, timeout)
            error = KafkaError(getattr(KafkaError, answers.pop()))
            if raises:
                raise KafkaException(error)
            return [SimpleNamespace(error=error)]

    monkeypatch.setattr(sink, "Consumer", Starting)
    query.start()(ended(1), 0)
    assert not answers and query.read() == [1]


def explained(done, *reasons):
    """Return completions with reasons, as those of pipelines have them."""
    done = type("Explained", (Completions,), {})(*done.columns())
    done.component, done.reason = (np.array(each, object) for each in (["pack"] * len(done), reasons))
    return done


def test_completions_of_a_pipeline_have_reasons(query, cluster):
    done = explained(ended(1, outcome=Outcome.FAILED), "KeyError: 'größe'")
    done.message_id = np.array(["orders/3@17"], object)
    query.start()(done, 0)
    (message,) = cluster.committed_messages(query.topic)
    why = json.loads(message.value())
    assert message.key() == b"orders/3@17"
    assert (why["outcome"], why["component"], why["reason"]) == ("FAILED", "pack", "KeyError: 'größe'")


def test_a_message_that_the_broker_refuses_is_named_and_nothing_is_written(query, cluster):
    query.topic = cluster.topic(max_message_bytes=2000)
    with pytest.raises(PublishError, match=r"micro-batch 0: MSG_SIZE_TOO_LARGE: "):
        query.start()(explained(ended(1, 2), None, "9" * 3000), 0)
    query.start()(ended(3), 0)
    assert query.read() == [3]


def test_a_new_checkpoint_begins_at_0_and_is_not_skipped(query):
    query.start()(ended(1), 0)
    (made,) = query.sinks
    query.writer_of(made, "another")(ended(2), 0)
    query.writer_of(pickle.loads(pickle.dumps(made)), "another")(ended(2), 0)
    assert query.read() == [1, 2]


def test_more_completions_than_the_client_has_room_for(query):
    query.start(queue_buffering_max_messages=10)(ended(*range(500)), 0)
    assert query.read() == list(range(500))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["begin_transaction", "commit_transaction"])
def test_a_broker_that_is_killed_in_a_transaction_has_the_micro_batch_once(query, kafka, monkeypatch, name):
    class Killing(sink.Producer):
        """The client of a driver whose broker is killed once."""

        kills = [kafka]

    def call(self, *arguments):
        if self.kills:
            self.kills.pop().kill()
            kafka.start()
        return getattr(super(Killing, self), name)(*arguments)

    setattr(Killing, name, call)
    monkeypatch.setattr(sink, "Producer", Killing)
    write = query.start()
    for batch_id in range(3):
        for _ in range(5):  # Spark runs the micro-batch again, at the start that follows
            with contextlib.suppress(PublishError):
                write(completions_of(batch_id), batch_id)
                break
    assert not Killing.kills
    assert query.read() == list(range(SIZE * 3))


# A driver whose brokers are gone while it is in its first transaction; it waits for a line before it goes on.
DESERTED = """
import sys
from acker.connectors.kafka import KafkaSink, sink
from acker.errors import PublishError
from tests.connectors.kafka_sink_kills import PATIENT, completions_of

class Waiting(sink.Producer):
    def begin_transaction(self):
        print("begun", flush=True)
        sys.stdin.readline()
        super().begin_transaction()

sink.Producer, sink._ANSWER_SECS = Waiting, 1.0
url, topic, query = sys.argv[1:]
try:
    KafkaSink({"bootstrap.servers": url, **PATIENT}, topic).write(completions_of(1), 1, query)
except PublishError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_brokers_that_do_not_answer_to_offsets_end_the_write_in_time(query, kafka):
    """In a process of its own, since the client goes on waiting on its thread."""
    query.start()(completions_of(0), 0)
    command = [sys.executable, "-c", DESERTED, kafka.url, query.topic, query.name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout.readline() == "begun\n"
        kafka.kill()
        said = driver.communicate("go on\n")[0]
    kafka.start()
    assert "micro-batch 1: _TIMED_OUT: no answer to offsets in 1 s" in said
    write_all(query.start(), 1, 2)
    assert query.read() == list(range(SIZE * 3))


def test_an_unknown_topic_is_a_mistake(cluster):
    with (
        contextlib.closing(
            KafkaSink({"bootstrap.servers": cluster.url, "allow.auto.create.topics": False}, "no-such")
        ) as made,
        pytest.raises(SourceError, match="the brokers know no topic 'no-such'"),
    ):
        made.write(ended(1), 0, "q")


@pytest.mark.parametrize(
    ("config", "topic", "text"),
    [
        ({}, "t", "bootstrap.servers"),
        (RIGHT, "", "topic"),
        (RIGHT | {"transactional.id": "x"}, "t", "it of the query's id"),
    ],
)
def test_a_wrong_configuration_is_refused(config, topic, text):
    with pytest.raises(ArgumentValueError, match=text):
        KafkaSink(config, topic)
    with pytest.raises(ArgumentTypeError, match="dict"):
        KafkaSink("localhost", "t")


def test_a_query_without_an_id_needs_a_name():
    with pytest.raises(ArgumentValueError, match="calls write with a name for the query and its checkpoint"):
        KafkaSink(RIGHT, "t").write(ended(1), 0, "")
