"""Benchmarks of topologies on Spark: a word count tracked, untracked, and written by hand in PySpark.

All three read the same Parquet files of lines. The one by hand splits with ``mapInPandas`` and counts with ``groupBy``:
it tracks nothing, replays nothing, and counts in the JVM, while the bolts of a topology run in Python tuple by tuple.

A second case takes ten lines in each micro-batch of a stream, against a stateful operator in Python that does nothing.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from acker.topology import Bolt, Grouping, Spout, Topology
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per, wall_ns
from benchmarks.suite.spark import CORES, FILES, session
from benchmarks.suite.streaming import EMPTY, SIDES, Query, Rounds, streaming_session
from benchmarks.suite.workloads import SEED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TUPLES: Final = 10_000_000
LINES_SMALL: Final = 10
WORDS_A_LINE: Final = 5
VOCABULARY: Final = 50_000

_WARM_UP_PAIRS: Final = 2
_PAIRS_MAX: Final = 5

TRACKED, UNTRACKED, BY_HAND, SMALL = "tracked", "untracked", "by hand", "topology"

FOLDER: Final = "user.folder"


class Lines(Spout):
    """The lines of a folder of Parquet files."""

    outputs = ("line",)
    tup_id_column = "number"

    def frame(self, spark: Any, conf: Any) -> Any:
        """Read them, in a stream one file in each micro-batch."""
        if conf["topology.spark.streaming"]:
            stream = spark.readStream.schema("number long, line string").option("maxFilesPerTrigger", 1)
            return stream.parquet(conf[FOLDER])
        return spark.read.parquet(conf[FOLDER])


class Split(Bolt):
    """Emits each word."""

    outputs = ("word",)

    def process(self, tup: Any) -> None:
        """Split a line."""
        for word in tup.line.split():
            self.emit([word])


class Count(Bolt):
    """Counts words."""

    def initialize(self, conf: Any, context: Any) -> None:  # noqa: ARG002
        """Begin at zero."""
        self.counts: Counter[str] = Counter()

    def process(self, tup: Any) -> None:
        """Count a word."""
        self.counts[tup.word] += 1


class WordCount(Topology):
    """Lines, words, counts."""

    lines = Lines.spec()
    split = Split.spec(inputs=[lines], par=CORES)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=CORES)


def write_lines(folder: Path, lines: int, files: int) -> None:
    """Write seeded lines as Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(SEED)
    words = [f"w{number:x}" for number in range(VOCABULARY)]
    folder.mkdir(parents=True)
    for number, numbers in enumerate(np.array_split(np.arange(lines), files)):
        # A few words are frequent, as in any text.
        drawn = (rng.random((numbers.size, WORDS_A_LINE)) ** 3 * VOCABULARY).astype(int).tolist()
        text = [" ".join(words[place] for place in row) for row in drawn]
        pq.write_table(pa.table({"number": pa.array(numbers), "line": pa.array(text)}), folder / f"{number}.parquet")


