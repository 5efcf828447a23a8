"""Completions of a real stream in a user's function, and what a crash between the two makes of it."""

import contextlib
import json
import os
import signal
import sqlite3
import sys
import threading
import traceback

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

from acker import COMPLETION_SCHEMA, Outcome
from acker.errors import ArgumentTypeError, ColumnValueError
from acker.offsets import OffsetTracker, pack, unpack
from acker.spark import for_each_completion

# The workers cannot import the tests; functions of this module travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.spark

SCHEMA = "root_id long, message_id long, task_id int, outcome byte, elapsed_ms long"


class Stream:
    """A folder of completions, one micro-batch a file, and a query on it that can be started again."""

    def __init__(self, spark, folder):
        self._spark, self._files, self.checkpoint = spark, folder / "files", folder / "checkpoint"
        self._files.mkdir()
        self._written = 0

    def write(self, rows):
        table = pa.Table.from_pylist([dict(zip(COMPLETION_SCHEMA.names, row, strict=True)) for row in rows])
        path = self._files / f"{self._written:03d}.parquet"
        pq.write_table(table.cast(COMPLETION_SCHEMA), path)
        os.utime(path, (self._written, self._written))  # the order in which they are taken
        self._written += 1

    def start(self, function, through):
        frame = self._spark.readStream.schema(SCHEMA).parquet(str(self._files)).mapInArrow(through, SCHEMA)
        writer = frame.writeStream.foreachBatch(function)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def run(self, function, where="true"):
        frame = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self._files))
        writer = frame.where(where).withColumn("more", frame.root_id + 1).writeStream.foreachBatch(function)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()


@pytest.fixture
def stream(spark, tmp_path):
    return Stream(spark, tmp_path)


def rows_of(number, size=3):
    return [(100 * number + i, i - 1, i, i % 4, 7 * i) for i in range(size)]


def test_each_micro_batch_arrives_once_with_its_id(stream):
    for number in range(3):
        stream.write(rows_of(number))
    seen = []
    stream.run(for_each_completion(lambda done, batch_id: seen.append((batch_id, done))))
    assert [(batch_id, sorted(done.rows())) for batch_id, done in seen] == [(i, rows_of(i)) for i in range(3)]
    done = seen[0][1]
    dtypes = [getattr(done, name).dtype for name in COMPLETION_SCHEMA.names]
    assert dtypes == [np.int64, np.int64, np.int32, np.int8, np.int64]
    assert all(getattr(done, name).flags.owndata for name in COMPLETION_SCHEMA.names)


def test_the_function_may_run_in_another_process(stream, tmp_path):
    """As with Spark Connect, where it runs beside the server: what it does shows outside of the process alone."""
    stream.write(rows_of(0))
    kept = tmp_path / "kept"

    def keep(done, batch_id):
        kept.write_text(json.dumps([batch_id, sorted(done.message_id.tolist())]))

    stream.run(for_each_completion(keep))
    assert json.loads(kept.read_text()) == [0, [-1, 0, 1]]


@pytest.mark.parametrize(("options", "called"), [({}, [1]), ({"empty": True}, [0, 1])])
def test_nothing_is_called_without_completions_unless_asked(stream, options, called):
    stream.write(rows_of(0))
    stream.write(rows_of(1))
    seen = {}
    stream.run(for_each_completion(lambda done, batch_id: seen.update({batch_id: len(done)}), **options), "root_id > 9")
    assert seen == {batch_id: 3 * batch_id for batch_id in called}


def test_a_sink_gets_the_id_of_the_query_too(stream):
    seen = []

    class Sink:
        def write(self, done, batch_id, query_id):
            seen.append((sorted(done.rows()), batch_id, query_id))

    for number in range(2):
        stream.write(rows_of(number))
        stream.run(for_each_completion(Sink()), "root_id > 9")
    id_of_checkpoint = json.loads((stream.checkpoint / "metadata").read_text())["id"]
    assert seen == [(rows_of(1), 1, id_of_checkpoint)]


@pytest.fixture
def database():
    with contextlib.closing(sqlite3.connect(":memory:", check_same_thread=False)) as made:
        made.executescript("CREATE TABLE done (id INTEGER); CREATE TABLE progress (batch_id INTEGER)")
        yield made


def test_a_rerun_after_the_effect_is_told_by_the_batch_id(stream, database):
    """The recipe of the docstring: the effect and the batch id in one transaction."""
    crashes, seen = [1], []

    def settle(done, batch_id):
        seen.append((batch_id, sorted(done.rows())))
        with database:
            (last,) = database.execute("SELECT max(batch_id) FROM progress").fetchone()
            if last is None or batch_id > last:
                database.executemany("INSERT INTO done VALUES (?)", [(id_,) for id_ in done.root_id.tolist()])
                database.execute("INSERT INTO progress VALUES (?)", (batch_id,))
        if batch_id in crashes:
            crashes.remove(batch_id)
            raise OSError("the network is gone")

    for number in range(3):
        stream.write(rows_of(number))
    with pytest.raises(Exception, match="the network is gone"):
        stream.run(for_each_completion(settle))
    stream.run(for_each_completion(settle))
    assert seen == [(i, rows_of(i)) for i in (0, 1, 1, 2)]
    found = [id_ for (id_,) in database.execute("SELECT id FROM done ORDER BY id")]
    assert found == [row[0] for i in range(3) for row in rows_of(i)]


