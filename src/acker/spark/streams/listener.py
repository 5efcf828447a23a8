"""Readers of the reports of streaming ackers: totals of a micro-batch, and a listener with metrics and a log line."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from acker._engine.protocol import COUNTERS, Outcome
from acker.observe.failures import FailureLog
from acker.observe.reasons import Reason, ReasonKind
from acker.spark.options import DEFAULT_NAME
from acker.spark.report_receiver import ReportReceiver
from acker.spark.session_checks import is_classic
from acker.spark.streams.reports import AGES, FAILURES, SHARDS, SKIPPED, SKIPPED_SUFFIX, MicroBatchReport, ShardFailure
from acker.spark.streams.stream_jobs import StreamJobs
from acker.spark.streams.streams_view import (
    BATCHES_MAX,
    OpenTreeAges,
    SeenMicroBatch,
    ShardSkew,
    StreamFigures,
    StreamsView,
)
from acker.ui.opening import open_page
from acker.ui.options import PageChoice, live_page_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from acker.ui.server import LiveServer

_log: Final = logging.getLogger("acker.spark")

# In place of a text id that is not known.
NO_ID: Final = "(no id)"
_KINDS: Final = {
    Outcome.FAILED: ReasonKind.FAILED,
    Outcome.TIMED_OUT: ReasonKind.TIMED_OUT,
    Outcome.REJECTED: ReasonKind.REJECTED,
}
# Fields that are no counts, and so are not summed.
_ALIKE: Final = ("batch_id", "shard", "shards")
# Fields that say what a shard holds, also one to which nothing came.
_HELD: Final = ("pending", "open", "oldest_age_ms", "state_bytes", "chunks", "table_bytes")
_GREATEST: Final = ("oldest_age_ms",)
_LEAST: Final = ("time_ms",)


def batch_report(progress: StreamingQueryProgress | None, name: str = DEFAULT_NAME) -> MicroBatchReport | None:
    """Return the report of an acker for one micro-batch: the sum over the shards that received anything.

    Parameters
    ----------
    progress : StreamingQueryProgress or None
        `query.lastProgress`, or an item of `query.recentProgress`.
    name : str
        The name of the acker's observation.

    Returns
    -------
    MicroBatchReport or None
        See `sum_reports`; what is held by all shards together is None if one of them got nothing, and so has not said
        what it holds. None instead of a report if the progress is of no micro-batch, or of no such acker.

    Examples
    --------
    >>> import acker.spark as aspark
    >>> aspark.batch_report(query.lastProgress).acked                                                   # doctest: +SKIP
    1200
    """
    reports = shard_reports(progress).get(name)
    if not reports:
        return None
    whole = sum_reports(reports)
    unknown: dict[str, Any] = dict.fromkeys(() if len(reports) == whole.shards else _HELD)
    return whole._replace(**unknown)


def shard_reports(progress: StreamingQueryProgress | None) -> dict[str, list[MicroBatchReport]]:
    """Return the reports of all shards of all ackers of a query for one micro-batch.

    Parameters
    ----------
    progress : StreamingQueryProgress or None
        `query.lastProgress`, an item of `query.recentProgress`, or the progress of a listener's event.

    Returns
    -------
    dict of str to list of MicroBatchReport
        By the name of the observation ("acker" unless `name` was given), in the order of the shards, without those that
        received nothing. Empty if the progress is of no micro-batch, or of no acker.
    """
    return {
        name: [MicroBatchReport(*(row[field] for field in MicroBatchReport._fields)) for row in rows]
        for name, rows in _rows_of_shards(progress).items()
    }


def _rows_of_shards(progress: StreamingQueryProgress | None) -> dict[str, list[Mapping[str, Any]]]:
    """Return what the shards have told, by the name of the observation, in their order."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for name, value in ((progress and progress["observedMetrics"]) or {}).items():
        rows = _fields_of(value).get(SHARDS)
        if isinstance(rows, list):
            fields = [_fields_of(row) for row in rows]
            if all(set(MicroBatchReport._fields) <= set(each) for each in fields):
                # By shard: an action that evaluates a micro-batch twice makes Spark observe it twice.
                by_shard = {each["shard"]: each for each in fields}
                found[name] = [by_shard[shard] for shard in sorted(by_shard)]
    return found


def shard_failures(progress: StreamingQueryProgress | None, name: str = DEFAULT_NAME) -> list[ShardFailure]:
    """Return the last trees that were not acked in a micro-batch, for whoever looks on: some of each shard."""
    rows = (row.get(FAILURES) or () for row in _rows_of_shards(progress).get(name, ()))
    return [ShardFailure(**_fields_of(each)) for of_shard in rows for each in of_shard]