def count_by_hand(spark: SparkSession, folder: str) -> int:
    """Split with ``mapInPandas``, count with ``groupBy``, and return the number of words."""
    import pandas as pd
    from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

    def split(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield pd.DataFrame({"word": [word for line in frame["line"] for word in line.split()]})

    lines = spark.read.parquet(folder).select("line")
    counts = lines.mapInPandas(split, "word string").groupBy("word").count()
    return int(counts.agg(F.sum("count")).collect()[0][0])


def _count_by_topology(spark: SparkSession, folder: str, ackers: int) -> int:
    from acker.spark import run

    report = run(WordCount, {FOLDER: folder, "topology.acker.tasks": ackers}, spark=spark)
    return report.stats.components()["count"].executed


def batch(scale: Scale) -> Result:
    """Time the three sides over the same files."""
    lines = scale.size(TUPLES, 1000) // (1 + WORDS_A_LINE)
    with tempfile.TemporaryDirectory() as name, session() as spark:
        folder = f"{name}/lines"
        write_lines(Path(folder), lines, FILES)
        sides: dict[str, Callable[[], int]] = {
            TRACKED: lambda: _count_by_topology(spark, folder, 1),
            UNTRACKED: lambda: _count_by_topology(spark, folder, 0),
            BY_HAND: lambda: count_by_hand(spark, folder),
        }

        def run(side: str) -> Callable[[None], None]:
            return lambda _: expect(f"words counted, {side}", sides[side](), lines * WORDS_A_LINE)

        alternation = Alternation({side: run(side) for side in sides}, clock=wall_ns)
        warm_up = _WARM_UP_PAIRS if scale.divisor == 1 else 1
        taken = alternation.run([None] * (min(scale.pairs, _PAIRS_MAX) + warm_up), warm_up)
        tuples = lines * (1 + WORDS_A_LINE)
        parameters = {"tuples": tuples, **parameters_of(spark)}
    # Throughput is the inverse of time: tracked keeps 0.85 of it.
    ratios = [Ratio(UNTRACKED, TRACKED, scale.goal(Goal(at_least=0.85))), Ratio(TRACKED, BY_HAND)]
    return Result("ns/tuple", per(taken, tuples), ratios, parameters, {"words": lines * WORDS_A_LINE})


class TopologyQuery:
    """A topology at work as a stream, with the folder that its files come into.

    Parameters
    ----------
    spark : SparkSession
    folder : Path
        Gets the files and the checkpoint.
    topology : type of Topology
        Its spout reads the folder in the option `FOLDER`, one file in each micro-batch.
    rows : int
        How many a file has.
    """

    def __init__(self, spark: SparkSession, folder: Path, topology: type[Topology], rows: int) -> None:
        self._spark = spark
        self._folder = folder
        self._topology = topology
        self._rows = rows
        self.checkpoint = str(folder / "checkpoint")
        (folder / "in").mkdir(parents=True)

    def run(self, files: list[Path], rows: int | None = None) -> list[float]:
        """Take some more files, each in a micro-batch; return how many milliseconds each took, but for the last one.

        The run ends within that one, before Spark reports it. `rows`: how many each of these files has.
        """
        rows = self._rows if rows is None else rows
        from pyspark.sql.streaming.listener import StreamingQueryListener

        from acker.spark import run

        for file in files:
            (self._folder / "in" / file.name).hardlink_to(file)
        taken: list[float] = []
        ended = threading.Event()

        class Listener(StreamingQueryListener):
            """Notes how long micro-batches with a file took."""

            def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802

            def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802

            def onQueryProgress(self, event: Any) -> None:  # noqa: N802
                if event.progress.numInputRows >= rows:  # not only the row of the clock
                    taken.append(float(event.progress.durationMs["triggerExecution"]))

            def onQueryTerminated(self, event: Any) -> None:  # noqa: ARG002, N802
                ended.set()

        listener = Listener()
        self._spark.streams.addListener(listener)
        try:
            run(
                self._topology,
                {FOLDER: str(self._folder / "in")},
                spark=self._spark,
                checkpoint=self.checkpoint,
                trigger="0 seconds",
                until=len(files) * rows,
            )
            ended.wait(60)
        finally:
            self._spark.streams.removeListener(listener)
        taken = taken[: len(files) - 1]
        expect("micro-batches", len(taken), len(files) - 1)
        return taken


def small(scale: Scale) -> Result:
    """Time micro-batches of ten lines."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rounds = Rounds.of(scale)
    files = rounds.files + 1  # the first one of a round and the last one are left out
    count = rounds.rounds * files
    with tempfile.TemporaryDirectory() as name, streaming_session() as spark:
        folder = Path(name) / "files"
        write_lines(folder, LINES_SMALL * count, count)
        messages = Path(name) / "messages"
        messages.mkdir()
        for number in range(count):
            column = pa.array(range(LINES_SMALL), pa.int64())
            table = pa.table({"kind": column.cast(pa.int8()), "root_id": column, "value": column})
            pq.write_table(table, messages / f"{number}.parquet")
        queries: dict[str, Any] = {
            SMALL: TopologyQuery(spark, Path(name) / "topology", WordCount, LINES_SMALL),
            EMPTY: Query(spark, SIDES[EMPTY], Path(name) / "empty"),
        }
        sources = {SMALL: folder, EMPTY: messages}
        samples: dict[str, list[float]] = {side: [] for side in queries}
        for number in range(rounds.rounds):
            for side in list(queries)[:: -1 if number % 2 else 1]:
                part = range(number * files, (number + 1) * files)
                taken = queries[side].run([sources[side] / f"{each}.parquet" for each in part])
                if number >= rounds.warm_up:
                    samples[side] += taken[1 : files - 1]
        parameters = {"lines": LINES_SMALL, "micro_batches": count, **parameters_of(spark)}
    ratios = [Ratio(SMALL, EMPTY, scale.goal(Goal(at_most=1.5)))]
    return Result("ms/micro-batch", samples, ratios, parameters, {})


def parameters_of(spark: SparkSession) -> dict[str, Any]:
    """Return what the word counts have in common."""
    return {
        "words_a_line": WORDS_A_LINE,
        "vocabulary": VOCABULARY,
        "master": spark.sparkContext.master,
        "pyspark": importlib.metadata.version("pyspark"),
        "seed": SEED,
    }


CASES: Final = [
    Case(
        "spark/topology",
        "What does tracking cost a topology on Spark, and the topology against PySpark by hand?",
        batch,
    ),
    Case(
        "spark/topology-small",
        "How long does a micro-batch of ten tuples take, against a stateful operator in Python that does nothing?",
        small,
    ),
]
