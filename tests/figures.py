"""Figures of a topology, made up: what exporters, tables and reports show."""

from __future__ import annotations

from dataclasses import replace

from acker._engine.protocol import COUNTERS, Stats
from acker.observe.latencies import LatencyRecorder
from acker.observe.run_report import RunOutcome, RunReport
from acker.observe.stats import RuntimeStats, TaskStats


def latency_snapshot(*latencies_ns: int):
    recorder = LatencyRecorder()
    for ns in latencies_ns:
        recorder.record(ns)
    return recorder.snapshot()


SPOUT = TaskStats(
    component="lines",
    kind="spout",
    task=1,
    executor="lines-1",
    emitted={"default": 10, "errors": 1},
    transferred=10,
    executed=99,
    acked=6,
    failed=1,
    timed_out=2,
    pending=1,
    oldest_age_ms=2_500,
    capacity=0.25,
    complete_latency=latency_snapshot(5_000_000, 7_000_000),
    user={"files": 3},
    calls_running=8,
    calls_over=6,
)
BOLT = TaskStats(
    component="split",
    kind="bolt",
    task=2,
    executor="split-1",
    emitted={"default": 50},
    executed=10,
    acked=9,
    failed=1,
    queue=4,
    queue_capacity=100,
    capacity=0.5,
    execute_latency=latency_snapshot(1_000, 2_000),
)
ACKER = TaskStats(
    component="__acker", kind="acker", task=3, queue=2, queue_capacity=50, acker=Stats(*range(len(COUNTERS) + 2))
)


class Runtime:
    """Has stats(), and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.value = RuntimeStats(
            topology="WordCount", state="running", uptime_secs=2.0, restarts=1, tasks=(SPOUT, BOLT, ACKER)
        )

    def stats(self) -> RuntimeStats:
        self.asked += 1
        return self.value


def clean(report: RunReport) -> RunReport:
    """Return a report of the same run without failures."""
    spout = replace(report.stats.tasks[0], failed=0, timed_out=0)
    return replace(report, stats=replace(report.stats, tasks=(spout, *report.stats.tasks[1:])))


def ending(report: RunReport, outcome: RunOutcome, undelivered: int = 0, **counts: int) -> RunReport:
    """Return a report that ends in another way, with other counts of its spout."""
    report = clean(report)
    spout = replace(report.stats.tasks[0], **counts)
    stats = replace(report.stats, tasks=(spout, *report.stats.tasks[1:]))
    return replace(report, outcome=outcome, undelivered=undelivered, stats=stats)
