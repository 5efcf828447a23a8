"""Where the tuples of open trees are on Spark, for the live page: they wait, or are in a micro-batch, or have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acker.local.page.holders import find_outcomes
from acker.observe.durations import format_duration
from acker.observe.holders import Holder
from acker.spark.topologies.spark_executor import DriverExecutors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A micro-batch that runs.

    Attributes
    ----------
    number : int
    since_ns : int
        By the runtime's clock.
    roots : collection of int
        The root ids of the tuples that spouts on the driver have emitted.
    """

    number: int
    since_ns: int
    roots: Collection[int]


def find_on_spark(
    executors: DriverExecutors,
    running: RunningBatch | None,
    spark: SparkSession,
    roots: Collection[int],
    now_ns: int,
) -> dict[int, list[Holder]]:
    """Return where the tuples of open trees are, by their root ids. Any thread may call it."""
    found: dict[int, list[Holder]] = {root_id: [] for root_id in roots}
    if running is not None:
        for_ms = (now_ns - running.since_ns) // _NS_PER_MS
        text = f"has run for {format_duration(for_ms)}{_progress(spark)}"
        batch = Holder(f"micro-batch {running.number}", None, "process", for_ms, text)
        for root_id in found.keys() & running.roots:
            found[root_id].append(batch)
    components = {task.collector.task: task.collector.component for task in executors.spark.tasks}
    for task, tuples in executors.spark.inbox.chunks():
        waiting = Holder(components[task], task, "queue", None, "waits for the next micro-batch")
        for tup in tuples:
            for root_id in found.keys() & (tup._ids or {}).keys():
                if waiting not in found[root_id]:
                    found[root_id].append(waiting)
    find_outcomes(executors, found, now_ns)
    return found


def _progress(spark: SparkSession) -> str:
    """Return which stage Spark computes; nothing between two stages, and when Spark has stopped."""
    with contextlib.suppress(Exception):
        tracker = spark.sparkContext.statusTracker()
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                return f"; of Spark's stage {stage}, {info.numCompletedTasks} of {info.numTasks} tasks are done"
    return ""
