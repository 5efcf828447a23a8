"""The submitted job: completions of a folder of messages, each with the executor that settled it.

    spark-submit ... job.py FOLDER RECIPE

Reads FOLDER/messages, writes FOLDER/completions and FOLDER/job.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa


def main(arguments: Sequence[str]) -> None:
    """Run the job."""
    from pyspark.sql import SparkSession

    import acker.spark as aspark
    from acker.cli.probe import probe

    folder, recipe = Path(arguments[0]), arguments[1]
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    # All executors are there when it returns: each runs one of the tasks.
    before = probe(spark, spark.sparkContext.defaultParallelism)
    fault = None
    if recipe == "artifacts":
        fault = _fault_of(lambda: aspark.completions_from_files(spark, folder / "messages").count())
        aspark.ship(spark)
    after = probe(spark, len(before))
    (folder / "job.json").write_text(json.dumps({"before": before, "executors": after, "fault": fault}))

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        import pyarrow as pa

        here = os.getcwd()  # noqa: PTH109  Of the executor.
        for batch in batches:
            yield batch.append_column("executor", pa.array([here] * batch.num_rows))

    done = aspark.completions_from_files(spark, folder / "messages", shards=len(after), include_pending=True)
    schema = ", ".join(f"{name} {kind}" for name, kind in done.dtypes)
    done.mapInArrow(tell, f"{schema}, executor string").write.parquet(str(folder / "completions"))
    spark.stop()


def _fault_of(job: Callable[[], object]) -> str | None:
    """Run something that should fail, and return the last line of what it says."""
    from pyspark.errors import PySparkException

    try:
        job()
    except PySparkException as fault:
        return str(fault).strip().splitlines()[-1]
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
