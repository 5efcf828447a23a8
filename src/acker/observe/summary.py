"""The figures of a topology as rows of a table, as in Storm's UI, and as one line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from acker.observe.durations import format_ns
from acker.observe.latencies import Histogram
from acker.observe.stats import ComponentStats, RuntimeStats


class Row(NamedTuple):
    """The figures of a component or of the whole topology, as text; empty if it has none."""

    component: str
    tasks: str
    emitted: str = ""
    executed: str = ""
    acked: str = ""
    failed: str = ""
    timed_out: str = ""
    pending: str = ""
    latency: str = ""
    capacity: str = ""
    queue: str = ""


HEADINGS = Row(*(name.replace("_", " ") for name in Row._fields))._replace(latency="p50 / p99")

# Trees that were not acked, and dead letters: the field, and its name for one and for many.
_LOSSES: Final = (
    ("failed", "failed", "failed"),
    ("timed_out", "timed out", "timed out"),
    ("rejected", "rejected", "rejected"),
    ("restarted", "ended by a restart", "ended by restarts"),
    ("shut_down", "shut down", "shut down"),
    ("ack_errors", "acked, but ack() raised", "acked, but ack() raised"),
    ("dead_letters", "dead letter", "dead letters"),
)


def rows(stats: RuntimeStats) -> Iterator[Row]:
    """Yield a row for each component, ackers included, and one for the topology.

    A spout's latency is from emit to ack, a bolt's that of process(). Acked, failed, timed out and pending are trees
    for spouts and for the topology, tuples for bolts.
    """
    for row in stats.components().values():
        if row.kind == "acker":
            yield Row(component=row.component, tasks=_tasks(row), queue=_count(row.queue))
        else:
            yield _row(row)
    yield _row(stats.totals)


def _row(row: ComponentStats) -> Row:
    bolt, spout = row.kind == "bolt", row.kind == "spout"
    return Row(
        component="all" if row.kind == "topology" else row.component,
        tasks=_tasks(row),
        emitted=_count(row.emitted_total),
        executed="" if spout else _count(row.executed),
        acked=_count(row.acked),
        failed=_count(row.failed),
        timed_out="" if bolt else _count(row.timed_out),
        pending=_count(row.pending),
        latency=_latency(row.execute_latency if bolt else row.complete_latency),
        capacity="" if row.kind == "topology" else f"{row.capacity:.2f}",
        queue="" if spout else _count(row.queue),
    )


def _tasks(row: ComponentStats) -> str:
    return f"{row.tasks}" if row.executors in (row.tasks, 0) else f"{row.tasks} on {row.executors}"


def _count(value: int) -> str:
    return f"{value:,}"


def _latency(histogram: Histogram) -> str:
    return f"{format_ns(histogram.quantile(0.5))} / {format_ns(histogram.quantile(0.99))}" if histogram.total else ""


def rate(stats: RuntimeStats, before: RuntimeStats | None = None) -> float:
    """Return acked trees a second: since the start, or since earlier figures."""
    secs = stats.uptime_secs - (before.uptime_secs if before else 0)
    acked = stats.totals.acked - (before.totals.acked if before else 0)
    return acked / secs if secs > 0 else 0.0


def line(stats: RuntimeStats, before: RuntimeStats | None = None) -> str:
    """Return the figures of a topology as one line."""
    totals, lost = stats.totals, losses(stats.totals)
    begun = sum(task.emitted_total for task in stats.tasks if task.kind == "spout")
    if begun and not (totals.acked or totals.pending or lost):
        parts = [f"{begun:,} emitted by spouts, none with a tup_id, so none tracked", f"{totals.executed:,} executed"]
    else:
        parts = [f"{totals.acked:,} acked ({rate(stats, before):,.0f} a second)", f"{totals.pending:,} pending"]
    parts += lost
    if stats.restarts:
        parts.append(quantity(stats.restarts, "restart"))
    return f"{stats.uptime_secs:.1f} s, {stats.state}: {', '.join(parts)}"


def losses(totals: ComponentStats) -> list[str]:
    """Return the counts of trees that were not acked, by reason, and of dead letters; without the zeros."""
    found = ((getattr(totals, field), one, many) for field, one, many in _LOSSES)
    return [quantity(count, one, many) for count, one, many in found if count]


def quantity(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun, in the singular or the plural."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
