"""The report of a run as a reading of the live page, for a frozen page."""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from acker import __version__
from acker.observe.latencies import Histogram, milliseconds
from acker.observe.readings import component_row, reading, table, tile
from acker.observe.run_report import RunReport
from acker.observe.stats import ComponentStats
from acker.observe.summary import rate
from acker.topology.graph import Graph, Subscription

_QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)
# The least number of bars of a histogram, empty ones included.
_BARS_MIN: Final = 5
_GRAPH_HINT: Final = (
    "Numbers are those of the whole run. A number on an edge is tuples a second. The right bar of a component is the "
    "share of the time that its busiest task spent in user code."
)


def report_view(report: RunReport, graph: Graph, last: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a report as `RuntimeView.view` shows a topology.

    Parameters
    ----------
    report : RunReport
    graph : Graph
    last : mapping, optional
        The last reading of the run itself, which has what a report has not: failures, dead letters, and what happened.
    """
    last = last or {}
    components = report.stats.components()
    machine = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return reading(
        "topology",
        report.topology,
        report.stats.state,
        report.headline,
        uptime_secs=round(report.seconds, 3),
        restarts=report.restarts,
        at_ms=last.get("at_ms") or _end_ms(report),
        is_last=True,
        about=f"Began {report.started_at or 'never'}. acker {__version__}, {machine}.",
        tiles=_tiles(report),
        graph={"hint": _GRAPH_HINT, **_graph_parts(report, graph, components)},
        charts=last.get("charts", []),
        texts=_texts(report),
        histograms=list(_histograms(components.values())),
        failures=last.get("failures"),
        dead_letters=last.get("dead_letters"),
        events=last.get("events"),
        flames=last.get("flames"),
        tables=list(_tables(components)),
    )


def _end_ms(report: RunReport) -> int:
    if not report.started_at:
        return time.time_ns() // 1_000_000
    return round(1_000 * (datetime.datetime.fromisoformat(report.started_at).timestamp() + report.seconds))


def _tiles(report: RunReport) -> list[dict[str, Any]]:
    totals = report.stats.totals
    p50, p99 = totals.complete_latency.quantile_ms(0.5), totals.complete_latency.quantile_ms(0.99)
    unusual = [
        ("Ended by restarts", totals.restarted),
        ("Shut down while open", totals.shut_down),
        ("Spout could not be told", report.undelivered),
        ("Acked, but ack() raised", totals.ack_errors),
    ]
    return [
        tile("Acked", totals.acked, more=f"{rate(report.stats):,.0f} a second"),
        tile("Failed", totals.failed, is_bad=True),
        tile("Timed out", totals.timed_out, is_bad=True),
        tile("Rejected", totals.rejected, is_bad=True),
        tile("Dead letters", totals.dead_letters, is_bad=True),
        *(tile(name, count, is_bad=True) for name, count in unusual if count),
        tile("Pending at the end", totals.pending),
        tile("Complete latency, p50", p50, "ms", "from emit to ack"),
        tile("Complete latency, p99", p99, "ms", "from emit to ack"),
        tile("Tuples emitted", totals.emitted_total, more=f"{totals.executed:,} executed"),
        tile("Restarts", report.restarts, more=report.last_crash or "", is_bad=True),
        tile("Wall time", f"{report.seconds:,.1f} s"),
    ]


# The drawing.


def _graph_parts(report: RunReport, graph: Graph, components: Mapping[str, ComponentStats]) -> dict[str, Any]:
    edges: dict[tuple[str, str], list[Subscription]] = {}
    for each in graph.subscriptions:
        edges.setdefault((each.source, each.consumer), []).append(each)
    return {
        "nodes": [_node(name, report, graph, components.get(name)) for name in graph.nodes],
        "edges": [
            {
                "from": source,
                "to": consumer,
                "streams": [f"{each.stream}: {each.grouping}" for each in subscriptions],
                "rate": _edge_rate(report, graph, components.get(source), subscriptions),
            }
            for (source, consumer), subscriptions in edges.items()
        ],
    }


def _node(name: str, report: RunReport, graph: Graph, row: ComponentStats | None) -> dict[str, Any]:
    node = graph.nodes[name]
    if row is None:  # It never started.
        return {"name": name, "kind": node.kind, "tasks": node.par}
    done = row.executed if row.kind == "bolt" else row.acked
    return {
        **component_row(row),
        "rate": _a_second(done, report),
        "busy": round(min(1.0, row.capacity), 3),
        "latency": row.execute_latency.quantiles_ms(0.5, 0.99),
    }


def _edge_rate(
    report: RunReport, graph: Graph, row: ComponentStats | None, subscriptions: Iterable[Subscription]
) -> float | None:
    """Return the tuples a second over an edge; None if that cannot be told from what was emitted."""
    if row is None or any(each.grouping.kind in {"direct", "custom"} for each in subscriptions):
        return None
    sent = 0
    for each in subscriptions:
        times = graph.nodes[each.consumer].par if each.grouping.kind == "all" else 1
        sent += times * row.emitted.get(each.stream, 0)
    return _a_second(sent, report)


def _a_second(count: int, report: RunReport) -> float | None:
    return None if report.seconds <= 0 else float(f"{count / report.seconds:.4g}")


# Texts, tables and histograms.


def _texts(report: RunReport) -> list[dict[str, Any]]:
    tracebacks = [f"{task.component}[{task.task}] did not come back:\n{task.stack}" for task in report.abandoned]
    found = [
        ("The error", [] if report.error is None else [report.error], True),
        ("Tasks that were abandoned", tracebacks, True),
        ("Stalls", report.stalls, False),
        ("Trees that timed out, as traced", report.timed_out_traces, False),
    ]
    return [{"title": title, "lines": list(lines), "is_code": is_code} for title, lines, is_code in found if lines]


def _histograms(components: Iterable[ComponentStats]) -> Iterable[dict[str, Any]]:
    """Yield what spreads of latencies to draw: those of the spouts together, and those of the bolts."""
    for kind, key, title, unit in (
        ("spout", "complete", "Complete latency, from emit to ack", "trees"),
        ("bolt", "execute", "Execute latency, in process()", "tuples"),
    ):
        rows = [
            {"name": name, "total": histogram.total, "octaves": octaves(histogram)}
            for name, histogram in _latencies(components, kind)
        ]
        if rows:
            yield {"key": key, "title": title, "unit": unit, "rows": rows}


def _latencies(components: Iterable[ComponentStats], kind: str) -> Iterable[tuple[str, Histogram]]:
    for row in components:
        histogram = row.complete_latency if kind == "spout" else row.execute_latency
        if row.kind == kind and histogram.total:
            yield row.component, histogram


def octaves(histogram: Histogram) -> list[tuple[float | None, int]]:
    """Return (end in ms, count) of each octave, from the first that holds something to the last."""
    found, below = [], 0
    for bound, count in histogram.cumulative(4):
        found.append((milliseconds(bound), count - below))
        below = count
    if histogram.total > below:
        found.append((milliseconds(histogram.bounds_ns[-1]), histogram.total - below))
    held = [index for index, (_, count) in enumerate(found) if count]
    last = max(held[-1] + 1, min(_BARS_MIN, len(found)))
    return found[min(held[0], last - _BARS_MIN) : last]


def _tables(components: Mapping[str, ComponentStats]) -> Iterable[dict[str, Any]]:
    rows = components.values()
    latencies = [
        [
            f"{name}, {what}",
            histogram.total,
            milliseconds(histogram.mean_ns),
            *map(histogram.quantile_ms, _QUANTILES),
        ]
        for kind, what in (("spout", "complete"), ("bolt", "execute"))
        for name, histogram in _latencies(rows, kind)
    ]
    quantiles = [(f"p{100 * q:g}", "ms") for q in _QUANTILES]
    letters = [[row.component, row.dead_letters] for row in rows if row.dead_letters]
    streams = [[f"{row.component}: {stream}", count] for row in rows for stream, count in row.emitted.items()]
    counted = [[f"{row.component}: {name}", count] for row in rows for name, count in row.user.items()]
    for key, title, columns, body in (
        ("latencies", "Latencies", [("Component", None), ("Measured", ""), ("Mean", "ms"), *quantiles], latencies),
        ("letters", "Dead letters by spout", [("Spout", None), ("Tuples given up", "")], letters),
        ("streams", "Streams", [("Component and stream", None), ("Emitted", "")], streams),
        ("counted", "Counted by the components", [("Component and name", None), ("Count", "")], counted),
    ):
        if body:
            yield table(key, title, columns, body)