def shard_ages(progress: StreamingQueryProgress | None, name: str = DEFAULT_NAME) -> dict[int, list[int]]:
    """Return the open trees by age of the shards that had a rotation in a micro-batch, as `ShardDetails.ages`."""
    rows = _rows_of_shards(progress).get(name, ())
    return {row["shard"]: list(row[AGES]) for row in rows if row.get(AGES)}


def skipped_files(progress: StreamingQueryProgress | None, name: str = DEFAULT_NAME) -> list[str]:
    """Return the files that a micro-batch skipped: see ``skip_foreign_files`` of `completions_from_files`.

    Parameters
    ----------
    progress : StreamingQueryProgress or None
        `query.lastProgress`, an item of `query.recentProgress`, or the progress of a listener's event.
    name : str
        The name of the acker's observation.

    Returns
    -------
    list of str
        One text for each file, its path first, then what is wrong with it.
    """
    observed = (progress and progress["observedMetrics"]) or {}
    return sorted(_fields_of(observed.get(f"{name}{SKIPPED_SUFFIX}")).get(SKIPPED) or [])


def _fields_of(row: Any) -> Mapping[str, Any]:
    """Return a row as a mapping: listeners have a Row, `lastProgress` a dict, and Spark Connect two lists."""
    fields: Any = row.asDict() if hasattr(row, "asDict") else row
    if not isinstance(fields, Mapping):
        return {}
    if set(fields) == {"values", "schema"}:
        return dict(zip((each["name"] for each in fields["schema"]["fields"]), fields["values"], strict=True))
    return fields


def sum_reports(reports: list[MicroBatchReport]) -> MicroBatchReport:
    """Return the reports of several shards as one.

    Returns
    -------
    MicroBatchReport
        Sums of all fields over these reports, except: the greatest `oldest_age_ms`, the least `time_ms`, the `batch_id`
        and `shards` of the latest report, and -1 as `shard`.

    Raises
    ------
    ValueError
        `reports` is empty.
    """
    latest = max(reports, key=lambda report: report.batch_id)
    whole = {"batch_id": latest.batch_id, "shard": -1, "shards": latest.shards}
    for field in MicroBatchReport._fields:
        if field not in _ALIKE:
            join = max if field in _GREATEST else min if field in _LEAST else sum
            whole[field] = join(getattr(report, field) for report in reports)
    return MicroBatchReport(**whole)


class StreamMetric(NamedTuple):
    """A metric: its name, kind, unit and meaning, and the field of `MicroBatchReport` that it shows."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    text: str
    field: str
    per: int = 1  # units of the field in one unit of the metric

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of the attributes of its points."""
        return ("query", "acker")


_TREES: Final = {
    "tracked": "trees begun",
    "acked": "trees acked",
    "failed": "trees failed",
    "timed_out": "trees timed out",
    "rejected": "trees refused because of high_water",
    "duplicates": "trees begun again while open; ignored",
    "unknown": "messages about unknown trees; ignored",
    "orphans": "trees that got messages, but never a TRACK",
    "dropped": "messages dropped because of high_water",
    "resets": "timeouts that were reset",
    "empty": "trees acked at once, because the spout's tuple had no receiver",
}

# The local runtime has the same names for the same figures: see docs/observability.md.
METRICS: Final[tuple[StreamMetric, ...]] = (
    StreamMetric("acker.messages.received", "counter", "{message}", "messages that came in", "messages"),
    StreamMetric("acker.messages.acked", "counter", "{message}", "trees acked", "acked"),
    StreamMetric("acker.messages.failed", "counter", "{message}", "trees failed", "failed"),
    StreamMetric("acker.messages.timed_out", "counter", "{message}", "trees timed out", "timed_out"),
    StreamMetric("acker.messages.rejected", "counter", "{message}", "trees refused because of high_water", "rejected"),
    StreamMetric("acker.messages.late", "counter", "{message}", "messages about unknown trees", "unknown"),
    StreamMetric("acker.messages.duplicates", "counter", "{message}", "trees begun again while open", "duplicates"),
    StreamMetric("acker.messages.pending", "gauge", "{message}", "trees open", "open"),
    StreamMetric("acker.messages.oldest_age", "gauge", "s", "age of the oldest entry", "oldest_age_ms", 1_000),
    *(StreamMetric(f"acker.trees.{field}", "counter", "{tree}", _TREES[field], field) for field in COUNTERS),
    StreamMetric("acker.trees.open", "gauge", "{tree}", "open trees", "open"),
    StreamMetric("acker.trees.pending", "gauge", "{tree}", "entries, including those without a TRACK", "pending"),
    StreamMetric("acker.state.size", "gauge", "By", "live bytes of the log in Spark's state store", "state_bytes"),
    StreamMetric("acker.state.chunks", "gauge", "{chunk}", "chunks of that log", "chunks"),
    StreamMetric("acker.state.written", "counter", "By", "bytes added to the log", "bytes_written"),
    StreamMetric("acker.state.cleaned", "counter", "{chunk}", "old chunks removed", "chunks_cleaned"),
    StreamMetric("acker.table.size", "gauge", "By", "memory of the native tables", "table_bytes"),
    StreamMetric("acker.table.cached", "counter", "{table}", "native tables found in the cache", "cached"),
    StreamMetric("acker.table.rebuilt", "counter", "{table}", "native tables rebuilt from the state", "rebuilt"),
    StreamMetric("acker.files.skipped", "counter", "{file}", "files of another format that were skipped", SKIPPED),
    StreamMetric("acker.native.duration", "counter", "s", "time in native code", "native_ns", 10**9),
)


