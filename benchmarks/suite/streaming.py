"""Benchmarks of streams on Spark: micro-batches of the acker against Spark's own aggregation of one column.

All sides take the same files. A rival is ``groupBy("root_id").agg(bit_xor("value"))`` in update mode, with either of
Spark's state stores. It reports the present xor of each tree and never forgets a tree; the acker reports how trees
ended, and holds only the open ones. So does ``transformWithState`` in the JVM (benchmarks/rivals/XorState.java), on the
only store that it has, RocksDB; it knows no failures, no timeouts, and no TRACK that came twice.

A query is restarted after every few files, one file a micro-batch, so that the sides can take turns. The first
micro-batch after a start is not counted: it loads what the later ones find in memory. All sides of a case have
the same settings, but for the case that measures what settings gain.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.suite.java_rival import java_class
from benchmarks.suite.measure import Case, Goal, Ratio, Result, Scale, expect
from benchmarks.suite.spark import CORES, OKS, PENDING, session, write_messages
from benchmarks.suite.workloads import SEED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

MESSAGES: Final = 1_000_000
MESSAGES_LARGE: Final = 5_000_000
MESSAGES_SMALL: Final = 1_000
HELD_MANY: Final = 10_000_000
HELD_HALF: Final = 5_000_000
HELD_FEW: Final = 100_000
TIMEOUT: Final = "10 minutes"

# Measured micro-batches of one start; one more is run before them.
_KEPT: Final = 3
_TRACKS_A_FILE: Final = 2_500_000

_STATE: Final = "org.apache.spark.sql.execution.streaming.state"
_HDFS_BACKED: Final = f"{_STATE}.HDFSBackedStateStoreProvider"
_ROCKSDB: Final = f"{_STATE}.RocksDBStateStoreProvider"
PROVIDER_CONF: Final = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS_CONF: Final = "spark.sql.shuffle.partitions"
# What docs/streaming.md advises for short micro-batches. Its third advice is `session(sockets=True)`.
FILE_MANAGER: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
CHANGELOGS: Final = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
SETTINGS: Final = {**FILE_MANAGER, **CHANGELOGS}

FILES, ROWS, HDFS, ROCKSDB, EMPTY = "files", "rows", "bit_xor HDFS", "bit_xor RocksDB", "empty"
STATE: Final = "transformWithState"
# The trees that a rival has found to be finished, in the metrics of a micro-batch.
_FINISHED: Final = "finished"


class Side(NamedTuple):
    """One way to answer, as a streaming query over a directory.

    Attributes
    ----------
    frame : callable
        Takes the session and the directory, returns the streaming DataFrame.
    mode : str
        Of the output.
    provider : str
        The state store.
    settings : mapping
        Of Spark, for this side alone.
    """

    frame: Callable[[SparkSession, str], DataFrame]
    mode: str
    provider: str
    settings: Mapping[str, str] = {}


def _messages(spark: SparkSession, path: str) -> DataFrame:
    from acker._engine.schemas import MESSAGE_COLUMNS
    from acker.spark.messages import SPARK_TYPES

    schema = ", ".join(f"{field.name} {SPARK_TYPES[field.dtype.name]}" for field in MESSAGE_COLUMNS)
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)


def _from_files(spark: SparkSession, path: str) -> DataFrame:
    from acker.spark import completions_from_files

    return completions_from_files(spark, path, streaming=True, timeout=TIMEOUT, max_files_per_trigger=1)


def _from_rows(spark: SparkSession, path: str) -> DataFrame:
    from acker.spark import completions

    return completions(_messages(spark, path), timeout=TIMEOUT)


def _bit_xor(spark: SparkSession, path: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

    return _messages(spark, path).groupBy("root_id").agg(F.bit_xor("value"))


def _transform_with_state(spark: SparkSession, path: str) -> DataFrame:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F  # noqa: N812

    made = java_class(spark, "XorState").finished(_messages(spark, path)._jdf)
    return DataFrame(made, spark).observe(_FINISHED, F.count(F.lit(1)).alias(_FINISHED))


def _empty(spark: SparkSession, path: str) -> DataFrame:
    """Return what a stateful operator in Python costs that does nothing, with as many partitions as the acker has."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from acker.spark.partition_keys import partition_key

    class Nothing(StatefulProcessor):
        """Reads and writes no state."""

        def init(self, handle: Any) -> None:
            """Have no variables."""

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803
            """Drop the rows."""
            return iter(())

        def close(self) -> None:
            """Have nothing to close."""

    key = partition_key(F.pmod("root_id", F.lit(CORES)).cast("int"), CORES)
    rows = _messages(spark, path).select(key.alias("key"))
    return rows.groupBy("key").transformWithStateInPandas(Nothing(), "nothing long", "Append", "None")


