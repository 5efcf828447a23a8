"""Where the tuples of open trees are on Spark, for the live page: they wait, or are in a micro-batch, or have ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from acker.local.page.holders import find_outcomes
from acker.observe.calls import UserCall
from acker.observe.durations import format_duration
from acker.observe.holders import Holder
from acker.spark.topologies.batch_progress import BatchProgress
from acker.spark.topologies.spark_executor import DriverExecutors
from acker.spark.topologies.tuple_blocks import roots_of

_NS_PER_MS = 1_000_000


def find_on_spark(
    executors: DriverExecutors,
    progress: BatchProgress,
    roots: Collection[int],
    calls: Mapping[int, UserCall],
    now_ns: int,
) -> dict[int, list[Holder]]:
    """Return where the tuples of open trees are, by their root ids. Any thread may call it."""
    found: dict[int, list[Holder]] = {root_id: [] for root_id in roots}
    running = progress.running
    for report in progress.reports():
        call = report.call()
        if call is not None and report.component is not None and report.root_id in found:
            line = None if call.line is None else call.line.short
            found[report.root_id].append(Holder(report.component, report.task, "process", call.for_ms, line=line))
    if running is not None:
        for_ms = (now_ns - running.since_ns) // _NS_PER_MS
        stages = "".join(f"; {stage}" for stage in progress.active_stages())
        text = f"has run for {format_duration(for_ms)}{stages}"
        batch = Holder(f"micro-batch {running.number}", None, "process", for_ms, text)
        for root_id in found.keys() & running.roots:
            if not found[root_id]:
                found[root_id].append(batch)
    components = {task.collector.task: task.collector.component for task in executors.spark.tasks}
    for task, rows in executors.spark.inbox.chunks():
        waiting = Holder(components[task], task, "queue", None, "waits for the next micro-batch")
        for root_id in found.keys() & roots_of(rows):
            if waiting not in found[root_id]:
                found[root_id].append(waiting)
    find_outcomes(executors, found, calls, now_ns)
    return found
