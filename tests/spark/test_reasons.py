"""Why work failed, in the same words on each runtime: component, text of the exception, attempt."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from acker import Outcome
from acker.connectors import Consumer
from acker.local import Hook, LocalRuntime
from acker.observe.reasons import Reason, ReasonKind
from acker.spark import Replays, for_each_completion, spout
from acker.spark.session_checks import PROVIDER, PROVIDER_CONF
from acker.spark.streams.listener import shard_failures
from acker.spark.topologies.run import run_until
from acker.spark.topologies.spark_runtime import SparkRuntime
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource
from acker.topology import Bolt, ReliableSpout, Topology
from acker.ui import LivePage

# The workers cannot import the tests; functions of this module travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

FOLDER = "user.folder"
ATTEMPTS_MAX = 2
# Fails once; 0 never does.
ONCE = 7


class WordlessError(Exception):
    """An exception of a user that cannot say its text."""

    def __str__(self):
        raise AttributeError("no text")


FAULTS = {
    1: ValueError("no box for a sofa"),
    2: KeyError("lamp"),
    3: TimeoutError(),
    4: WordlessError(),
    5: ValueError("two\nlines of \N{BULLET} text"),
    6: OSError(28, "No space left on device"),
    ONCE: LookupError("not yet"),
}
TEXTS = {
    1: "ValueError: no box for a sofa",
    2: "KeyError: 'lamp'",
    3: "TimeoutError",
    4: "WordlessError: (no text: its __str__ raised AttributeError)",
    5: "ValueError: two\nlines of \N{BULLET} text",
    6: "OSError: [Errno 28] No space left on device",
    ONCE: "LookupError: not yet",
}
NUMBERS = range(len(FAULTS) + 1)


def work(number, folder):
    """Raise what belongs to a number, one of them the first time only."""
    if number == ONCE:
        try:
            Path(folder, "once").touch(exist_ok=False)
        except FileExistsError:
            return
    if number in FAULTS:
        raise FAULTS[number]


@dataclass
class Told:
    """What a runtime told.

    Attributes
    ----------
    failures : list of (message id, Reason)
        Sorted; of each attempt that failed.
    letters : dict of message id to Reason
        Of the last attempt of what was given up.
    """

    failures: list
    letters: dict

    @classmethod
    def of(cls, failures, letters):
        """Return what was told, without the tasks, whose numbers a runtime chooses."""
        plain = sorted(((key, replace(reason, task=None)) for key, reason in failures), key=str)
        return cls(plain, {key: replace(reason, task=None) for key, reason in letters})

    @classmethod
    def expected(cls, component):
        """Return what each runtime is to tell of a component; None where it knows none."""

        def reason(number, attempt):
            return Reason(ReasonKind.FAILED, component, None, TEXTS[number], attempt)

        attempts = {number: 1 if number == ONCE else ATTEMPTS_MAX for number in FAULTS}
        failures = [(key, reason(key, attempt)) for key, most in attempts.items() for attempt in range(1, most + 1)]
        return cls.of(failures, [(key, reason(key, ATTEMPTS_MAX)) for key in FAULTS if key != ONCE])


class Orders(ReliableSpout):
    """Emits the numbers."""

    outputs = ["number"]
    backoff_secs = 0.01
    attempts_max = ATTEMPTS_MAX

    def initialize(self, conf, context):
        self.todo = list(NUMBERS)

    def next_tuple(self):
        if not self.todo:
            self.finish()
            return
        number = self.todo.pop(0)
        self.emit([number], tup_id=number)


class OrderRows(Orders):
    """The numbers as rows, where Spark runs the topology."""

    tup_id_column = "number"

    def frame(self, spark, conf):
        return spark.range(len(NUMBERS)).withColumnRenamed("id", "number")


class Pack(Bolt):
    """Does the work."""

    def process(self, tup):
        work(tup.number, self.storm_conf[FOLDER])


def topology_of(spout):
    orders = spout.spec()
    return type("Packing", (Topology,), {"orders": orders, "pack": Pack.spec(inputs=[orders])})


class Heard(Hook):
    """Keeps what the spouts heard."""

    def __init__(self):
        self.failures = []

    def spout_fail(self, component, task, tup_id, reason):
        self.failures.append((tup_id, reason))


def run_topology(make, run, release=lambda runtime: None):
    """Run a topology with a live page and a hook, which have to agree; return what was told."""
    hook = Heard()
    runtime = make(hooks=[hook], ui=LivePage(serve=False))
    try:
        run(runtime)
    finally:
        runtime.stop()
        release(runtime)
    assert runtime.error is None
    log = runtime.live.failures
    seen = [(failure.tup_id, failure.reason) for failure in reversed(log.failures())]
    assert sorted(seen, key=str) == sorted(hook.failures, key=str)
    return Told.of(seen, [(letter.tup_id, letter.reason) for letter in log.dead_letters()])


def run_local(folder, spark):
    return run_topology(
        lambda **options: LocalRuntime(topology_of(Orders), {FOLDER: folder}, **options),
        lambda runtime: runtime.run("drained"),
    )


def run_spark(folder, spark, spout=Orders, checkpoint=None):
    return run_topology(
        lambda **options: SparkRuntime(topology_of(spout), {FOLDER: folder}, spark, checkpoint=checkpoint, **options),
        lambda runtime: run_until(runtime, "drained", checkpoint, None if checkpoint is None else "0 seconds"),
        SparkRuntime.release,
    )


def run_spark_rows(folder, spark):
    return run_spark(folder, spark, OrderRows)


def run_spark_stream(folder, spark):
    return run_spark(folder, spark, OrderRows, f"{folder}/checkpoint")


def run_consumer(folder, spark):
    broker, letters = MemoryBroker(), MemoryPublisher()
    broker.publish(b"%d" % number for number in NUMBERS)
    options = {"attempts_max": ATTEMPTS_MAX, "dead_letters": letters, "backoff_secs": 0.001, "ui": LivePage(port=0)}

    def wait():
        try:
            broker.wait_until(lambda broker: broker.left() == 0)
        finally:
            consumer.stop()

    with Consumer(MemorySource(broker), **options) as consumer:
        failures = consumer._store.failures
        waiting = threading.Thread(target=wait)
        waiting.start()
        for message in consumer:
            with message:
                work(int(message.value), folder)
        waiting.join()
    told = [(int(failure.tup_id.partition("/")[2]), failure.reason) for failure in reversed(failures.failures())]
    last = {str(reason): key for key, reason in told}
    by_key = dict(told)
    return Told.of(told, [(key := last[letter.headers["acker-reason"]], by_key[key]) for letter in letters.published])


def pipeline_of(frame, folder):
    """Return the same as a tracked pipeline."""

    def pack(row):
        work(number_in(row.number), folder)
        return [number_in(row.number)]

    orders = spout(frame, message_id="number", attempt="attempt", component="orders", run_seed=1)
    return orders.bolt(pack, schema="number long", sink=True)


def number_in(message_id):
    """Return the number in a message id, which may be a text."""
    return int(str(message_id).removeprefix("order "))


def told_by(rows):
    """Return rows of failures or of dead letters as reasons by their message."""
    return [
        (number_in(row["message_id"]), Reason(ReasonKind.FAILED, row["component"], None, row["reason"], row["attempt"]))
        for row in rows
    ]


def run_pipeline(folder, spark, ids="long"):
    first = [(f"order {number}" if ids == "string" else number, 1) for number in NUMBERS]
    rounds, failures, letters = [first], [], []
    replays = Replays(
        f"{folder}/ledger",
        attempts_max=ATTEMPTS_MAX,
        backoff_secs=0,
        message_id=ids,
        replay=lambda rows, _: rounds.append([(row["message_id"], row["attempt"]) for row in rows.to_pylist()]),
        dead_letter=lambda rows, _: letters.extend(rows.to_pylist()),
    )
    settle = for_each_completion(replays=replays)
    for number, rows in enumerate(rounds):
        part = pipeline_of(spark.createDataFrame(rows, f"number {ids}, attempt long"), folder).persist()
        failures += [row.asDict() for row in part.failures().collect()]
        settle(part.completions(include_pending=True), number)
        part.unpersist()
    assert all(json.loads(row["row"]) == {"number": row["message_id"], "attempt": row["attempt"]} for row in failures)
    return Told.of(told_by(failures), told_by(letters))


def run_pipeline_texts(folder, spark):
    return run_pipeline(folder, spark, "string")


def run_pipeline_stream(folder, spark):
    """Run it as a stream, with ids that are texts."""
    spark.conf.set(PROVIDER_CONF, PROVIDER)
    schema, failures, seen = "number string, attempt long", [], []
    spark.range(len(NUMBERS)).selectExpr("'order ' || id as number", "1L as attempt").write.parquet(f"{folder}/new")
    replays = Replays(
        f"{folder}/ledger",
        attempts_max=ATTEMPTS_MAX,
        backoff_secs=0,
        message_id="string",
        replay=f"{folder}/again",
        dead_letter=f"{folder}/dead",
    )
    new = spark.readStream.schema(schema).parquet(f"{folder}/new")
    again = spark.readStream.schema(replays.ddl).parquet(f"{folder}/again")
    rows = new.union(again.selectExpr("message_id as number", "cast(attempt as long) as attempt"))

    def keep(done, batch_id):
        missed = done.at(done.outcome != Outcome.ACKED)
        failures.extend(zip(missed.message_id.tolist(), missed.component, missed.reason, strict=True))

    done = pipeline_of(rows, folder).completions(timeout="1 hour")
    writer = done.writeStream.foreachBatch(for_each_completion(keep, replays=replays))
    for _ in range(ATTEMPTS_MAX):
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        seen += [each for progress in query.recentProgress for each in shard_failures(progress)]
    attempts, told = Counter(), []
    for message_id, component, reason in failures:
        number = number_in(message_id)
        attempts[number] += 1
        told.append((number, Reason(ReasonKind.FAILED, component, None, reason, attempts[number])))
    # What the live page shows.
    assert Counter(told_by(each._asdict() for each in seen)) == Counter(told)
    return Told.of(told, told_by(spark.read.parquet(f"{folder}/dead").toArrow().to_pylist()))


# Each with the component that it names.
RUNS = {
    "local": (run_local, "pack"),
    "spark": (run_spark, "pack"),
    "spark, rows of a DataFrame": (run_spark_rows, "pack"),
    "spark, a stream": (run_spark_stream, "pack"),
    "pipeline": (run_pipeline, "pack"),
    "pipeline, ids that are texts": (run_pipeline_texts, "pack"),
    "pipeline, a stream": (run_pipeline_stream, "pack"),
    "consumer": (run_consumer, None),
}


def test_an_error_of_spark_leaves_the_handlers_of_later_tests_as_they_are(spark, caplog):
    with pytest.raises(AnalysisException):
        spark.sql("SELECT no_such_column FROM range(1)").collect()
    found = logging.getLogger("SQLQueryContextLogger")
    formatter = caplog.handler.formatter
    assert isinstance(found, PySparkLogger)
    found.addHandler(caplog.handler)
    found.removeHandler(caplog.handler)
    assert formatter is not None and caplog.handler.formatter is formatter


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "pipeline, a stream" else []) for name in RUNS],
)
def test_each_runtime_tells_the_same_reasons(spark, tmp_path, name):
    run, component = RUNS[name]
    assert run(str(tmp_path), spark) == Told.expected(component)