SIDES: Final = {
    FILES: Side(_from_files, "append", _ROCKSDB),
    ROWS: Side(_from_rows, "append", _ROCKSDB),
    HDFS: Side(_bit_xor, "update", _HDFS_BACKED),
    ROCKSDB: Side(_bit_xor, "update", _ROCKSDB),
    STATE: Side(_transform_with_state, "append", _ROCKSDB),
    EMPTY: Side(_empty, "append", _ROCKSDB),
}

# The sides that say how many trees are finished.
COUNTED: Final = frozenset({FILES, ROWS, STATE})

OWN: Final = "Spark's own"
CHOICES: Final = {OWN: {}, "file manager": FILE_MANAGER, "changelogs": CHANGELOGS, "both": SETTINGS}


class Query:
    """A side at work: the directory that its files come into, and its checkpoint."""

    def __init__(self, spark: SparkSession, side: Side, folder: Path) -> None:
        self._spark = spark
        self._side = side
        self._checkpoint = folder / "checkpoint"
        self._directory = folder / "in"
        self._directory.mkdir(parents=True)
        self.acked = 0
        self.pending = 0

    def run(self, files: Sequence[Path]) -> list[float]:
        """Take some more files, each in a micro-batch; return how many milliseconds each took."""
        for file in files:
            (self._directory / file.name).hardlink_to(file)
        with settings_of(self._spark, {PROVIDER_CONF: self._side.provider, **self._side.settings}):
            writer = self._side.frame(self._spark, str(self._directory)).writeStream.format("noop")
            writer = writer.outputMode(self._side.mode).option("checkpointLocation", str(self._checkpoint))
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            finally:
                query.stop()
        taken = []
        for progress in query.recentProgress:
            self._note(progress)
            if any(source.numInputRows for source in progress.sources if source.description.startswith("FileStream")):
                taken.append(float(progress.durationMs["triggerExecution"]))
        expect("micro-batches", len(taken), len(files))
        return taken

    def _note(self, progress: StreamingQueryProgress) -> None:
        observed = progress.observedMetrics.get("acker")
        reports = [] if observed is None else observed["shards"]
        self.acked += sum(report["acked"] for report in reports)
        if reports:
            self.pending = sum(report["pending"] for report in reports)
        found = progress.observedMetrics.get(_FINISHED)
        self.acked += 0 if found is None else found[_FINISHED]


@contextmanager
def streaming_session(memory: str = "4g", *, advised: bool = False) -> Iterator[SparkSession]:
    """Lend a session, or start one with such a heap; it has a state partition for each core.

    With `advised` it has the settings that docs/streaming.md advises, else Spark's own.
    """
    chosen = {PARTITIONS_CONF: str(CORES), **(SETTINGS if advised else {})}
    with session(memory, sockets=advised) as spark, settings_of(spark, chosen):
        yield spark


@contextmanager
def settings_of(spark: SparkSession, chosen: Mapping[str, str]) -> Iterator[None]:
    """Give a session settings for a while."""
    before = {name: spark.conf.get(name, None) for name in chosen}
    for name, value in chosen.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


