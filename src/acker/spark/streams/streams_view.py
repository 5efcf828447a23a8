"""Streaming ackers on the live page: micro-batches, pending trees, the oldest, shards, the size of state."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from acker.observe.calls import UserCall
from acker.observe.failures import FailureLog
from acker.observe.headline import LastBatch, RunningJob, Situation, headline
from acker.observe.metric_names import NamedMetric
from acker.observe.readings import FailureRows, chart, reading, table, tile
from acker.spark.streams.reports import MicroBatchReport
from acker.spark.task_reports import TaskReport
from acker.spark.task_tables import tasks_in, tasks_table
from acker.ui.actions import log_level, set_log_level
from acker.ui.source import Action

_TOTALS: Final = ("messages", "acked", "failed", "timed_out", "rejected")
_NOT_ACKED: Final = ("failed", "timed_out", "rejected")
# How many micro-batches and shards are listed.
BATCHES_MAX: Final = 50
_SHARDS_MAX: Final = 200
# The classes of `acker._engine.open_trees.AGES_MS`.
_AGES: Final = ("Below 1 s", "10 s", "1 min", "10 min", "1 h", "6 h", "1 day", "Older")


class ShardSkew(NamedTuple):
    """How the native work of a micro-batch is spread over its shards: the median, and the slowest one."""

    median_ms: float
    slowest_ms: float
    shard: int

    @classmethod
    def of(cls, reports: Sequence[MicroBatchReport]) -> ShardSkew | None:
        """Return the skew of some shards; None without any."""
        if not reports:
            return None
        slowest = max(reports, key=lambda report: report.native_ns)
        median_ns = statistics.median(report.native_ns for report in reports)
        return cls(median_ns / 1e6, slowest.native_ns / 1e6, slowest.shard)


class SeenMicroBatch(NamedTuple):
    """One micro-batch of one acker, as its listener was told.

    Attributes
    ----------
    at_ms : int
        Since 1970, UTC.
    query, acker : str
    batch_id : int
    report : MicroBatchReport
        The sum over its shards.
    duration_ms : int
    commit_ms : int or None
        How long all tasks together took to commit Spark's state.
    skew : ShardSkew or None
    """

    at_ms: int
    query: str
    acker: str
    batch_id: int
    report: MicroBatchReport
    duration_ms: int
    commit_ms: int | None = None
    skew: ShardSkew | None = None


class OpenTreeAges(NamedTuple):
    """The open trees of an acker of a query by age, as `ShardDetails.ages`, of all shards together."""

    query: str
    acker: str
    counts: Sequence[int]


@dataclass(frozen=True)
class StreamFigures:
    """The figures of a listener at one moment.

    Attributes
    ----------
    sums : dict of str to int
        Counts of all ackers since the listener was added, by the fields of `MicroBatchReport`.
    shards : list of (query, acker, report)
        Those of the queries that run.
    batches : list of SeenMicroBatch
        The last ones, newest first.
    metrics : dict
        As `AckerListener.metrics`.
    ages : list of OpenTreeAges
    """

    sums: Mapping[str, int]
    shards: list[tuple[str, str, MicroBatchReport]]
    batches: list[SeenMicroBatch]
    metrics: Mapping[str, list[tuple[dict[str, str], float]]]
    ages: list[OpenTreeAges] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the metrics as values for JSON."""
        found = self.metrics.items()
        return {name: [{**attributes, "value": value} for attributes, value in points] for name, points in found}


class StreamsView:
    """The live page's source for the streaming ackers of a session.

    Parameters
    ----------
    read : callable
        Returns the figures of this moment.
    specs : sequence of StreamMetric
        The table of metrics.
    failures : FailureLog
        The last trees that were not acked; their component is the query, with its acker.
    reports : callable or None
        Returns the reports of the tasks of pipelines that work for long. None: workers cannot reach this program.
    job : callable
        Takes where these tasks are, and returns the micro-batch that has run longest, or None.
    """

    name = "Streaming ackers"

    def __init__(
        self,
        read: Callable[[], StreamFigures],
        specs: Sequence[NamedMetric],
        failures: FailureLog,
        reports: Callable[[], Sequence[TaskReport]] | None = None,
        job: Callable[[str], RunningJob | None] = lambda _: None,
    ) -> None:
        self._reports = reports
        self._job = job
        self.actions: Mapping[str, Action] = {"log-level": set_log_level}
        self.stats = read
        self.is_closed = False
        self._specs = specs
        self._failures = FailureRows(failures, values=False)
        self._began = time.monotonic()

    def find(self, text: str) -> list[dict[str, Any]]:
        """Return the last failures of a message; open trees lie in Spark's state: `acker state inspect` reads it."""
        return self._failures.find(text)

    def metrics(self) -> bytes:
        """Return the figures in Prometheus's text format."""
        from acker.observe.prometheus import exposition_of

        return exposition_of(self._specs, self.stats().metrics)

    def view(self) -> dict[str, Any]:
        """Return what the page shows now."""
        figures = self.stats()
        held = [report for _, _, report in figures.shards]
        oldest_ms = max((report.oldest_age_ms or 0 for report in held if report.pending), default=None)
        gauges = {name: sum(getattr(report, name) for report in held) for name in ("pending", "open", "state_bytes")}
        totals = {**{name: figures.sums[name] for name in _TOTALS}, **gauges, "oldest_age_ms": oldest_ms}
        told = None if self._reports is None else self._reports()
        reports = told or []
        job = self._job(tasks_in(reports))
        state = "stopped" if self.is_closed else "running" if figures.batches or reports or job is not None else "new"
        return reading(
            "stream",
            self.name,
            state,
            headline(_situation(state, figures, totals, _hung(reports), job)),
            uptime_secs=round(time.monotonic() - self._began, 3),
            totals=totals,
            tiles=_tiles(figures, totals),
            charts=_charts(figures, totals),
            failures=self._failures.failures(),
            events=[],
            tables=[_batches_table(figures), _ages_table(figures), _shards_table(figures), tasks_table(told)],
            actions=list(self.actions),
            log_level=log_level(),
        )


