"""The driver process that gets killed: a streaming query from a folder of messages to a folder of completions.

    python -m tests.torture.kills.driver FOLDER PORT MASTER TIMEOUT_S FILES CHECKPOINT

It reports to a port of this machine: the points that it reaches, and after each micro-batch the number of tables that
were rebuilt.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import acker.spark as aspark
from acker._engine.schemas import COMPLETION_SCHEMA
from acker.spark.session_checks import PROVIDER, PROVIDER_CONF
from acker.spark.streams import operator
from tests.torture.kills.plan import PARTITIONS, SHARDS
from tests.torture.kills.points import KEPT, SINK, WatchedProcessor, pass_on, reach, tell

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from acker._engine.completions import Completions

SCHEMA = "kind tinyint, root_id long, value long, task_id int, message_id long"


def main(arguments: list[str]) -> None:
    """Run the query until all is done."""
    folder, port, files = Path(arguments[0]), int(arguments[1]), int(arguments[4])
    timeout_s = float(arguments[3]) or None
    spark = _session(folder, arguments[2])
    query = _start(spark, folder, port, timeout_s, arguments[5])
    if timeout_s is None:
        query.awaitTermination()
    else:
        _await_nothing_held(spark, query, files)
    for progress in query.recentProgress:
        report = aspark.batch_report(progress)
        if report is not None:
            tell(port, {"batch": report.batch_id, "cached": report.cached, "rebuilt": report.rebuilt})
    spark.stop()


def _session(folder: Path, master: str) -> SparkSession:
    builder = (
        SparkSession.builder.master(master)
        .appName("acker under kills")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "512m")
        .config("spark.default.parallelism", str(PARTITIONS))
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config(PROVIDER_CONF, PROVIDER)
    )
    for name in ("PYTHONPATH", "PYSPARK_PYTHON"):
        builder = builder.config(f"spark.executorEnv.{name}", os.environ[name])
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _start(spark: SparkSession, folder: Path, port: int, timeout_s: float | None, checkpoint: str) -> StreamingQuery:
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "messages"))
    messages = source.mapInArrow(functools.partial(pass_on, port), SCHEMA)
    with mock.patch.object(operator, "AckerProcessor", functools.partial(WatchedProcessor, port)):
        done = aspark.completions(messages, shards=SHARDS, timeout=timeout_s)
    kept = folder / "completions"
    kept.mkdir(exist_ok=True)

    def keep(completions: Completions, batch_id: int) -> None:
        reach(port, SINK, batch_id)
        write(completions, kept, batch_id)
        reach(port, KEPT, batch_id)

    writer = done.writeStream.foreachBatch(aspark.for_each_completion(keep, empty=True))
    writer = writer.option("checkpointLocation", checkpoint)
    trigger: dict[str, Any] = {"availableNow": True} if timeout_s is None else {"processingTime": "0 seconds"}
    return writer.trigger(**trigger).start()


def write(completions: Completions, folder: Path, batch_id: int) -> None:
    """Keep what a micro-batch brought, whole or not at all, beside what earlier tries of the same one did."""
    path = folder / f"{batch_id}.{uuid.uuid4().hex}.npz"
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as stream:
        np.savez(stream, **{name: getattr(completions, name) for name in COMPLETION_SCHEMA.names})
    unfinished.rename(path)


class _Wake(StreamingQueryListener):
    """Sets an event after each micro-batch, and when the query ends."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's names.
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.event.set()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.event.set()


def _await_nothing_held(spark: SparkSession, query: StreamingQuery, files: int) -> None:
    """Wait until every file was read and no tree is held, and stop the query."""
    wake = _Wake()
    spark.streams.addListener(wake)
    while query.isActive and not _is_done(query.lastProgress, files):
        wake.event.wait()
        wake.event.clear()
    query.stop()
    query.awaitTermination()  # raises what the query ended with


def _is_done(progress: StreamingQueryProgress | None, files: int) -> bool:
    report = aspark.batch_report(progress)
    if progress is None or report is None or report.pending != 0:
        return False
    # Offsets of a folder count its micro-batches.
    (source,) = (source for source in progress["sources"] if source["description"].startswith("FileStreamSource"))
    return bool(json.loads(source["endOffset"])["logOffset"] == files - 1)


if __name__ == "__main__":
    main(sys.argv[1:])
