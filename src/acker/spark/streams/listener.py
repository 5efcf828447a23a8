"""What a streaming acker reports of each micro-batch, read from Spark: totals, metrics by name, a line in the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from acker._engine.protocol import COUNTERS
from acker.spark.streams.reports import DEFAULT_NAME, SHARDS, SKIPPED, SKIPPED_SUFFIX, Report

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

_log: Final = logging.getLogger("acker.spark")

# Fields of a Report that are no counts, and so have no sum.
_ALIKE: Final = ("batch_id", "shard", "shards")
_GREATEST: Final = ("oldest_age_ms",)
_LEAST: Final = ("time_ms",)


def batch_report(progress: StreamingQueryProgress | None, name: str = "acker") -> Report | None:
    """Return what an acker did in a micro-batch, all shards to which something came together, without a listener.

    Parameters
    ----------
    progress : StreamingQueryProgress or None
        `query.lastProgress`, or an item of `query.recentProgress`.
    name : str
        The name of the acker's observation.

    Returns
    -------
    Report or None
        As `total` has it. None where the progress is of no micro-batch, or of no such acker.

    Examples
    --------
    >>> import acker.spark as aspark
    >>> aspark.batch_report(query.lastProgress).acked                                                   # doctest: +SKIP
    1200
    """
    reports = shard_reports(progress).get(name)
    return total(reports) if reports else None


def shard_reports(progress: StreamingQueryProgress | None) -> dict[str, list[Report]]:
    """Return what the ackers of a query did in a micro-batch.

    Parameters
    ----------
    progress : StreamingQueryProgress or None
        `query.lastProgress`, an item of `query.recentProgress`, or what a listener is given.

    Returns
    -------
    dict of str to list of Report
        By the name of the acker's observation ("acker", unless the plan was given another), in the order of the shards.
        A shard to which nothing came is not in it. Empty where the progress is of no micro-batch, or of no acker.
    """
    found: dict[str, list[Report]] = {}
    for name, value in ((progress and progress["observedMetrics"]) or {}).items():
        rows = _fields_of(value).get(SHARDS)
        if isinstance(rows, list):
            fields = [_fields_of(row) for row in rows]
            if all(set(Report._fields) <= set(each) for each in fields):
                # By shard: an action that evaluates a micro-batch twice makes Spark observe it twice.
                reports = {each["shard"]: Report(*(each[field] for field in Report._fields)) for each in fields}
                found[name] = [reports[shard] for shard in sorted(reports)]
    return found


def skipped_files(progress: StreamingQueryProgress | None, name: str = DEFAULT_NAME) -> list[str]:
    """Return which files a micro-batch skipped: `completions_from_files` with ``skip_foreign_files=True``.

    Parameters
    ----------
    progress : StreamingQueryProgress or None
        `query.lastProgress`, an item of `query.recentProgress`, or what a listener is given.
    name : str
        The name of the acker's observation.

    Returns
    -------
    list of str
        What is wrong with each, a text that begins with its path.
    """
    observed = (progress and progress["observedMetrics"]) or {}
    return sorted(_fields_of(observed.get(f"{name}{SKIPPED_SUFFIX}")).get(SKIPPED) or [])


def _fields_of(row: Any) -> Mapping[str, Any]:
    """Return a row as a mapping: a Row from listeners, a dict from `lastProgress`, names apart with Spark Connect."""
    fields: Any = row.asDict() if hasattr(row, "asDict") else row
    if not isinstance(fields, Mapping):
        return {}
    if set(fields) == {"values", "schema"}:
        return dict(zip((each["name"] for each in fields["schema"]["fields"]), fields["values"], strict=True))
    return fields


def total(reports: list[Report]) -> Report:
    """Return the reports of shards as one.

    Returns
    -------
    Report
        Everything is the sum, but: `oldest_age_ms` is the greatest, `time_ms` the least; `shard` is -1, `batch_id` and
        `shards` are those of the latest.

    Raises
    ------
    ValueError
        There are none.
    """
    latest = max(reports, key=lambda report: report.batch_id)
    whole = {"batch_id": latest.batch_id, "shard": -1, "shards": latest.shards}
    for field in Report._fields:
        if field not in _ALIKE:
            join = max if field in _GREATEST else min if field in _LEAST else sum
            whole[field] = join(getattr(report, field) for report in reports)
    return Report(**whole)


class Metric(NamedTuple):
    """A row of the table: what a metric is called, and which field of a `Report` it is."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    text: str
    field: str
    per: int = 1  # how many of the field's units are one of the metric's


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

