"""What the live page shows of streaming ackers: micro-batches, pending trees, the oldest, shards, the size of state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from acker.observe.durations import format_duration
from acker.observe.readings import chart
from acker.spark.streams.reports import MicroBatchReport
from acker.ui.actions import set_log_level
from acker.ui.source import Action

_TOTALS: Final = ("messages", "acked", "failed", "timed_out", "rejected")
_NOT_ACKED: Final = ("failed", "timed_out", "rejected")
# How many micro-batches and shards are listed.
BATCHES_MAX: Final = 50
_SHARDS_MAX: Final = 200
_SUFFIXES: Final = {"s": "_seconds", "By": "_bytes"}


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
    """

    at_ms: int
    query: str
    acker: str
    batch_id: int
    report: MicroBatchReport
    duration_ms: int


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
    """

    sums: Mapping[str, int]
    shards: list[tuple[str, str, MicroBatchReport]]
    batches: list[SeenMicroBatch]
    metrics: Mapping[str, list[tuple[dict[str, str], float]]]

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
    """

    name = "Streaming ackers"

    def __init__(self, read: Callable[[], StreamFigures], specs: Any) -> None:
        self.actions: Mapping[str, Action] = {"log-level": set_log_level}
        self.stats = read
        self.is_closed = False
        self._specs = specs
        self._began = time.monotonic()

    def find(self, text: str) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return nothing: the open trees lie in Spark's state, which `acker state inspect` reads."""
        return []

    def metrics(self) -> bytes:
        """Return the figures in Prometheus's text format."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector

        figures, specs = self.stats(), self._specs

        class Streams(Collector):
            def collect(self) -> Iterator[Any]:
                for spec in specs:
                    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
                    name = spec.name.replace(".", "_") + _SUFFIXES.get(spec.unit, "")
                    family = kind(name, spec.text, labels=["query", "acker"])
                    for attributes, value in figures.metrics[spec.name]:
                        family.add_metric([attributes["query"], attributes["acker"]], value)
                    yield family

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Streams())
        return generate_latest(registry)

    def view(self) -> dict[str, Any]:
        """Return what the page shows now."""
        figures = self.stats()
        held = [report for _, _, report in figures.shards]
        oldest_ms = max((report.oldest_age_ms or 0 for report in held if report.pending), default=None)
        gauges = {name: sum(getattr(report, name) for report in held) for name in ("pending", "open", "state_bytes")}
        totals = {**{name: figures.sums[name] for name in _TOTALS}, **gauges, "oldest_age_ms": oldest_ms}
        return {
            "kind": "stream",
            "name": self.name,
            "state": "stopped" if self.is_closed else "running" if figures.batches else "new",
            "paused": False,
            "uptime_secs": round(time.monotonic() - self._began, 3),
            "restarts": 0,
            "timeout_ms": None,
            "headline": _headline(figures, totals, is_closed=self.is_closed),
            "totals": totals,
            "tiles": _tiles(figures, totals),
            "graph": {"nodes": [], "edges": []},
            "charts": _charts(figures, totals),
            "open_trees": None,
            "failures": None,
            "dead_letters": None,
            "events": [],
            "tables": [_batches_table(figures), _shards_table(figures)],
            "actions": list(self.actions),
            "log_level": logging.getLevelName(logging.getLogger("acker").getEffectiveLevel()),
        }


def _headline(figures: StreamFigures, totals: Mapping[str, Any], *, is_closed: bool) -> dict[str, str]:
    if is_closed:
        return {"tone": "idle", "text": "The listener is closed."}
    if not figures.batches:
        return {"tone": "idle", "text": "Waiting for the first micro-batch of a query with an acker."}
    if not figures.shards:
        return {"tone": "idle", "text": "No query runs."}
    last = figures.batches[0]
    lost = sum(getattr(last.report, name) for name in _NOT_ACKED)
    oldest = "" if totals["oldest_age_ms"] is None else f", the oldest for {format_duration(totals['oldest_age_ms'])}"
    pending = f"{totals['pending']:,} {'tree is' if totals['pending'] == 1 else 'trees are'} pending{oldest}"
    said = f"The last micro-batch of {last.query} acked {last.report.acked:,}"
    if lost:
        return {"tone": "fair", "text": f"{said}; {lost:,} failed, timed out or were rejected. {pending}."}
    return {"tone": "good", "text": f"{said}. {pending}."}


def _tiles(figures: StreamFigures, totals: Mapping[str, Any]) -> list[dict[str, Any]]:
    lost = sum(totals[name] for name in _NOT_ACKED)
    told = ", ".join(f"{totals[name]:,} {name.replace('_', ' ')}" for name in _NOT_ACKED if totals[name])
    last = figures.batches[0] if figures.batches else None
    return [
        {"name": "Acked", "value": totals["acked"], "more": f"of {totals['messages']:,} messages"},
        {"name": "Pending", "value": totals["pending"], "more": f"{totals['open']:,} have begun"},
        {"name": "Oldest", "value": totals["oldest_age_ms"], "unit": "ms", "more": "at its last rotation"},
        {"name": "Not acked", "value": lost, "more": told or "none failed", "is_bad": True},
        {"name": "State", "value": totals["state_bytes"], "unit": "By", "more": "in Spark's state store"},
        {
            "name": "Last micro-batch",
            "value": None if last is None else last.duration_ms,
            "unit": "ms",
            "more": "none yet" if last is None else f"number {last.batch_id} of {last.query}",
        },
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


def _column(name: str, unit: str | None = None) -> dict[str, str | None]:
    return {"name": name, "unit": unit}


def _batches_table(figures: StreamFigures) -> dict[str, Any]:
    counts = [_column(name, "") for name in ("Messages", "Acked", "Failed", "Timed out", "Rejected", "Pending")]
    rows = [
        [
            f"{each.query} {each.batch_id}" if each.acker == "acker" else f"{each.query} {each.acker} {each.batch_id}",
            each.at_ms,
            *(getattr(each.report, name) for name in (*_TOTALS, "pending")),
            each.duration_ms,
        ]
        for each in figures.batches
    ]
    columns = [_column("Micro-batch"), _column("Time", "at"), *counts, _column("Took", "ms")]
    empty = "None yet. A row comes when Spark has finished a micro-batch of a query with an acker."
    return {"key": "batches", "title": "Micro-batches", "columns": columns, "rows": rows, "empty": empty}


def _shards_table(figures: StreamFigures) -> dict[str, Any]:
    names = ("pending", "open", "oldest_age_ms", "state_bytes", "chunks", "table_bytes")
    rows = [
        [f"{query} {acker} {report.shard}", *(getattr(report, name) for name in names)]
        for query, acker, report in figures.shards[:_SHARDS_MAX]
    ]
    columns = [
        _column("Shard"),
        _column("Pending", ""),
        _column("Begun", ""),
        _column("Oldest", "ms"),
        _column("State", "By"),
        _column("Chunks", ""),
        _column("Table", "By"),
    ]
    empty = "No query with an acker runs."
    return {"key": "shards", "title": "Shards", "columns": columns, "rows": rows, "empty": empty}
