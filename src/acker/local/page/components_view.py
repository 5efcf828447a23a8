"""The part of the live page about components: totals, the graph with its rates, queues and the bottleneck, charts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from acker.local.executors.asynchronous import AsyncBoltExecutor
from acker.local.wiring import ExecutorSet
from acker.observe.headline import Limit
from acker.observe.latencies import Histogram
from acker.observe.rates import Reading, RecentFigures
from acker.observe.readings import chart, component_row, latency_chart, rounded
from acker.observe.stats import ComponentStats, RuntimeStats, TaskStats
from acker.topology.graph import Graph

# The totals that the page shows, which are those of `RuntimeStats.totals`.
_TOTALS: Final = (
    "acked",
    "failed",
    "timed_out",
    "rejected",
    "restarted",
    "shut_down",
    "ack_errors",
    "late",
    "dead_letters",
    "pending",
    "oldest_age_ms",
    "executed",
    "transferred",
)
_NOT_ACKED: Final = ("failed", "timed_out", "rejected")
# From here on a component may be the bottleneck: the share of its queue, or of its time.
_FULL: Final = 0.5
_BUSY: Final = 0.8
# It is at its limit when that was so at so many readings in a row.
_LIMITED_READINGS: Final = 3


class ComponentsView:
    """Makes the part of a view that comes from the figures of tasks.

    Parameters
    ----------
    graph : Graph

    Attributes
    ----------
    recent : RecentFigures
        The figures of the last seconds.
    """

    def __init__(self, graph: Graph) -> None:
        self.recent = RecentFigures()
        self._graph = graph
        streams: dict[tuple[str, str], list[str]] = {}
        for each in graph.subscriptions:
            streams.setdefault((each.source, each.consumer), []).append(f"{each.stream}: {each.grouping}")
        self._streams = streams
        self._limited = 0
        self._names = {task: node.name for node in graph.nodes.values() for task in node.tasks}

    def read(self, stats: RuntimeStats, executors: ExecutorSet | None, now_ns: int) -> dict[str, Any]:
        """Take the figures of this moment; return the totals, the graph and the charts."""
        totals, components = stats.totals, stats.components()
        self.recent.take(self._reading(stats, executors, now_ns))
        busy = self._busy_shares(executors)
        nodes = [self._node(components[name], busy[name]) for name in self._graph.nodes if name in components]
        if not nodes:  # Not started: the names alone.
            nodes = [{"name": node.name, "kind": node.kind, "tasks": node.par} for node in self._graph.nodes.values()]
        edges = [self._edge(source, consumer) for source, consumer in self._streams]
        _mark_bottleneck(nodes, edges)
        duplicates = sum(row.duplicates for row in stats.tasks)
        return {
            "totals": {**{name: getattr(totals, name) for name in _TOTALS}, "duplicates": duplicates},
            "rates": {name: rounded(self.recent.rate(name)) for name in ("acked", "not acked", "executed")},
            "complete_latency": self.recent.latency("complete").quantiles_ms(0.5, 0.99),
            "graph": {"nodes": nodes, "edges": edges},
            "charts": self._charts(totals),
        }

    def limit(self, nodes: Iterable[dict[str, Any]], executors: ExecutorSet | None) -> Limit | None:
        """Return what has been at its limit at the last readings: the open trees of a spout, or the queue of a bolt.

        Call it once for each `read`, with the nodes that this has returned.
        """
        found = self._limit(nodes, executors) if executors is not None and executors.bolts_are_here else None
        self._limited = 0 if found is None else self._limited + 1
        return found if self._limited >= _LIMITED_READINGS else None

    def _limit(self, nodes: Iterable[dict[str, Any]], executors: ExecutorSet) -> Limit | None:
        bounds = [(task.collector.pending_count, task.pending_max) for task in executors.spout_tasks()]
        full = [each for each in bounds if Limit(*each).is_full]
        pending, pending_max = map(sum, zip(*full, strict=True)) if full else (0, 0)
        bolts = [node for node in nodes if node["kind"] == "bolt" and "queue" in node]
        slowest = next((node for node in bolts if node["bottleneck"]), None)
        is_queued = slowest is not None and slowest["queue"] >= _FULL * (slowest["queue_capacity"] or 1)
        if not (full or is_queued):
            return None
        if slowest is not None:
            limit = Limit(pending, pending_max, slowest["name"], slowest["busy"], slowest["queue"])
            return limit._replace(
                call_ms=slowest["latency"]["p50_ms"], mend=_mend_coroutines(slowest["name"], executors)
            )
        limit = Limit(pending, pending_max)
        # No component is busy: so the trees wait inside one.
        most = max(bolts, key=lambda node: node["queue"] + node["pending"], default=None)
        if most is None or 2 * (most["queue"] + most["pending"]) < pending:
            return limit
        held = f"{most['name']} has {most['queue'] + most['pending']:,} of the tuples, and waits"
        mend = _mend_coroutines(most["name"], executors)
        return limit._replace(mend=f"{held}. {mend or 'For a batch or a window, raise topology.max.spout.pending'}")

    def _reading(self, stats: RuntimeStats, executors: ExecutorSet | None, now_ns: int) -> Reading:
        counts: dict[str, float] = dict.fromkeys(("acked", "not acked", "timed out", "executed"), 0)
        latencies: dict[str, Histogram] = {"complete": Histogram(), "execute": Histogram()}
        for row in stats.tasks:
            if row.kind == "acker":
                continue
            for name, value in _counts_of(row):
                counts[name] = counts.get(name, 0) + value
            if row.complete_latency.total:
                latencies["complete"] += row.complete_latency
            if row.execute_latency.total:
                latencies["execute"] += row.execute_latency
                name = f"execute:{row.component}"
                latencies[name] = latencies.get(name, Histogram()) + row.execute_latency
        for executor in executors or ():
            for task in executor.tasks:
                counts[f"busy:{task.collector.task}"] = executor.busy_ns_of(task, now_ns) / 1e9
        for source, target, sent in self._sent(executors):
            counts[f"edge:{source}:{target}"] = counts.get(f"edge:{source}:{target}", 0) + sent
        return Reading(now_ns, counts, latencies)

    def _sent(self, executors: ExecutorSet | None) -> Iterable[tuple[str, str, int]]:
        for executor in executors or ():
            for task in executor.tasks:
                for outlet in task.collector.outlets:
                    yield task.collector.component, self._names[outlet.task], outlet.sent

    def _busy_shares(self, executors: ExecutorSet | None) -> dict[str, float]:
        """Return the share of its time that the busiest task of each component spent in user code lately."""
        shares = dict.fromkeys(self._graph.nodes, 0.0)
        for task in (task for executor in executors or () for task in executor.tasks):
            name = task.collector.component
            shares[name] = max(shares[name], self.recent.rate(f"busy:{task.collector.task}") or 0.0)
        return shares

    def _node(self, row: ComponentStats, busy: float) -> dict[str, Any]:
        recent, name = self.recent, row.component
        return {
            **component_row(row),
            "rate": rounded(recent.rate(f"{'acked' if row.kind == 'spout' else 'executed'}:{name}")),
            "emitted_rate": rounded(recent.rate(f"emitted:{name}")),
            "busy": round(min(1.0, busy), 3),
            "latency": recent.latency(f"execute:{name}").quantiles_ms(0.5, 0.99),
        }

    def _edge(self, source: str, consumer: str) -> dict[str, Any]:
        return {
            "from": source,
            "to": consumer,
            "streams": self._streams[source, consumer],
            "rate": rounded(self.recent.rate(f"edge:{source}:{consumer}")),
        }

    def _charts(self, totals: ComponentStats) -> list[dict[str, Any]]:
        recent = self.recent
        complete, execute = (recent.latency(name, at_once=True) for name in ("complete", "execute"))
        return [
            chart("throughput", "Throughput", "trees/s", acked=recent.rate("acked", at_once=True)),
            latency_chart("complete", "Complete latency", complete),
            latency_chart("execute", "Execute latency", execute),
            chart("pending", "Pending", "trees", pending=totals.pending),
            chart("not_acked", "Failed, timed out, rejected", "trees/s", trees=recent.rate("not acked", at_once=True)),
        ]


def _counts_of(row: TaskStats) -> Iterable[tuple[str, float]]:
    yield f"executed:{row.component}", row.executed
    yield f"acked:{row.component}", row.acked
    yield f"emitted:{row.component}", row.emitted_total
    if row.kind == "bolt":
        yield "executed", row.executed
    else:
        yield "acked", row.acked
        yield "not acked", sum(getattr(row, name) for name in _NOT_ACKED)
        yield "timed out", row.timed_out


def _mend_coroutines(name: str, executors: ExecutorSet) -> str | None:
    """Return what to do where the tasks of a component are coroutines, which wait; None if they are not."""
    is_async = any(
        isinstance(each, AsyncBoltExecutor) and each.tasks[0].collector.component == name for each in executors
    )
    return "Raise topology.async.max.concurrency, or give it more tasks" if is_async else None


def _mark_bottleneck(nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> None:
    """Mark the component that slows the others down.

    Before a bottleneck queues are full, behind it they are not. So it is one that is full or busy and sends to none
    such; among several, the one with the fullest queue.
    """

    def load(node: dict[str, Any]) -> tuple[float, float]:
        return node["queue"] / (node["queue_capacity"] or 1) if node["kind"] == "bolt" else 0.0, node["busy"]

    loaded = {node["name"]: load(node) for node in nodes if "queue" in node and node["kind"] == "bolt"}
    loaded = {name: (full, busy) for name, (full, busy) in loaded.items() if full >= _FULL or busy >= _BUSY}
    behind = {edge["from"] for edge in edges if edge["to"] in loaded and edge["from"] != edge["to"]}
    last = {name: each for name, each in loaded.items() if name not in behind} or loaded
    if last:
        worst = max(last, key=lambda name: last[name])
        for node in nodes:
            node["bottleneck"] = node["name"] == worst