def test_a_tracker_of_offsets_goes_on_where_it_was(stream, tmp_path):
    """The commit position lies in one file with the batch id; it never passes an open message, nor goes back."""
    state, crashes = tmp_path / "state.json", [1]

    def settle(done, batch_id):
        kept = json.loads(state.read_text()) if state.exists() else {"batch_id": -1, "tracker": None}
        if batch_id > kept["batch_id"]:
            tracker = OffsetTracker.restore(kept["tracker"]) if kept["tracker"] else OffsetTracker()
            partitions, offsets = unpack(done.message_id)
            for partition in np.unique(partitions).tolist():
                if partition not in tracker.partitions:
                    tracker.assign(partition, 0)
                # No holes in this log: what lies below an offset that ended was emitted.
                following = tracker.committable(partition) + tracker.lag(partition)
                for offset in range(following, int(offsets[partitions == partition].max()) + 1):
                    tracker.emitted(partition, offset)
            tracker.apply(done)
            whole = {"batch_id": batch_id, "tracker": tracker.snapshot()}
            state.with_suffix(".new").write_text(json.dumps(whole))
            state.with_suffix(".new").replace(state)
            positions.append({p: tracker.committable(p) for p in tracker.partitions})
        if batch_id in crashes:
            crashes.remove(batch_id)
            raise OSError("the network is gone")

    positions = []
    ended = [
        [(0, 0, Outcome.ACKED), (0, 2, Outcome.ACKED), (3, 1, Outcome.ACKED)],
        [(0, 1, Outcome.TIMED_OUT), (3, 0, Outcome.ACKED)],
        [(0, 1, Outcome.ACKED), (0, 3, Outcome.FAILED)],
    ]
    for number, rows in enumerate(ended):
        stream.write([(10 * number + i, pack(p, offset), 0, how, 5) for i, (p, offset, how) in enumerate(rows)])
    with pytest.raises(Exception, match="the network is gone"):
        stream.run(for_each_completion(settle))
    stream.run(for_each_completion(settle))
    assert positions == [{0: 1, 3: 0}, {0: 1, 3: 2}, {0: 3, 3: 2}]


def test_a_stop_in_the_middle_of_a_micro_batch_is_no_error(spark, tmp_path):
    """Spark tells its own interruption by a regular expression, for which a stack trace is too long."""
    begun = tmp_path / "begun"
    os.mkfifo(begun)

    def stand_still(batches):
        with begun.open("w") as pipe:
            pipe.write("begun")
        threading.Event().wait()
        yield from batches

    texts = []

    def watched(frame, batch_id):
        try:
            for_each_completion(print)(frame, batch_id)
        except Exception:
            texts.append(traceback.format_exc())
            raise

    stream = Stream(spark, tmp_path)
    stream.write(rows_of(0))
    query = stream.start(watched, stand_still)
    assert begun.read_text() == "begun"
    query.stop()
    assert query.exception() is None
    prefix = "py4j.protocol.Py4JJavaError: An error occurred while calling"
    (rest,) = [text.partition(prefix)[2] for text in texts]
    # Spark's own expression, on a thread of the JVM: it raises where there is not stack enough.
    spark._jvm.java.util.regex.Pattern.compile(f"{prefix}((.|\\r\\n|\\r|\\n)*)(java.lang.NoException)").matcher(
        texts[0]
    ).find()
    assert "InterruptedException" in rest or ("cancelled" in rest and query.runId in rest)


def test_an_error_of_spark_comes_with_its_causes_and_without_its_stack_traces(spark, tmp_path):
    stream = Stream(spark, tmp_path)
    stream.write(rows_of(0))

    def die(batches):
        os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    with pytest.raises(StreamingQueryException) as caught:
        stream.start(for_each_completion(print), die).awaitTermination()
    text = str(caught.value).partition("py4j.protocol.Py4JJavaError: An error occurred while calling")[2]
    text = text.partition("=== Streaming Query ===")[0]
    assert "Caused by: java.io.EOFException" in text or "Python worker exited unexpectedly" in text
    assert len(text) < 1_000 and "\tat " not in text


def test_a_stream_of_something_else_is_refused(spark, stream):
    function = for_each_completion(lambda done, batch_id: None)
    with pytest.raises(ColumnValueError, match="message_id, task_id, outcome, elapsed_ms among them, got root_id"):
        function(spark.range(1).withColumnRenamed("id", "root_id"), 0)


def test_what_is_no_function_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"batch_fn: expected a function of .*, got NoneType"):
        for_each_completion(None)
