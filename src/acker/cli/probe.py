"""The check of a process's Python and acker, for this process and for Spark's workers, even those without acker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def prober() -> Callable[[], dict[str, Any]]:
    """Return a function that inspects its process; as a local one it is pickled by value, so workers need no acker."""

    def look() -> dict[str, Any]:
        import os
        import platform
        import socket
        import sys

        found = {
            "host": socket.gethostname(),
            "folder": os.getcwd(),  # noqa: PTH109  Executors on one machine have folders of their own.
            "pid": os.getpid(),
            "python": platform.python_version(),
            "executable": sys.executable,
            "error": None,
        }
        try:
            import numpy as np

            import acker
        except ImportError as error:
            return {**found, "acker": None, "error": str(error)}
        about = acker.build_info()
        # A tree that finishes, one that fails and one that stays open.
        kind = np.array([0, 2, 2, 0, 3, 0], np.int8)
        root_id = np.array([7, 7, 7, -1, -1, 2**62])
        value = np.array([5, 5 ^ 9, 9, 3, 0, 4])
        task_id, message_id = np.arange(6, dtype=np.int32), np.arange(6) - 3
        ackers = acker.Acker(seed=1), acker.ReferenceAcker(seed=1)
        one, other = (each.ingest(kind, root_id, value, task_id, message_id, now_ms=5) for each in ackers)
        if one != other or len(one) != 2:
            found["error"] = "its results are not those of the reference"
        return {
            **found,
            "acker": acker.__version__,
            "at": os.path.dirname(acker.__file__),  # noqa: PTH120  As Python spells it.
            "kernel": about["kernel"],
            "abi": about["abi"],
        }

    return look


def probe(spark: SparkSession, tasks: int) -> list[dict[str, Any]]:
    """Return the findings of `tasks` tasks that run at once, one on each core."""
    look = prober()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json

        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"found": [json.dumps(look())] * batch.num_rows})

    # As a barrier stage all tasks run at once.
    frame = spark.range(0, tasks, 1, numPartitions=tasks).mapInArrow(run, "found string", barrier=True)
    return [json.loads(row.found) for row in frame.collect()]
