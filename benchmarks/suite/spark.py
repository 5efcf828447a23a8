"""Benchmarks of batch jobs on Spark: both ways of the acker against a plain xor over the same Parquet files.

The rival is a lower bound for any answer on Spark: ``groupBy("root_id").agg(bit_xor("value"))`` reads two of the five
columns and keeps one number a tree. It does not know the spout task, ignores failures, and takes a TRACK that was
delivered twice for a finished tree.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from acker._engine.protocol import Kind
from acker.testing.streams import Checksum, TreeStream
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per, wall_ns
from benchmarks.suite.workloads import SEED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES: Final = 10_000_000
OKS: Final = 4
PENDING: Final = 42_000
FILES: Final = 4
ROW_GROUP_ROWS: Final = 500_000
CORES: Final = 2

# The JVM goes on compiling for several rounds, and for the longer plan longer.
_WARM_UP_PAIRS: Final = 6
_PAIRS_MAX: Final = 7

BIT_XOR, ROWS, FILES_SIDE = "bit_xor", "rows", "files"


def write_messages(folder: Path, messages: int, *, pending: int = PENDING, files: int = FILES) -> Checksum:
    """Write a seeded stream of interleaved trees as Parquet files; return the checksum of the trees it finishes.

    Each tree is one TRACK and four OKs. task_id and message_id are null but on TRACK rows, as a pipeline writes them.

    Parameters
    ----------
    folder : Path
        There already, and empty.
    messages : int
        Rows, beside the TRACKs of the trees that are pending when the stream begins.
    pending : int
        Open trees at any time.
    files : int
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from acker._engine.schemas import MESSAGE_SCHEMA

    stream = TreeStream(pending, OKS, seed=SEED)
    # Random ids gain nothing from a dictionary; writers that notice it late write the others.
    dictionary: Any = ["kind", "task_id"]
    for number in range(files):
        rows = messages // files + (messages % files if number == files - 1 else 0)
        parts = [*stream.prefill()] if number == 0 else []
        parts += [stream.take(min(ROW_GROUP_ROWS, rows - first)) for first in range(0, rows, ROW_GROUP_ROWS)]
        with pq.ParquetWriter(folder / f"{number}.parquet", MESSAGE_SCHEMA, use_dictionary=dictionary) as file:
            for part in parts:
                is_other = np.asarray(part.kind != Kind.TRACK)
                columns: list[Any] = [part.kind, part.root_id, part.value]
                columns += [pa.array(np.asarray(column), mask=is_other) for column in (part.task_id, part.message_id)]
                file.write_table(pa.table(columns, schema=MESSAGE_SCHEMA), row_group_size=ROW_GROUP_ROWS)
    return stream.expected


@contextmanager
def session(memory: str = "4g", *, sockets: bool = False) -> Iterator[SparkSession]:
    """Lend the session that runs, or start one on two cores and stop it in the end.

    Parameters
    ----------
    memory : str
        The heap of the JVM.
    sockets : bool
        Python workers talk to the JVM by sockets of the file system, not by TCP.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    started = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("python -m benchmarks.suite")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", memory)
        .config("spark.python.unix.domain.socket.enabled", str(sockets).lower())
        .config("spark.sql.shuffle.partitions", str(2 * CORES))
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    started.sparkContext.setLogLevel("ERROR")
    try:
        yield started
    finally:
        started.stop()


def sides(spark: SparkSession, folder: Path) -> dict[str, Callable[[], DataFrame]]:
    """Return what is compared: each makes the DataFrame of one answer."""
    from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

    from acker.spark import completions, completions_from_files

    path = str(folder)
    return {
        BIT_XOR: lambda: spark.read.parquet(path).groupBy("root_id").agg(F.bit_xor("value")),
        ROWS: lambda: completions(spark.read.parquet(path)),
        FILES_SIDE: lambda: completions_from_files(spark, path),
    }


def checksum_of(done: DataFrame) -> Checksum:
    """Return how many trees ended ACKED, and the xor of their root ids."""
    from pyspark.sql import functions as F  # noqa: N812

    row = done.where("outcome = 0").agg(F.count("*"), F.bit_xor("root_id")).collect()[0]
    return Checksum(row[0], row[1] or 0)


def batch(scale: Scale) -> Result:
    """Time the three sides over the same files, all rows of the answer taken and thrown away."""
    messages = scale.size(MESSAGES, 1000)
    with tempfile.TemporaryDirectory() as name, session() as spark:
        folder = Path(name)
        pending = scale.size(PENDING, 40)
        expected = write_messages(folder, messages, pending=pending)
        frames = sides(spark, folder)
        for side in (ROWS, FILES_SIDE):
            expect(f"trees acked from {side}", checksum_of(frames[side]()), expected)

        def run(make: Callable[[], DataFrame]) -> Callable[[None], None]:
            return lambda _: make().write.format("noop").mode("overwrite").save()

        alternation = Alternation({side: run(make) for side, make in frames.items()}, clock=wall_ns)
        warm_up = _WARM_UP_PAIRS if scale.divisor == 1 else 1
        taken = alternation.run([None] * (min(scale.pairs, _PAIRS_MAX) + warm_up), warm_up)
        parameters: dict[str, Any] = {
            "messages": messages,
            "pending": pending,
            "oks": OKS,
            "files": FILES,
            "row_group_rows": ROW_GROUP_ROWS,
            "master": spark.sparkContext.master,
            "pyspark": importlib.metadata.version("pyspark"),
            "seed": SEED,
        }
    goals = (Goal(at_most=1.18), Goal(at_least=3.0))
    ratios = [Ratio(ROWS, BIT_XOR, scale.goal(goals[0])), Ratio(BIT_XOR, FILES_SIDE, scale.goal(goals[1]))]
    return Result("ns/message", per(taken, messages), ratios, parameters, expected._asdict())


CASES: Final = [
    Case("spark/batch", "How long do Spark jobs take, from rows and from files, against the xor of one column?", batch),
]
