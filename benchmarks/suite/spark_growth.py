"""Benchmarks of what grows with a cluster on Spark: state partitions, tasks, and completions that reach the driver.

A cluster divides the work of partitions among its executors, so it is taken as processor time of all processes. What
the driver does alone is timed by the clock.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.suite.measure import Alternation, Case, Result, Scale, expect, wall_ns
from benchmarks.suite.spark import CORES, session, write_messages
from benchmarks.suite.streaming import (
    FILES,
    PARTITIONS_CONF,
    PROVIDER_CONF,
    SIDES,
    Query,
    Rounds,
    streaming_session,
)
from benchmarks.suite.workloads import SEED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

PARTITIONS: Final = (2, 8, 32)
MESSAGES: Final = 1_000
LOGGED_MESSAGES: Final = 100_000
LOGGED_OPEN: Final = 1_000_000
TASKS: Final = (8, 80, 800)
COMPLETIONS: Final = (10_000, 100_000, 1_000_000)

_PAIRS_MAX: Final = 5
_MICRO_BATCHES: Final = 8


def tree_cpu_ns() -> int:
    """Return the processor time of this process and of all that it started, those that have ended included (Linux)."""
    times, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = path.read_text().rpartition(")")[2].split()
            process = int(path.parent.name)
            parents[process], times[process] = int(fields[1]), sum(map(int, fields[11:15]))
    found, added = {os.getpid()}, True
    while added:
        children = {process for process, parent in parents.items() if parent in found} - found
        found |= children
        added = bool(children)
    return sum(times[process] for process in found) * 10**9 // os.sysconf("SC_CLK_TCK")


class _Weighed(Query):
    """A query with so many partitions, that notes what its reports and its checkpoint weigh."""

    def __init__(self, spark: SparkSession, folder: Path, partitions: int) -> None:
        super().__init__(spark, SIDES[FILES], folder)
        self._partitions = partitions
        self._progress_bytes: list[int] = []
        self.micro_batches = 0

    def run(self, files: Sequence[Path]) -> list[float]:
        """Take some more files; return the milliseconds of processor time of each micro-batch but the last one."""
        for file in files:
            (self._directory / file.name).hardlink_to(file)
        self._spark.conf.set(PARTITIONS_CONF, str(self._partitions))
        self._spark.conf.set(PROVIDER_CONF, self._side.provider)
        begun: list[int] = []

        def settle(frame: DataFrame, _: int) -> None:
            begun.append(tree_cpu_ns())
            frame.write.format("noop").mode("append").save()

        with warnings.catch_warnings():
            # There are more partitions than cores: that is the question.
            warnings.filterwarnings("ignore", "spark.sql.shuffle.partitions", UserWarning)
            frame = self._side.frame(self._spark, str(self._directory))
        writer = frame.writeStream.option("checkpointLocation", str(self._checkpoint)).foreachBatch(settle)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        for progress in query.recentProgress:
            self._note(progress)
            self._progress_bytes.append(len(progress.json))
        self.micro_batches += len(begun)
        expect("a micro-batch for each file", len(begun) >= len(files), True)
        return [(after - before) / 1e6 for before, after in pairwise(begun[: len(files)])]

    def weights(self) -> dict[str, float]:
        """Return the bytes of a progress report, and the files of state that a micro-batch wrote."""
        files = sum(path.is_file() for path in (self._checkpoint / "state").rglob("*"))
        return {
            "progress_bytes": float(np.median(self._progress_bytes)),
            "files_a_micro_batch": files / self.micro_batches,
        }


def partitions(scale: Scale) -> Result:
    """Take the processor time of small micro-batches with few and with many partitions of state, each of one shard."""
    messages = scale.size(MESSAGES, 100)
    rounds = Rounds(3, 1, 5) if scale.pairs > 2 else Rounds(1, 0, 3)
    count = rounds.rounds * rounds.files
    with tempfile.TemporaryDirectory() as name, streaming_session() as spark:
        source = Path(name) / "messages"
        source.mkdir()
        expected = write_messages(source, messages * count, pending=messages // 10, files=count)
        files = sorted(source.iterdir(), key=lambda path: int(path.stem))
        queries = {
            f"{number} partitions": _Weighed(spark, Path(name) / str(number), number)
            for number in (PARTITIONS if scale.pairs > 2 else PARTITIONS[:2])
        }
        samples = rounds.run(dict(queries), files)
        for side, query in queries.items():
            expect(f"trees acked with {side}", query.acked, expected.completions)
        weights = {side: query.weights() for side, query in queries.items()}
    parameters = {"messages": messages, "cores": CORES, "weights": weights, "seed": SEED}
    return Result("ms of a core/micro-batch", samples, [], parameters, expected._asdict())


class _Logged(Query):
    """A query that adds up the bytes that its shards have logged."""

    logged_bytes = 0

    def _note(self, progress: StreamingQueryProgress) -> None:
        super()._note(progress)
        observed = progress.observedMetrics.get("acker")
        self.logged_bytes += 0 if observed is None else sum(report["bytes_written"] for report in observed["shards"])


def checkpoint(scale: Scale) -> Result:
    """Weigh what Spark writes into the checkpoint for each byte that the shards log, where many trees are open."""
    messages, pending = scale.size(LOGGED_MESSAGES, 100), scale.size(LOGGED_OPEN, 100)
    count = 2 * min(_MICRO_BATCHES, scale.pairs)
    with tempfile.TemporaryDirectory() as name, streaming_session() as spark:
        source = Path(name) / "messages"
        source.mkdir()
        expected = write_messages(source, messages * count, pending=pending, files=count)
        query = _Logged(spark, SIDES[FILES], Path(name) / "query")
        query.run(sorted(source.iterdir(), key=lambda path: int(path.stem)))
        expect("trees acked", query.acked, expected.completions)
        # Spark keeps the files of a hundred micro-batches, so all are there.
        written = sum(path.stat().st_size for path in Path(name, "query/checkpoint/state").rglob("*") if path.is_file())
    samples = {"state files": [written / query.logged_bytes]}
    parameters = {"messages": messages, "pending": pending, "micro_batches": count, "seed": SEED}
    return Result("B/logged B", samples, [], parameters, expected._asdict())


def _alternate(sides: dict[str, Callable[[None], Any]], scale: Scale) -> dict[str, list[float]]:
    taken = Alternation(sides, clock=wall_ns).run([None] * (min(scale.pairs, _PAIRS_MAX) + 2), 2)
    return {side: [nanoseconds / 1e6 for nanoseconds in samples] for side, samples in taken.items()}


def tasks(scale: Scale) -> Result:
    """Time jobs of few and of many tasks that do nothing: what the driver needs to run a task, at most."""
    counts = {f"{count} tasks": scale.size(count, 2) for count in TASKS}
    with session() as spark:

        def job(count: int) -> Callable[[None], None]:
            frame = spark.range(0, count, 1, count)
            return lambda _: frame.write.format("noop").mode("overwrite").save()

        samples = _alternate({name: job(count) for name, count in counts.items()}, scale)
    return Result("ms/job", samples, [], {"cores": CORES, "tasks": counts}, {"tasks": sum(counts.values())})


def completions(scale: Scale) -> Result:
    """Time how completions reach a function in the driver."""
    from acker._engine.schemas import COMPLETION_SCHEMA
    from acker.spark import for_each_completion
    from acker.spark.messages import SPARK_TYPES

    counts = {f"{count:,} completions": scale.size(count, 10) for count in COMPLETIONS}
    seen: list[Any] = []
    columns = [f"cast(id as {SPARK_TYPES[str(field.type)]}) as {field.name}" for field in COMPLETION_SCHEMA]
    settle = for_each_completion(lambda done, _: seen.append(done))
    with session() as spark:

        def collect(count: int) -> Callable[[None], None]:
            frame = spark.range(0, count, 1, CORES).selectExpr("id % 3 as id").selectExpr(*columns)
            return lambda _: settle(frame, 0)

        samples = _alternate({name: collect(count) for name, count in counts.items()}, scale)
    ended = {len(done) for done in seen}
    expect("completions of each call", ended, set(counts.values()))
    largest = max(seen, key=len)
    held = sum(getattr(largest, name).nbytes for name in COMPLETION_SCHEMA.names) / len(largest)
    parameters = {"cores": CORES, "completions": counts, "bytes_a_completion": held}
    return Result("ms/call", samples, [], parameters, {"completions": sum(counts.values())})


CASES: Final = [
    Case("spark/growth/partitions", "What does a partition of state cost each micro-batch?", partitions),
    Case("spark/growth/checkpoint", "What does Spark write for each byte that acker logs?", checkpoint),
    Case("spark/growth/tasks", "What does a task cost the driver?", tasks),
    Case("spark/growth/completions", "What does a completion cost the driver?", completions),
]
