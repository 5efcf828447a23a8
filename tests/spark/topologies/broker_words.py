"""A program that counts words of a broker on Spark, and may kill itself at a named moment.

    python -m tests.spark.topologies.broker_words '{"broker": "redis", "url": ..., "name": ..., ...}'

The settings, as JSON: `broker`, `url` and `name` of the queue, stream or topic; `spout`, "SourceSpout" or
"JournaledSourceSpout"; `folder` for checkpoint, dead letters and markers; `jars` for Spark; `words` and `letters`: it
stops when the state has so many words and there are so many dead letters; `kill`: "planned", "acked" or "committed";
`batch`: run a batch job.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from acker.connectors import DeadLetterFile, JournaledSourceSpout, Outgoing, SourceSpout
from acker.connectors.rabbitmq import RabbitMQ
from acker.connectors.redis_streams import RedisStreams
from acker.spark import KafkaSpout, run
from acker.spark.topologies.micro_batches import MicroBatches
from acker.topology import Grouping, StatefulBolt, Topology
from tests.torture.topology_kills.account import counts_in

SPOUTS = {"SourceSpout": SourceSpout, "JournaledSourceSpout": JournaledSourceSpout}
ATTEMPTS_MAX = 3


class Count(StatefulBolt):
    """Counts words; refuses those that begin with "bad" always, and those that begin with "shy" once."""

    outputs = ["value", "n"]

    def initialize(self, conf, context):
        self.markers = Path(conf["user.markers"])

    def process(self, tup):
        word = bytes(tup.value).decode()
        self.state[word] = self.state.get(word, 0) + 1
        if word.startswith("bad"):
            raise LookupError("no lamp")
        if word.startswith("shy"):
            try:
                (self.markers / word).touch(exist_ok=False)
            except FileExistsError:
                return
            raise LookupError("not yet")


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

    class Words(Topology):
        words = spout_of(settings, str(letters))
        count = Count.spec(inputs={words: Grouping.fields("value")}, par=2, config={"user.markers": str(markers)})

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name in ("spark.sql.shuffle.partitions", "spark.default.parallelism"):
        builder = builder.config(name, "2")
    spark = builder.config("spark.jars", settings.get("jars", "")).getOrCreate()
    if settings.get("kill"):
        kill_at(settings["kill"])
    if settings.get("batch"):
        report = run(Words, spark=spark)
    else:
        threading.Thread(target=stop_when_done, args=(settings, checkpoint, letters), daemon=True).start()
        report = run(Words, spark=spark, checkpoint=str(checkpoint), trigger="0 seconds")
    (folder / "report").write_text(json.dumps({"acked": report.stats.totals.acked}))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