class _AckerTotals:
    """The counts of one acker of one query."""

    def __init__(self) -> None:
        self.batch: tuple[str, int] = ("", -1)  # run and batch id of the latest
        self.sums = dict.fromkeys((*MicroBatchReport._fields, SKIPPED), 0)
        self.latest: dict[int, MicroBatchReport] = {}  # by shard: one that receives nothing keeps its state
        self.ages: dict[int, list[int]] = {}  # by shard, as of its last rotation

    def take(self, run_id: str, batch_id: int, reports: list[MicroBatchReport], skipped: int) -> bool:
        """Add a micro-batch, unless it was added before; return whether it was."""
        if self.batch[0] == run_id and batch_id <= self.batch[1]:
            return False
        self.batch = (run_id, batch_id)
        self.latest.update((report.shard, report) for report in reports)
        for report in reports:
            for field, value in report._asdict().items():
                self.sums[field] += value
        self.sums[SKIPPED] += skipped
        return True


class AckerListener(StreamingQueryListener):
    """Counts the work of the ackers in all streaming queries of a session, and logs each micro-batch at INFO.

    Counters include the micro-batches since this listener was added, and continue when a query of the same name starts
    again. Gauges end with the query. Spark calls listeners a moment after the micro-batch, from a thread of its own;
    no error is raised into it.

    Parameters
    ----------
    ui : LivePage, bool, int or str, optional
        Show a live page until `close`: True, a port, "HOST:PORT" or an `acker.ui.LivePage`. Its URL is printed.

    Attributes
    ----------
    page : LiveServer or None

    Examples
    --------
    >>> import acker.spark as aspark
    >>> listener = aspark.AckerListener()
    >>> spark.streams.addListener(listener)                                                             # doctest: +SKIP
    >>> listener.metrics()["acker.messages.acked"]                                                      # doctest: +SKIP
    [({'query': 'orders', 'acker': 'acker'}, 1200)]
    """

    def __init__(self, *, ui: PageChoice = None) -> None:
        self._lock = threading.Lock()
        self._ackers: dict[tuple[str, str], _AckerTotals] = {}
        self._batches: deque[SeenMicroBatch] = deque(maxlen=BATCHES_MAX)
        self._failures = FailureLog()
        options, session = live_page_of(ui), SparkSession.getActiveSession()
        tracker, reports = None, None
        if options is not None and session is not None and is_classic(session):
            tracker = session.sparkContext.statusTracker()
            reports = ReportReceiver.of_pipelines(session).reports
        self._jobs = StreamJobs(tracker)
        self._view = StreamsView(self._figures, METRICS, self._failures, reports, self._jobs.longest)
        self.page: LiveServer | None = None if options is None else open_page(self._view, options)

    def close(self) -> None:
        """End the live page, if there is one. The listener counts on."""
        self._view.is_closed = True
        if self.page is not None:
            self.page.close()

    def _figures(self) -> StreamFigures:
        with self._lock:
            ackers = self._ackers.items()
            sums = {name: sum(acker.sums[name] for _, acker in ackers) for name in MicroBatchReport._fields}
            shards = [(query, name, report) for (query, name), acker in ackers for report in acker.latest.values()]
            batches = list(reversed(self._batches))
            ages = [
                OpenTreeAges(query, name, [sum(column) for column in zip(*acker.ages.values(), strict=True)])
                for (query, name), acker in ackers
                if acker.ages
            ]
        return StreamFigures(sums, shards, batches, self.metrics(), ages)

    @property
    def metric_specs(self) -> tuple[StreamMetric, ...]:
        """The table of metrics, for exporters: `acker.local.prometheus` and `acker.local.otel` take a listener too."""
        return METRICS

    def metrics(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return the points of all metrics by name, as (attributes, value); `metric_specs` describes each metric.

        Attributes are query (its name, or its id if it has none) and acker (the name of the observation).
        """
        with self._lock:
            found: dict[str, list[tuple[dict[str, str], float]]] = {metric.name: [] for metric in METRICS}
            for (query, name), acker in self._ackers.items():
                held = sum_reports(list(acker.latest.values())) if acker.latest else None
                for metric in METRICS:
                    value = _value(metric, acker, held)
                    if value is not None:
                        found[metric.name].append(({"query": query, "acker": name}, value))
        return found

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's name.
        """Note that the query runs."""
        try:
            self._jobs.begin(str(event.runId), event.name or str(event.id))
        except Exception:  # noqa: BLE001  A listener must not end a query.
            _log.exception("the start of a query was not noted")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  Spark's name.
        """Note that the query has nothing to do."""
        try:
            self._jobs.rest(str(event.runId))
        except Exception:  # noqa: BLE001  A listener must not end a query.
            _log.exception("the rest of a query was not noted")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  Spark's name.
        """Count and log a micro-batch."""
        try:
            self._jobs.rest(str(event.progress["runId"]), event.progress["batchDuration"])
            for line in self._take(event.progress):
                _log.info("%s", line)
        except Exception:  # noqa: BLE001  A listener must not end a query.
            _log.exception("a micro-batch was not counted")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  Spark's name.
        """Drop the gauges of the query; its counters stay."""
        try:
            self._jobs.end(str(event.runId))
            with self._lock:
                for acker in self._ackers.values():
                    if acker.batch[0] == str(event.runId):
                        acker.latest.clear()
                        acker.ages.clear()
        except Exception:  # noqa: BLE001  A listener must not end a query.
            _log.exception("the end of a query was not noted")

    def _record(self, spout: str, failures: list[ShardFailure]) -> None:
        for each in failures:
            kind = _KINDS[Outcome(each.outcome)]
            reason = Reason(kind, each.component, None, each.reason, each.attempt)
            tup_id = NO_ID if each.message_id is None else each.message_id
            self._failures.record(spout, each.task_id, tup_id, reason, each.elapsed_ms, each.root_id)

    def _take(self, progress: StreamingQueryProgress) -> Iterator[str]:
        query = progress["name"] or progress["id"]
        for name, reports in shard_reports(progress).items():
            if not reports:
                continue
            skipped = skipped_files(progress, name)
            with self._lock:
                acker = self._ackers.setdefault((query, name), _AckerTotals())
                if not acker.take(progress["runId"], progress["batchId"], reports, len(skipped)):
                    continue
                acker.ages.update(shard_ages(progress, name))
                held = sum_reports(list(acker.latest.values()))
            self._record(query if name == DEFAULT_NAME else f"{query} {name}", shard_failures(progress, name))
            for text in skipped:
                _log.warning("query=%s acker=%s batch=%s skipped a file: %s", query, name, progress["batchId"], text)
            now = sum_reports(reports)
            duration_ms = int(progress["batchDuration"])
            with self._lock:
                at_ms = time.time_ns() // 1_000_000
                whole = now._replace(pending=held.pending)
                seen = SeenMicroBatch(at_ms, query, name, progress["batchId"], whole, duration_ms)
                self._batches.append(seen._replace(commit_ms=_commit_ms(progress), skew=ShardSkew.of(reports)))
            yield (
                f"query={query} acker={name} batch={progress['batchId']} messages={now.messages} acked={now.acked}"
                f" failed={now.failed} timed_out={now.timed_out} rejected={now.rejected} pending={held.pending}"
                f" oldest_age_ms={held.oldest_age_ms} state_bytes={held.state_bytes} shards={len(reports)}/{now.shards}"
                f" cached={now.cached} rebuilt={now.rebuilt} chunks_cleaned={now.chunks_cleaned}"
                f" duration_ms={progress['batchDuration']}"
            )


def _commit_ms(progress: StreamingQueryProgress) -> int | None:
    """Return how long all tasks together took to commit Spark's state; None if there is none."""
    times = [_fields_of(each).get("commitTimeMs") for each in progress.get("stateOperators") or ()]
    known = [int(time_ms) for time_ms in times if time_ms is not None]
    return sum(known) if known else None


def _value(metric: StreamMetric, acker: _AckerTotals, held: MicroBatchReport | None) -> float | None:
    if metric.kind == "counter":
        value = acker.sums[metric.field]
    elif held is None:
        return None
    else:
        if metric.field == "oldest_age_ms" and not held.pending:
            return None
        value = getattr(held, metric.field)
    return value if metric.per == 1 else value / metric.per