def _hung(reports: Sequence[TaskReport]) -> list[UserCall]:
    calls = [each.call() for each in reports if each.hangs]
    return [call for call in calls if call is not None]


def _situation(
    state: str, figures: StreamFigures, totals: Mapping[str, Any], hung: Sequence[UserCall], job: RunningJob | None
) -> Situation:
    if state == "stopped":
        return Situation(state, idle="The listener is closed.")
    if hung or (job is not None and job.is_long):
        return Situation(state, hung=hung, job=job)
    if not figures.batches:
        return Situation(state, idle="Waiting for the first micro-batch of a query with an acker.")
    if not figures.shards:
        return Situation(state, idle="No query runs.")
    last = figures.batches[0]
    batch = LastBatch(last.query, last.report.acked, sum(getattr(last.report, name) for name in _NOT_ACKED))
    return Situation(state, batch=batch, pending=totals["pending"], oldest_ms=totals["oldest_age_ms"])


def _tiles(figures: StreamFigures, totals: Mapping[str, Any]) -> list[dict[str, Any]]:
    lost = sum(totals[name] for name in _NOT_ACKED)
    told = ", ".join(f"{totals[name]:,} {name.replace('_', ' ')}" for name in _NOT_ACKED if totals[name])
    last = figures.batches[0] if figures.batches else None
    return [
        tile("Acked", totals["acked"], more=f"of {totals['messages']:,} messages"),
        tile("Pending", totals["pending"], more=f"{totals['open']:,} have begun"),
        tile("Oldest", totals["oldest_age_ms"], "ms", "at its last rotation"),
        tile("Not acked", lost, more=told or "none failed", is_bad=True),
        tile("State", totals["state_bytes"], "By", "in Spark's state store"),
        tile(
            "Last micro-batch",
            None if last is None else last.duration_ms,
            "ms",
            "none yet" if last is None else f"number {last.batch_id} of {last.query}",
        ),
    ]


def _charts(figures: StreamFigures, totals: Mapping[str, Any]) -> list[dict[str, Any]]:
    last = figures.batches[0] if figures.batches else None
    a_second = None if last is None or not last.duration_ms else 1_000 * last.report.acked / last.duration_ms
    return [
        chart("throughput", "Throughput of the last micro-batch", "trees/s", acked=a_second),
        chart("pending", "Pending", "trees", pending=totals["pending"]),
        chart("oldest", "Oldest", "ms", age=totals["oldest_age_ms"]),
        chart("duration", "Time of a micro-batch", "ms", time=None if last is None else last.duration_ms),
        chart("state", "State", "By", size=totals["state_bytes"]),
    ]


def _batches_table(figures: StreamFigures) -> dict[str, Any]:
    counts = [(name, "") for name in ("Messages", "Acked", "Failed", "Timed out", "Rejected", "Pending")]
    rows = [
        [
            f"{each.query} {each.batch_id}" if each.acker == "acker" else f"{each.query} {each.acker} {each.batch_id}",
            each.at_ms,
            *(getattr(each.report, name) for name in (*_TOTALS, "pending")),
            each.duration_ms,
            each.commit_ms,
            *((None, None, None) if each.skew is None else each.skew),
        ]
        for each in figures.batches
    ]
    columns = [("Micro-batch", None), ("Time", "at"), *counts, ("Took", "ms"), ("Commit of the state", "ms")]
    columns += [("Median of native work", "ms"), ("Slowest", "ms"), ("In shard", "")]
    empty = "None yet. A row comes when Spark has finished a micro-batch of a query with an acker."
    return table("batches", "Micro-batches", columns, rows, empty)


def _ages_table(figures: StreamFigures) -> dict[str, Any]:
    rows = [[f"{query} {acker}", *counts] for query, acker, counts in figures.ages]
    classes = [(name, "") for name in _AGES]
    empty = "None yet: a rotation counts them."
    return table("ages", "Open trees by age, at the last rotation", [("Acker", None), *classes], rows, empty)


def _shards_table(figures: StreamFigures) -> dict[str, Any]:
    names = ("pending", "open", "oldest_age_ms", "state_bytes", "chunks", "table_bytes")
    rows = [
        [f"{query} {acker} {report.shard}", *(getattr(report, name) for name in names)]
        for query, acker, report in figures.shards[:_SHARDS_MAX]
    ]
    columns = [
        ("Shard", None),
        ("Pending", ""),
        ("Begun", ""),
        ("Oldest", "ms"),
        ("State", "By"),
        ("Chunks", ""),
        ("Table", "By"),
    ]
    return table("shards", "Shards", columns, rows, "No query with an acker runs.")
