"""A program that counts words of a broker on Spark, and may kill itself at a named moment.

    python -m tests.spark.topologies.broker_words '{"broker": "redis", "url": ..., "name": ..., ...}'

The settings, as JSON: `broker`, `url` and `name` of the queue, stream or topic; `spout`, "SourceSpout",
"JournaledSourceSpout", or "ArrowSourceSpout", whose words bolts count and publish in columns; `folder` for checkpoint,
dead letters and markers; `jars` for Spark; `words` and `letters`: it stops when the state has so many words and there
are so many dead letters; `kill`: "planned", "acked" or "committed".
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from acker.connectors import (
    ArrowPublishBolt,
    ArrowSourceSpout,
    DeadLetterFile,
    JournaledSourceSpout,
    Outgoing,
    SourceSpout,
)
from acker.connectors.rabbitmq import RabbitMQ, RabbitMQPublisher
from acker.connectors.redis_streams import RedisStreams, RedisStreamsPublisher
from acker.spark import KafkaSpout, run
from acker.spark.topologies.micro_batches import MicroBatches
from acker.topology import ArrowBolt, Grouping, StatefulBolt, Topology
from tests.torture.topology_kills.account import counts_in

SPOUTS = {each.__name__: each for each in (SourceSpout, JournaledSourceSpout, ArrowSourceSpout)}
ATTEMPTS_MAX = 3


class Count(StatefulBolt):
    """Counts words; refuses those that begin with "bad" always, and those that begin with "shy" once."""

    outputs = ["value", "n"]

    def initialize(self, conf, context):
        self.markers = Path(conf["user.markers"])

    def process(self, tup):
        self.count(bytes(tup.value).decode())

    def count(self, word):
        self.state[word] = self.state.get(word, 0) + 1
        if word.startswith("bad"):
            raise LookupError("no lamp")
        if word.startswith("shy"):
            try:
                (self.markers / word).touch(exist_ok=False)
            except FileExistsError:
                return
            raise LookupError("not yet")


class CountRows(ArrowBolt, Count):
    """Counts the words of batches, and passes on those that it does not refuse."""

    outputs = {"value": pa.binary()}

    def process_rows(self, batch):
        refused = {}
        for row, word in enumerate(batch["value"].to_pylist()):
            try:
                self.count(word.decode())
            except LookupError as error:
                refused[row] = error
        self.fail_rows(list(refused), list(refused.values()))
        good = [row for row in range(batch.num_rows) if row not in refused]
        self.emit_batch({"value": batch["value"].take(good)}, parents=good)


class KafkaWords(KafkaSpout):
    """Its dead letters become lines of a file."""

    attempts_max = ATTEMPTS_MAX
    backoff_secs = 0.05

    def initialize(self, conf, context):
        self.letters = DeadLetterFile(conf["user.letters"])

    def dead_letter(self, tup_id, values, reason):
        with self.letters as letters:
            headers = {"acker-key": tup_id, "acker-attempts": reason.attempt, "acker-reason": str(reason)}
            assert letters.publish([Outgoing(values[0], headers=headers)]) == [None]


def spout_of(settings, letters):
    """Return the spout over the broker."""
    url, name = settings["url"], settings["name"]
    if settings["broker"] == "kafka":
        options = {"kafka.bootstrap.servers": url, "subscribe": name, "maxOffsetsPerTrigger": "40"}
        return KafkaWords.spec(options=options, config={"user.letters": letters})
    if settings["broker"] == "redis":
        source = lambda: RedisStreams(url, stream=name, group="words", lease_secs=6)  # noqa: E731
    else:
        source = lambda: RabbitMQ(url, name)  # noqa: E731
    return SPOUTS[settings["spout"]].spec(
        source=source,
        open_max=40,
        attempts_max=ATTEMPTS_MAX,
        backoff_secs=0.05,
        dead_letters=lambda: DeadLetterFile(letters),
    )


def publisher_of(settings):
    """Return what makes a publisher to a second queue of the broker."""
    url, name = settings["url"], settings["name"] + "-counted"
    if settings["broker"] == "redis":
        return lambda: RedisStreamsPublisher(url, stream=name)
    return lambda: RabbitMQPublisher(url, routing_key=name, declare={"durable": True})


def topology_of(settings, letters, markers):
    """Return the topology, in rows or in columns."""
    spout = spout_of(settings, letters)
    config = {"user.markers": markers}

    class Words(Topology):
        words = spout
        count = Count.spec(inputs={words: Grouping.fields("value")}, par=2, config=config)

    class WordsInColumns(Topology):
        words = spout
        count = CountRows.spec(inputs={words: Grouping.fields("value")}, par=2, config=config)
        publish = ArrowPublishBolt.spec(inputs=[count], publisher=publisher_of(settings))

    return WordsInColumns if settings.get("spout") == "ArrowSourceSpout" else Words


def kill_at(moment):
    """Let this process kill itself in its first micro-batch with tuples."""

    def die(batches, *arguments):
        if moment == "acked":  # when the broker has all acks of what is in the journal
            (task,) = batches._executors.spout_tasks()
            store, io_thread = task.spout._message_store, task.spout._io_thread
            while store.of({"done"}):
                time.sleep(0.01)
            polls = io_thread.polls
            while io_thread.polls < polls + 2:
                io_thread.wake()
                time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(MicroBatches, "_deliver" if moment == "committed" else "_evaluate", die)


def stop_when_done(settings, checkpoint, letters):
    """Stop this process in order when all is there."""
    while True:
        given_up = len(letters.read_text().splitlines()) if letters.exists() else 0
        if counts_in(checkpoint).total() >= settings["words"] and given_up >= settings["letters"]:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(0.05)


def main(settings):
    """Count until all is done, or until the kill."""
    folder = Path(settings["folder"])
    checkpoint, letters, markers = folder / "checkpoint", folder / "letters", folder / "markers"
    markers.mkdir(exist_ok=True)
    topology = topology_of(settings, str(letters), str(markers))
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name in ("spark.sql.shuffle.partitions", "spark.default.parallelism"):
        builder = builder.config(name, "2")
    spark = builder.config("spark.jars", settings.get("jars", "")).getOrCreate()
    if settings.get("kill"):
        kill_at(settings["kill"])
    threading.Thread(target=stop_when_done, args=(settings, checkpoint, letters), daemon=True).start()
    run(topology, spark=spark, checkpoint=str(checkpoint), trigger="0 seconds")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
