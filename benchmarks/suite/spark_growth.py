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

from acker.topology import Grouping, Spout, StatefulBolt, Topology, Window, WindowedBolt
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, wall_ns
from benchmarks.suite.spark import CORES, session, write_messages
from benchmarks.suite.spark_topologies import FOLDER, TopologyQuery
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
KEPT: Final = (10_000, 1_000_000)
CHANGED: Final = 1_000
_TUPLES_A_KEY: Final = 10

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


class Changes(Spout):
    """Tuples that change one key each, one file in each micro-batch."""

    outputs = ("key", "at")
    tup_id_column = "number"

    def frame(self, spark: Any, conf: Any) -> Any:
        """Read them."""
        stream = spark.readStream.schema("number long, key long, at long").option("maxFilesPerTrigger", 1)
        return stream.parquet(conf[FOLDER])


class Counts(StatefulBolt):
    """Counts the tuples of each key."""

    def process(self, tup: Any) -> None:
        """Count one."""
        self.state[tup.key] = self.state.get(tup.key, 0) + 1


def _topologies(kept: int, changed: int) -> dict[str, type[Topology]]:
    """Return a topology with a plain state of so many keys, and one with so many tuples in windows that are open."""

    class Seconds(WindowedBolt):
        """Windows of a second for each key, open for as long as it takes that many tuples to come."""

        window = Window.tumbling(secs=1)
        timestamp_field = "at"
        lag_secs = kept / changed

        def group_key(self, tup: Any) -> Any:
            """Return the key."""
            return tup.key

        def process_window(self, window: Any) -> None:
            """Do nothing."""

    changes = Changes.spec()
    return {
        bolt.__name__: type(
            f"{bolt.__name__}{kept}",
            (Topology,),
            {"changes": changes, "kept": bolt.spec(inputs={changes: Grouping.fields("key")}, par=CORES)},
        )
        for bolt in (Counts, Seconds)
    }


def _write_changes(folder: Path, kept: int, changed: int, files: int, *, windows: bool) -> list[Path]:
    """Write as many tuples as are to be kept, then so many for each micro-batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    rng = np.random.default_rng(SEED)
    paths = []
    for file in range(files + 1):
        begin, end = (0, kept) if not file else (kept + (file - 1) * changed, kept + file * changed)
        numbers = np.arange(begin, end)
        keys = (
            numbers % (kept // _TUPLES_A_KEY) if windows else numbers if not file else rng.integers(kept, size=changed)
        )
        table = pa.table({"number": pa.array(numbers), "key": pa.array(keys), "at": pa.array(numbers // changed)})
        paths.append(folder / f"{file}.parquet")
        pq.write_table(table, paths[-1])
    return paths


def kept(scale: Scale) -> Result:
    """Time micro-batches that change a thousand keys of a state or of windows, where few and where many are kept."""
    from acker.spark import read_state

    changed = scale.size(CHANGED, 10)
    # The first micro-batch of a round is left out, and the last one is not reported.
    rounds, files = max(1, scale.pairs // 5), 2 + scale.pairs
    queries: dict[str, TopologyQuery] = {}
    paths: dict[str, list[Path]] = {}
    sizes = {side: scale.size(side, 100 * (1 + place)) for place, side in enumerate(KEPT)}
    with tempfile.TemporaryDirectory() as name, streaming_session() as spark:
        for full, size in sizes.items():
            for bolt, topology in _topologies(size, changed).items():
                side = f"{bolt} {full:,}"
                folder = Path(name) / side.replace(" ", "-")
                queries[side] = TopologyQuery(spark, folder, topology, changed)
                paths[side] = _write_changes(folder / "files", size, changed, rounds * files, windows=bolt == "Seconds")
                queries[side].run(paths[side][:1], size)
        samples: dict[str, list[float]] = {side: [] for side in queries}
        for number in range(rounds):
            for side in list(queries)[:: -1 if number % 2 else 1]:
                begin = 1 + number * files
                taken = queries[side].run(paths[side][begin : begin + files])
                samples[side] += taken[1:]
        for side, query in queries.items():
            tasks = read_state(query.checkpoint)["kept"]
            size = sizes[int(side.split()[1].replace(",", ""))]
            if side.startswith("Counts"):
                expect(
                    f"tuples counted, {side}", sum(map(sum, map(dict.values, tasks))), size + rounds * files * changed
                )
            else:
                expect(f"tuples kept, {side}", sum(map(len, tasks)) >= size, True)
        parameters = {
            "changed": changed,
            "kept": list(sizes.values()),
            "cores": CORES,
            "slowest": {side: max(each) for side, each in samples.items()},
            "seed": SEED,
        }
    few, many = (f"{full:,}" for full in KEPT)
    goal = scale.goal(Goal(at_most=1.3))
    ratios = [Ratio(f"{bolt} {many}", f"{bolt} {few}", goal) for bolt in ("Counts", "Seconds")]
    return Result("ms/micro-batch", samples, ratios, parameters, {"micro_batches": rounds * files})


CASES: Final = [
    Case("spark/growth/partitions", "What does a partition of state cost each micro-batch?", partitions),
    Case("spark/growth/checkpoint", "What does Spark write for each byte that acker logs?", checkpoint),
    Case("spark/growth/tasks", "What does a task cost the driver?", tasks),
    Case("spark/growth/completions", "What does a completion cost the driver?", completions),
    Case("spark/growth/kept", "What do kept keys cost a micro-batch of a topology that changes others?", kept),
]