# Where the local runtime has the same figure it has the same name: see docs/observability.md.
METRICS: Final[tuple[Metric, ...]] = (
    Metric("acker.messages.received", "counter", "{message}", "messages that came in", "messages"),
    Metric("acker.messages.acked", "counter", "{message}", "trees acked", "acked"),
    Metric("acker.messages.failed", "counter", "{message}", "trees failed", "failed"),
    Metric("acker.messages.timed_out", "counter", "{message}", "trees timed out", "timed_out"),
    Metric("acker.messages.rejected", "counter", "{message}", "trees refused because of high_water", "rejected"),
    Metric("acker.messages.late", "counter", "{message}", "messages about unknown trees", "unknown"),
    Metric("acker.messages.duplicates", "counter", "{message}", "trees begun again while open", "duplicates"),
    Metric("acker.messages.pending", "gauge", "{message}", "trees open", "open"),
    Metric("acker.messages.oldest_age", "gauge", "s", "age of the oldest entry", "oldest_age_ms", 1_000),
    *(Metric(f"acker.trees.{field}", "counter", "{tree}", _TREES[field], field) for field in COUNTERS),
    Metric("acker.trees.open", "gauge", "{tree}", "open trees", "open"),
    Metric("acker.trees.pending", "gauge", "{tree}", "entries, including those without a TRACK", "pending"),
    Metric("acker.state.size", "gauge", "By", "live bytes of the log in Spark's state store", "state_bytes"),
    Metric("acker.state.chunks", "gauge", "{chunk}", "chunks of that log", "chunks"),
    Metric("acker.state.written", "counter", "By", "bytes added to the log", "bytes_written"),
    Metric("acker.state.cleaned", "counter", "{chunk}", "old chunks removed", "chunks_cleaned"),
    Metric("acker.table.size", "gauge", "By", "memory of the native tables", "table_bytes"),
    Metric("acker.table.resident", "counter", "{table}", "native tables found in a worker's memory", "resident"),
    Metric("acker.table.rebuilt", "counter", "{table}", "native tables rebuilt from the state", "rebuilt"),
    Metric("acker.files.skipped", "counter", "{file}", "files of another format that were skipped", SKIPPED),
    Metric("acker.native.duration", "counter", "s", "time in native code", "native_ns", 10**9),
)


class _Acker:
    """What is known of one acker of one query."""

    def __init__(self) -> None:
        self.batch: tuple[str, int] = ("", -1)  # run and batch id of the latest
        self.sums = dict.fromkeys((*Report._fields, SKIPPED), 0)
        self.latest: dict[int, Report] = {}  # by shard: one to which nothing came holds what it held

    def take(self, run_id: str, batch_id: int, reports: list[Report], skipped: int) -> bool:
        """Count a micro-batch in, unless it was told before."""
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
    """Counts what the ackers of all streaming queries of a session do, and logs a line at INFO for each micro-batch.

    Counters are of the micro-batches that this listener was told of, and go on when a query is started again under the
    same name. Gauges end with the query. Spark tells listeners a moment after the micro-batch, from a thread of its
    own; nothing is raised into it.

    Examples
    --------
    >>> import acker.spark as aspark
    >>> listener = aspark.AckerListener()
    >>> spark.streams.addListener(listener)                                                             # doctest: +SKIP
    >>> listener.metrics()["acker.messages.acked"]                                                      # doctest: +SKIP
    [({'query': 'orders', 'acker': 'acker'}, 1200)]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ackers: dict[tuple[str, str], _Acker] = {}

    def metrics(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return every point of every metric by name, as (attributes, value); `METRICS` says what each one is.

        Attributes are query (its name, or its id where it has none) and acker (the name of the observation).
        """
        with self._lock:
            found: dict[str, list[tuple[dict[str, str], float]]] = {metric.name: [] for metric in METRICS}
            for (query, name), acker in self._ackers.items():
                held = total(list(acker.latest.values())) if acker.latest else None
                for metric in METRICS:
                    value = _value(metric, acker, held)
                    if value is not None:
                        found[metric.name].append(({"query": query, "acker": name}, value))
        return found

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's name.
        """Do nothing: the first micro-batch says all."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  Spark's name.
        """Do nothing: figures stay as they are."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  Spark's name.
        """Count and log a micro-batch."""
        try:
            for line in self._take(event.progress):
                _log.info("%s", line)
        except Exception:  # noqa: BLE001  What watches a query must not end it.
            _log.exception("a micro-batch was not counted")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  Spark's name.
        """Forget what the query held; its counters stay."""
        try:
            with self._lock:
                for acker in self._ackers.values():
                    if acker.batch[0] == str(event.runId):
                        acker.latest.clear()
        except Exception:  # noqa: BLE001  What watches a query must not end it.
            _log.exception("the end of a query was not noted")

    def _take(self, progress: StreamingQueryProgress) -> Iterator[str]:
        query = progress["name"] or progress["id"]
        for name, reports in shard_reports(progress).items():
            if not reports:
                continue
            skipped = skipped_files(progress, name)
            with self._lock:
                acker = self._ackers.setdefault((query, name), _Acker())
                if not acker.take(progress["runId"], progress["batchId"], reports, len(skipped)):
                    continue
                held = total(list(acker.latest.values()))
            for text in skipped:
                _log.warning("query=%s acker=%s batch=%s skipped a file: %s", query, name, progress["batchId"], text)
            now = total(reports)
            yield (
                f"query={query} acker={name} batch={progress['batchId']} messages={now.messages} acked={now.acked}"
                f" failed={now.failed} timed_out={now.timed_out} rejected={now.rejected} pending={held.pending}"
                f" oldest_age_ms={held.oldest_age_ms} state_bytes={held.state_bytes} shards={len(reports)}/{now.shards}"
                f" resident={now.resident} rebuilt={now.rebuilt} chunks_cleaned={now.chunks_cleaned}"
                f" duration_ms={progress['batchDuration']}"
            )


def _value(metric: Metric, acker: _Acker, held: Report | None) -> float | None:
    if metric.kind == "counter":
        value = acker.sums[metric.field]
    elif held is None:
        return None
    else:
        if metric.field == "oldest_age_ms" and not held.pending:
            return None
        value = getattr(held, metric.field)
    return value if metric.per == 1 else value / metric.per
