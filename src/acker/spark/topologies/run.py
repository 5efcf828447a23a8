"""The `run` function: a whole run of a topology on Spark, as a batch job or as Structured Streaming."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from acker.errors import ArgumentValueError, CheckpointError, SessionError
from acker.local.hooks import Hook
from acker.local.run import stop_on_signals
from acker.local.until import parse_until
from acker.observe.run_report import RunReport
from acker.spark.session_checks import is_classic
from acker.spark.topologies.frames import FrameRows
from acker.spark.topologies.spark_runtime import SparkRuntime
from acker.topology.definition import Topology
from acker.topology.graph import Graph
from acker.ui.options import PageChoice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_TRIGGER: Final = "1 second"
_LOOK_SECS: Final = 0.1
# Not one: Spark may put parts of one partition each into one partition, and then the clock would seem to be alone.
_CLOCK_PARTITIONS: Final = 2

logger = logging.getLogger("acker.spark")


def run(
    topology: type[Topology] | Graph,
    conf: Mapping[str, Any] | None = None,
    *,
    spark: SparkSession | None = None,
    until: str | int | None = "drained",
    checkpoint: str | None = None,
    trigger: str | None = None,
    hooks: Sequence[Hook] = (),
    environment: str | None = None,
    state: str | os.PathLike[str] | bytes | None = None,
    ui: PageChoice = None,
) -> RunReport:
    """Run a topology on Spark until a condition holds or it is stopped; return its report.

    Parameters
    ----------
    topology : Topology class or Graph
    conf : mapping, optional
        Options that override the topology's.
    spark : SparkSession, optional
        By default the active session, or a new one.
    until : str, int or None
        As for `acker.local.run`, for batch jobs and streams alike.
    checkpoint : str, optional
        A directory, on storage that all workers see. The topology then runs as Structured Streaming, and continues
        where the last run with this directory has stopped. Without it the topology is a batch job.
    trigger : str, optional
        How often a micro-batch of the stream begins, as Spark writes durations; by default "1 second".
    hooks, environment, state, ui
        As for `acker.local.LocalRuntime`. Hooks see the spouts; a bolt adds its own with `add_task_hook`. A file of
        states lies with the driver, and a topology may move from one process to Spark with it; a checkpoint that has
        states of its own goes before the file. The live page is on the driver.

    Returns
    -------
    RunReport

    Raises
    ------
    TopologyError
        The definition or the conf is wrong, or the topology cannot run on Spark; nothing was started.
    SessionError
        The session is one of Spark Connect.
    Exception
        The one with which the topology stopped.

    Notes
    -----
    On the main thread, the first Ctrl-C (or SIGTERM) stops in order; a second one stops at once.
    """
    parse_until(until)
    if trigger is not None and checkpoint is None:
        raise ArgumentValueError(f"trigger: {trigger!r} is for a stream, which needs checkpoint=")
    session = _session(spark)
    options: dict[str, Any] = {"hooks": hooks, "environment": environment, "state": state, "ui": ui}
    runtime = SparkRuntime(topology, conf, session, checkpoint=checkpoint, **options)
    with ExitStack() as ends:
        ends.callback(runtime.release)
        ends.enter_context(stop_on_signals(runtime))
        ends.callback(runtime.cancel_jobs)
        ends.callback(runtime.stop)
        run_until(runtime, until, checkpoint, trigger)
    if runtime.error is not None:
        raise runtime.error
    return runtime.report()


def run_until(runtime: SparkRuntime, until: str | int | None, checkpoint: str | None, trigger: str | None) -> None:
    """Start a runtime, and wait until a condition holds or it has ended; the parameters are those of `run`."""
    if checkpoint is not None:
        trigger = trigger or _TRIGGER
        _check_trigger(runtime.spark, trigger)
        _run_stream(runtime, checkpoint, trigger, until)
        return
    runtime.watch_for(until)
    runtime.start()
    runtime.start_batches()
    runtime.run_until(until)


def _session(spark: SparkSession | None) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.builder.getOrCreate() if spark is None else spark
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise SessionError(
            "spark: Spark did not start; its words are above. Without a JDK, 17 or newer, install one, or set JAVA_HOME"
            " to it; `acker doctor` looks for one"
        ) from error
    check_session(session)
    context = session.sparkContext
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # By default workers run the first python3 of PATH, which need not be the one of this program's environment.
        context.pythonExec = sys.executable
    return session


def check_session(session: SparkSession) -> None:
    """Check that a session can run topologies.

    Raises
    ------
    SessionError
        It is one of Spark Connect.
    """
    if not is_classic(session):
        raise SessionError(
            "spark: topologies need a session on the driver, and this is one of Spark Connect; run the program with"
            " spark-submit"
        )


def _check_trigger(session: SparkSession, trigger: str) -> None:
    """Refuse what Spark does not read as a duration."""
    from pyspark.errors import IllegalArgumentException

    clock = session.readStream.format("rate-micro-batch").options(rowsPerBatch=1).load()
    try:
        clock.writeStream.trigger(processingTime=trigger)
    except IllegalArgumentException:
        raise ArgumentValueError(
            f'trigger: expected a duration as Spark writes them, such as "5 seconds", got {trigger!r}'
        ) from None


def _run_stream(runtime: SparkRuntime, checkpoint: str, trigger: str, until: str | int | None) -> None:
    """Run until the condition holds, the runtime is stopped, or the query fails."""
    parsed = runtime.watch_for(until)
    runtime.start()
    runtime.raise_error()
    query = _start_query(runtime, checkpoint, trigger)
    lifecycle = runtime.lifecycle

    def goes_on() -> bool:
        return runtime.batches.lost is None and _is_active(query, runtime)

    try:
        while goes_on() and not lifecycle.reached.is_set() and not lifecycle.over.is_set():
            lifecycle.reached.wait(_LOOK_SECS)
        if lifecycle.reached.is_set():
            lifecycle.note_outcome(parsed)
        lifecycle.stop()
        # Open trees end by micro-batches, as long as the query makes any.
        while goes_on() and not lifecycle.over.wait(_LOOK_SECS):
            pass
        if not goes_on():
            runtime.abort()
            error = _error_of(query, runtime)
            if error is not None:
                lifecycle.fail(error)
                raise error
            logger.error("%s: the query was stopped, by something else than this run", runtime.graph.name)
        runtime.stop()
    finally:
        runtime.cancel_jobs()
        if not runtime.batches.jvm.is_over:
            query.stop()


def _is_active(query: StreamingQuery, runtime: SparkRuntime) -> bool:
    try:
        return bool(query.isActive)
    except Exception as error:
        if runtime.batches.jvm.has_died(error):
            return False
        raise


def _error_of(query: StreamingQuery, runtime: SparkRuntime) -> BaseException | None:
    """Return why the query has ended."""
    batches = runtime.batches
    if not batches.jvm.has_died():
        return batches.error or batches.lost or query.exception()
    runtime.cancel_jobs()  # its micro-batch ends at once, and says how
    return batches.error or batches.jvm.death(batches.next_load, runtime.executors.spark.batch_bytes)


def _start_query(runtime: SparkRuntime, checkpoint: str, trigger: str) -> StreamingQuery:
    frames = runtime.read_frames()
    streams = {name: rows for name, rows in frames.items() if rows.frame.isStreaming}
    fixed = {name: rows for name, rows in frames.items() if name not in streams}

    def run_batch(frame: DataFrame, batch: int) -> None:
        if streams and batch < runtime.batches.last:
            raise CheckpointError(
                f"{checkpoint}: Spark begins again at micro-batch {batch}, and the journal has micro-batch"
                f" {runtime.batches.last}, so rows would be left out: is {checkpoint}/query gone? Begin with a new"
                " checkpoint"
            )
        parts = _parts_of(frame, streams)
        if batch == 0:
            parts.update(fixed)
        runtime.run_batch(batch, parts)
        if not streams:
            runtime.end_frames()

    source = _source(runtime.spark, streams)
    return (
        source.writeStream.queryName(runtime.graph.name)
        .foreachBatch(run_batch)
        .option("checkpointLocation", f"{checkpoint}/query")
        .trigger(processingTime=trigger)
        .start()
    )


def _source(spark: SparkSession, streams: Mapping[str, FrameRows]) -> DataFrame:
    """Return the rows of all streaming spouts, each in a column of its own, and a clock.

    Without the clock there is no micro-batch while nothing new comes, and replays and ticks would wait for it.
    """
    from pyspark.sql import functions as F  # noqa: N812

    options = {"rowsPerBatch": 1, "numPartitions": _CLOCK_PARTITIONS}
    clock = spark.readStream.format("rate-micro-batch").options(**options).load()
    parts = [clock.select(F.lit(None).cast("string").alias("spout"))]
    parts += [
        rows.frame.select(F.lit(name).alias("spout"), F.struct("*").alias(f"rows{index}"))
        for index, (name, rows) in enumerate(streams.items())
    ]
    return functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _parts_of(frame: DataFrame, streams: Mapping[str, FrameRows]) -> dict[str, FrameRows]:
    """Return the rows of each streaming spout; none if there are no partitions but those of the clock."""
    from pyspark.sql import functions as F  # noqa: N812

    partitions: int = frame._jdf.queryExecution().toRdd().getNumPartitions()
    if partitions == _CLOCK_PARTITIONS:
        return {}
    if partitions == _CLOCK_PARTITIONS + 1:
        # All rows are in one partition. The clock's would each take a Python worker for nothing.
        frame = frame.coalesce(1)
    return {
        name: FrameRows(frame.where(F.col("spout") == name).select(f"rows{index}.*"), rows.message_id, rows.width)
        for index, (name, rows) in enumerate(streams.items())
    }