class Rounds(NamedTuple):
    """How often each side is started, how many of these starts warm up, and the files of one."""

    rounds: int
    warm_up: int
    files: int

    @classmethod
    def of(cls, scale: Scale) -> Rounds:
        """Return what suits a scale."""
        warm_up = 1 if scale.pairs > 2 else 0
        return cls(warm_up + max(1, scale.pairs // 5), warm_up, 1 + min(_KEPT, scale.pairs // 2))

    def run(self, queries: dict[str, Query], files: Sequence[Path]) -> dict[str, list[float]]:
        """Return the milliseconds of each side's micro-batches."""
        order = list(queries)
        samples: dict[str, list[float]] = {name: [] for name in order}
        for number in range(self.rounds):
            some = files[number * self.files : (number + 1) * self.files]
            for name in order[:: -1 if number % 2 else 1]:
                taken = queries[name].run(some)
                if number >= self.warm_up:
                    samples[name] += taken[1:]
        return samples


def _parameters(spark: SparkSession, messages: int, pending: int, rounds: Rounds) -> dict[str, Any]:
    return {
        "messages": messages,
        "pending": pending,
        "oks": OKS,
        "micro_batches": rounds.rounds * rounds.files,
        "state_partitions": CORES,
        "timeout": TIMEOUT,
        "master": spark.sparkContext.master,
        "pyspark": importlib.metadata.version("pyspark"),
        "seed": SEED,
    }


def _write(folder: Path, messages: int, pending: int, rounds: Rounds) -> tuple[list[Path], Any]:
    count = rounds.rounds * rounds.files
    folder.mkdir()
    expected = write_messages(folder, messages * count, pending=pending, files=count)
    # Spark takes files in the order of their times.
    return sorted(folder.iterdir(), key=lambda path: int(path.stem)), expected


def micro_batches(
    scale: Scale,
    *,
    messages: int,
    goals: Mapping[tuple[str, str], Goal | None],
    full_rounds: Rounds | None = None,
    memory: str = "4g",
    advised: bool = True,
) -> Result:
    """Time the sides that the goals compare, each on the same files.

    Parameters
    ----------
    scale : Scale
    messages : int
        Of a micro-batch.
    goals : mapping of two sides to Goal or None
    full_rounds : Rounds, optional
        In place of the usual ones at full size.
    memory : str
        The heap of the JVM.
    advised : bool
        With the settings that docs/streaming.md advises, else with Spark's own.
    """
    rounds = full_rounds if full_rounds is not None and scale.divisor == 1 else Rounds.of(scale)
    rows, pending = scale.size(messages, 1000), scale.size(PENDING, 40)
    names = dict.fromkeys(name for pair in goals for name in pair)
    with tempfile.TemporaryDirectory() as name, streaming_session(memory, advised=advised) as spark:
        files, expected = _write(Path(name) / "messages", rows, pending, rounds)
        queries = {side: Query(spark, SIDES[side], Path(name) / str(i)) for i, side in enumerate(names)}
        samples = rounds.run(queries, files)
        for side in set(queries) & COUNTED:
            expect(f"trees acked from {side}", queries[side].acked, expected.completions)
        chosen = "as docs/streaming.md advises" if advised else OWN
        parameters = {**_parameters(spark, rows, pending, rounds), "settings": chosen}
    ratios = [Ratio(*pair, scale.goal(goal)) for pair, goal in goals.items()]
    return Result("ms/micro-batch", samples, ratios, parameters, expected._asdict())


def settings(scale: Scale) -> Result:
    """Time the same micro-batches with Spark's own settings and with those that docs/streaming.md advises.

    Not with sockets of the file system: they are for all queries of a session.
    """
    rounds = Rounds.of(scale)
    rows, pending = scale.size(MESSAGES, 1000), scale.size(PENDING, 40)
    with tempfile.TemporaryDirectory() as name, streaming_session() as spark:
        files, expected = _write(Path(name) / "messages", rows, pending, rounds)
        queries = {
            side: Query(spark, SIDES[FILES]._replace(settings=chosen), Path(name) / str(i))
            for i, (side, chosen) in enumerate(CHOICES.items())
        }
        samples = rounds.run(queries, files)
        for side, query in queries.items():
            expect(f"trees acked, {side}", query.acked, expected.completions)
        parameters = _parameters(spark, rows, pending, rounds)
    ratios = [Ratio(side, OWN) for side in CHOICES if side != OWN]
    return Result("ms/micro-batch", samples, ratios, parameters, expected._asdict())


def open_trees(scale: Scale) -> Result:
    """Time the same micro-batches where few trees are open and where many are."""
    few, many = (f"{count} held" for count in (HELD_FEW, HELD_MANY))
    held = {few: scale.size(HELD_FEW, 100), many: scale.size(HELD_MANY, 100)}
    result = _beside_held(scale, {query: (FILES, trees) for query, trees in held.items()}, "4g")
    ratios = [Ratio(many, few, scale.goal(Goal(at_most=1.3)))]
    return replace(result, ratios=ratios, parameters={**result.parameters, **held})


def rivals_with_open_trees(scale: Scale, *, held: int) -> Result:
    """Time micro-batches of the acker and of its rivals, where so many trees are open."""
    trees = scale.size(held, 100)
    result = _beside_held(scale, {side: (side, trees) for side in (FILES, ROCKSDB, HDFS, STATE)}, "12g")
    ratios = [Ratio(side, FILES) for side in (ROCKSDB, HDFS, STATE)]
    return replace(result, ratios=ratios, parameters={**result.parameters, "held": trees})


def _beside_held(scale: Scale, held: Mapping[str, tuple[str, int]], memory: str) -> Result:
    """Time micro-batches of queries that hold trees which nobody completes: by name, the side and how many trees."""
    rounds = Rounds.of(scale)
    rows, pending = scale.size(MESSAGES, 1000), scale.size(PENDING, 40)
    with tempfile.TemporaryDirectory() as name, streaming_session(memory) as spark:
        files, expected = _write(Path(name) / "messages", rows, pending, rounds)
        queries = {}
        for query, (side, trees) in held.items():
            queries[query] = Query(spark, SIDES[side], Path(name) / query)
            queries[query].run(list(write_tracks(Path(name) / f"tracks {query}", trees)))
            if side == FILES:
                expect(f"trees held, {query}", queries[query].pending, trees)
        samples = rounds.run(queries, files)
        for query, (side, _) in held.items():
            if side in COUNTED:
                expect(f"trees acked, {query}", queries[query].acked, expected.completions)
        parameters = _parameters(spark, rows, pending, rounds)
    return Result("ms/micro-batch", samples, [], parameters, expected._asdict())


def write_tracks(folder: Path, trees: int) -> Iterator[Path]:
    """Write files of one TRACK for each of some trees that nobody ever completes; yield their paths."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from acker._engine.protocol import Kind
    from acker._engine.schemas import MESSAGE_SCHEMA

    folder.mkdir()
    rng = np.random.default_rng(SEED)
    for number, first in enumerate(range(0, trees, _TRACKS_A_FILE)):
        rows = min(_TRACKS_A_FILE, trees - first)
        columns: list[Any] = [
            np.full(rows, Kind.TRACK, np.int8),
            rng.integers(-(2**63), 2**63, rows),
            rng.integers(1, 2**63, rows),
            np.zeros(rows, np.int32),
            np.arange(first, first + rows),
        ]
        path = folder / f"tracks {number}.parquet"
        pq.write_table(pa.table(columns, schema=MESSAGE_SCHEMA), path, use_dictionary=False)
        yield path


small_micro_batches: Final = partial(
    micro_batches,
    messages=MESSAGES_SMALL,
    goals={(FILES, EMPTY): Goal(at_most=1.3), (ROWS, EMPTY): Goal(at_most=1.3)},
)

CASES: Final = [
    Case(
        "spark/streaming/1m",
        "How long does a micro-batch of a million messages take, against the xor of one column?",
        partial(
            micro_batches,
            messages=MESSAGES,
            goals={
                (HDFS, FILES): Goal(at_least=1.5),
                (ROCKSDB, FILES): Goal(at_least=4.0),
                (HDFS, ROWS): Goal(at_least=1.2),
                (STATE, FILES): None,
            },
        ),
    ),
    Case(
        "spark/streaming/5m",
        "And one of five million?",
        partial(
            micro_batches,
            messages=MESSAGES_LARGE,
            goals={(HDFS, FILES): Goal(at_least=3.5), (ROCKSDB, FILES): Goal(at_least=8.0), (STATE, FILES): None},
            # The rivals never forget a tree, and the HDFS-backed one holds each in the heap, with two versions: four
            # rounds of four files leave it no room in 4 GB.
            full_rounds=Rounds(2, 1, 1 + _KEPT),
            memory="8g",
        ),
    ),
    Case(
        "spark/streaming/small",
        "How long does one of a thousand messages take, against a stateful operator in Python that does nothing?",
        small_micro_batches,
    ),
    Case("spark/streaming/small/own", "And with Spark's own settings?", partial(small_micro_batches, advised=False)),
    Case("spark/streaming/settings", "What do the settings gain that docs/streaming.md advises?", settings),
    Case("spark/streaming/held", "Does a micro-batch take longer where ten million trees are open?", open_trees),
    Case(
        "spark/streaming/open/5m",
        "How long does a micro-batch of a million messages take where five million trees are open, and for the rivals?",
        partial(rivals_with_open_trees, held=HELD_HALF),
    ),
    Case("spark/streaming/open/10m", "And where ten million are?", partial(rivals_with_open_trees, held=HELD_MANY)),
]
