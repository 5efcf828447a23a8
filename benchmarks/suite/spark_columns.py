"""Benchmarks of columnar topologies on Spark: against PySpark written by hand, and against the same in one process.

The word count is that of `spark_topologies.py` with the bolts of `columns.py`: all read the same Parquet files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acker.topology import ArrowBolt, Grouping, Spout, Topology
from benchmarks.suite.columns import Split, WordCounts
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per, wall_ns
from benchmarks.suite.spark import CORES, FILES, session
from benchmarks.suite.spark_topologies import (
    BY_HAND,
    FOLDER,
    TUPLES,
    WORDS_A_LINE,
    Lines,
    count_by_hand,
    parameters_of,
    write_lines,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS, UNTRACKED, LOCAL = "columns", "columns, untracked", "one process"
ROWS: Final = 1_000_000

_ROWS: Final = "user.rows"
_BATCH_ROWS: Final = 8192
_KEYS: Final = 1000
_PAIRS_MAX: Final = 5
# The JVM goes on compiling for several rounds, and the sides that it has no part in do not wait for it.
_WARM_UP_PAIRS: Final = 6


class Count(ArrowBolt):
    """Counts words in columns."""

    def initialize(self, conf: Any, context: Any) -> None:  # noqa: ARG002
        """Begin at zero."""
        self.counts = WordCounts()

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Count words."""
        self.counts.add(batch.column("word"))


class WordCount(Topology):
    """Lines, words, counts."""

    lines = Lines.spec()
    split = Split.spec(inputs=[lines], par=CORES)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=CORES)


def _executed(report: Any) -> int:
    count: int = report.stats.components()["count"].executed
    return count


def against_pyspark(scale: Scale) -> Result:
    """Time the columnar word count, with and without an acker, and the one by hand."""
    from acker.spark import run

    lines = scale.size(TUPLES, 1000) // (1 + WORDS_A_LINE)

    def topology(spark: SparkSession, folder: str, ackers: int) -> int:
        return _executed(run(WordCount, {FOLDER: folder, "topology.acker.tasks": ackers}, spark=spark))

    with tempfile.TemporaryDirectory() as name, session() as spark:
        folder = f"{name}/lines"
        write_lines(Path(folder), lines, FILES)
        sides: dict[str, Callable[[Any], int]] = {
            COLUMNS: lambda _: topology(spark, folder, 1),
            UNTRACKED: lambda _: topology(spark, folder, 0),
            BY_HAND: lambda _: count_by_hand(spark, folder),
        }
        taken = _alternate(scale, sides, lines * WORDS_A_LINE)
        parameters = {"tuples": lines * (1 + WORDS_A_LINE), **parameters_of(spark)}
    ratios = [Ratio(COLUMNS, BY_HAND, scale.goal(Goal(at_most=1.2))), Ratio(UNTRACKED, COLUMNS)]
    return Result("ns/tuple", per(taken, parameters["tuples"]), ratios, parameters, {"words": lines * WORDS_A_LINE})


class Numbers(Spout):
    """Numbers: on Spark a DataFrame, in one process batches."""

    outputs = {"n": pa.int64()}  # noqa: RUF012
    tup_id_column = "n"

    def frame(self, spark: Any, conf: Any) -> Any:
        """Let Spark make them."""
        return spark.range(conf[_ROWS], numPartitions=CORES).toDF("n")

    def initialize(self, conf: Any, context: Any) -> None:  # noqa: ARG002
        """Begin at zero."""
        self._next, self._rows = 0, conf[_ROWS]

    def next_tuple(self) -> None:
        """Emit a batch."""
        if self._next == self._rows:
            self.finish()
            return
        column = pa.array(np.arange(self._next, min(self._rows, self._next + _BATCH_ROWS)))
        self._next += len(column)
        self.emit_batch({"n": column}, tup_ids=column)


class Square(ArrowBolt):
    """Squares numbers."""

    outputs = {"key": pa.int64(), "square": pa.int64()}  # noqa: RUF012

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Emit the square of each, by a key."""
        n = batch.column("n")
        key = pa.array(n.to_numpy() % _KEYS)
        self.emit_batch({"key": key, "square": pc.multiply(n, n)})


class Halve(ArrowBolt):
    """Halves them."""

    outputs = {"key": pa.int64(), "half": pa.int64()}  # noqa: RUF012

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Emit half of each."""
        self.emit_batch({"key": batch.column("key"), "half": pc.shift_right(batch.column("square"), 1)})


class Sum(ArrowBolt):
    """Adds them up by key."""

    def initialize(self, conf: Any, context: Any) -> None:  # noqa: ARG002
        """Begin at zero."""
        self.sums = np.zeros(_KEYS)

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Add."""
        self.sums += np.bincount(batch.column("key").to_numpy(), batch.column("half").to_numpy(), _KEYS)


class ThreeBolts(Topology):
    """Numbers, squares, halves, sums."""

    numbers = Numbers.spec()
    square = Square.spec(inputs=[numbers], par=CORES)
    halve = Halve.spec(inputs=[square], par=CORES)
    count = Sum.spec(inputs={halve: Grouping.fields("key")}, par=CORES)


def against_one_process(scale: Scale) -> Result:
    """Time three bolts on Spark and in one process."""
    from acker import local
    from acker import spark as on_spark

    rows = scale.size(ROWS, 1000)
    conf = {_ROWS: rows, "topology.max.spout.pending": 8 * _BATCH_ROWS}
    with session() as spark:
        sides: dict[str, Callable[[Any], int]] = {
            COLUMNS: lambda _: _executed(on_spark.run(ThreeBolts, conf, spark=spark)),
            LOCAL: lambda _: _executed(local.run(ThreeBolts, conf)),
        }
        taken = _alternate(scale, sides, rows)
        parameters: dict[str, Any] = {"rows": rows, "keys": _KEYS, "pending": conf["topology.max.spout.pending"]}
        parameters["master"] = spark.sparkContext.master
    samples = {side: [rows / ns * 1e9 for ns in times] for side, times in taken.items()}
    return Result(
        "rows/s", samples, [Ratio(COLUMNS, LOCAL, scale.goal(Goal(at_least=1.0)))], parameters, {"rows": rows}
    )


def _alternate(scale: Scale, sides: dict[str, Callable[[Any], int]], expected: int) -> dict[str, list[float]]:
    def check(side: str, _: Any, found: int) -> None:
        expect(f"rows counted, {side}", found, expected)

    warm_up = _WARM_UP_PAIRS if scale.divisor == 1 else 1
    return Alternation(sides, check, wall_ns).run([None] * (min(scale.pairs, _PAIRS_MAX) + warm_up), warm_up)


CASES: Final = [
    Case("spark/columns", "How long does a columnar topology take, against PySpark by hand?", against_pyspark),
    Case("spark/columns-local", "How fast is a columnar topology on Spark, against one process?", against_one_process),
]
