"""The figures of a topology: counts, gauges and latencies, by task, by component and in total.

All are values of one moment. The names that exporters give to these figures are in `acker.observe.metric_names`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from acker._engine.notebook import html_table
from acker._engine.protocol import Stats
from acker.observe.durations import format_ns
from acker.observe.latencies import Histogram

ComponentKind = Literal["spout", "bolt", "acker"]
RuntimeState = Literal["new", "running", "restarting", "draining", "stopped"]

_NOTHING: Final = Histogram()


@dataclass(frozen=True, kw_only=True, repr=False)
class CommonStats:
    """The figures that a task, a component and a topology have in common, since the start of the runtime.

    Attributes
    ----------
    emitted : dict of stream to int
        Calls of emit, also to streams that no bolt reads.
    transferred : int
        Deliveries: an emit reaches one task of each component that reads the stream, or all of them, or none.
    executed : int
        Bolts: calls of process() that returned or raised, ticks included. Spouts: calls of next_tuple.
    acked, failed : int
        Spouts: trees. Bolts: tuples.
    timed_out, rejected, restarted, shut_down : int
        Spouts: trees that ended for that reason.
    ack_errors : int
        Spouts: acked trees whose `ack` raised, so that the source may not know. Not included in `acked`.
    late : int
        Spouts: outcomes of trees that are not pending. Ackers: messages of unknown trees.
    duplicates : int
        Ackers: second TRACKs of open trees, which change nothing.
    dead_letters : int
        Spouts: tuples that a ReliableSpout handed to `dead_letter`.
    pending : int
        Spouts: trees open now. Bolts: tuples neither acked nor failed yet.
    oldest_age_ms : int or None
        The age of the oldest pending one; None if nothing is pending.
    queue, queue_capacity : int
        Number of tuples in the receive queue now, and its limit. Tasks of one executor share a queue, which counts once
        in sums.
    capacity : float
        The share of the time since the start that was spent in user code; a task near 1 is the bottleneck.
    execute_latency : Histogram
        Bolts: time in process(), of the sample that `topology.stats.sample.rate` sets.
    complete_latency : Histogram
        Spouts: time from emit to ack of trees that were acked.
    user : dict of name to int
        Counters of report_metric.
    """

    emitted: Mapping[str, int] = field(default_factory=dict)
    transferred: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    rejected: int = 0
    restarted: int = 0
    shut_down: int = 0
    ack_errors: int = 0
    late: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    pending: int = 0
    oldest_age_ms: int | None = None
    queue: int = 0
    queue_capacity: int = 0
    capacity: float = 0.0
    execute_latency: Histogram = _NOTHING
    complete_latency: Histogram = _NOTHING
    user: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the task or component, and the figures that are not 0."""
        fields, common = dataclasses.fields(self), len(dataclasses.fields(CommonStats))
        ordered = (*fields[common:], *fields[:common])
        return format_fields(self, {item.name: getattr(self, item.name) for item in ordered})

    @property
    def emitted_total(self) -> int:
        """Emits on all streams."""
        return sum(self.emitted.values())

    def to_json(self) -> dict[str, Any]:
        """Return all fields as values for JSON."""
        return {item.name: _json_value(getattr(self, item.name)) for item in dataclasses.fields(self)}


@dataclass(frozen=True, kw_only=True, repr=False)
class TaskStats(CommonStats):
    """One task.

    Attributes
    ----------
    component : str
    kind : {"spout", "bolt", "acker"}
    task : int
    executor : str
        The executor, and so the thread, that runs the task.
    calls_running, calls_over : int, optional
        Of a consumer: calls of user code that run now, and those of them whose message is over.
    acker : Stats, optional
        The counts of an acker, in the rows of ackers.
    """

    component: str
    kind: ComponentKind
    task: int
    executor: str = ""
    calls_running: int | None = None
    calls_over: int | None = None
    acker: Stats | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class ComponentStats(CommonStats):
    """All tasks of a component: counts and histograms are sums, ages and capacities are those of the worst task.

    Storm's UI shows the capacity of the busiest executor too (StatsUtil.computeBoltCapacity).

    Attributes
    ----------
    component : str
    kind : {"spout", "bolt", "acker", "topology"}
    tasks, executors : int
        Numbers of them.
    """

    component: str
    kind: ComponentKind | Literal["topology"]
    tasks: int
    executors: int


@dataclass(frozen=True, kw_only=True, repr=False)
class RuntimeStats:
    """A topology at one moment.

    Attributes
    ----------
    topology : str
    state : {"new", "running", "restarting", "draining", "stopped"}
    uptime_secs : float
    restarts : int
        Since the start, also those that no longer count because of a healthy period.
    tasks : tuple of TaskStats
        In the order of their ids; the ackers' come last.
    """

    topology: str
    state: RuntimeState = "new"
    uptime_secs: float = 0.0
    restarts: int = 0
    tasks: tuple[TaskStats, ...] = ()

    def __repr__(self) -> str:
        values = {"topology": self.topology, "state": self.state, "uptime_secs": round(self.uptime_secs, 3)}
        return format_fields(
            self, {**values, "restarts": self.restarts, "tasks": len(self.tasks), **tree_counts(self.totals)}
        )

    def _repr_html_(self) -> str:
        """Return a row for each component and one for the topology, as a table for notebooks."""
        restarts = f", restarts: {self.restarts:,}" if self.restarts else ""
        return components_html(self, f"{self.topology}: {self.state}, {self.uptime_secs:,.1f} s{restarts}")

    def components(self) -> dict[str, ComponentStats]:
        """Return the components by name, in the order of their tasks."""
        rows: dict[str, list[TaskStats]] = {}
        for task in self.tasks:
            rows.setdefault(task.component, []).append(task)
        return {
            name: ComponentStats(
                component=name,
                kind=tasks[0].kind,
                tasks=len(tasks),
                executors=len({task.executor for task in tasks}),
                **_sum_rows(tasks),
            )
            for name, tasks in rows.items()
        }

    @property
    def totals(self) -> ComponentStats:
        """The whole topology as one row.

        Outcomes, pending and its age are those of the spouts, since a tree has one spout and many tuples; executed is
        that of the bolts. All other figures are sums over spouts and bolts. Ackers are not included.
        """
        tasks = [task for task in self.tasks if task.kind != "acker"]
        of_spouts = _sum_rows([task for task in tasks if task.kind == "spout"])
        of_trees = ("acked", "failed", "timed_out", "rejected", "restarted", "shut_down", "pending", "oldest_age_ms")
        return ComponentStats(
            component=self.topology,
            kind="topology",
            tasks=len(tasks),
            executors=len({task.executor for task in tasks}),
            **{
                **_sum_rows(tasks),
                **{name: of_spouts[name] for name in of_trees},
                "executed": sum(task.executed for task in tasks if task.kind == "bolt"),
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Return totals, components and tasks as values for JSON."""
        return {
            "topology": self.topology,
            "state": self.state,
            "uptime_secs": round(self.uptime_secs, 3),
            "restarts": self.restarts,
            "totals": self.totals.to_json(),
            "components": {name: row.to_json() for name, row in self.components().items()},
            "tasks": [task.to_json() for task in self.tasks],
        }


# The figures of a component that notebooks show.
_SHOWN: Final = ("emitted_total", "executed", "acked", "failed", "timed_out", "dead_letters", "pending", "queue")


def components_html(stats: RuntimeStats, caption: str) -> str:
    """Return a row for each component and one for the topology, as a table for notebooks."""
    names = ("emitted" if name == "emitted_total" else name.replace("_", " ") for name in _SHOWN)
    head = ["component", "kind", "tasks", *names, "p50", "p99", "capacity"]
    rows = [row for row in stats.components().values() if row.kind != "acker"]
    return html_table(caption, head, [_html_row(row) for row in (*rows, stats.totals)])


def _html_row(row: ComponentStats) -> list[object]:
    latency = row.execute_latency if row.kind == "bolt" else row.complete_latency
    told = [format_ns(latency.quantile(share)) for share in (0.5, 0.99)]
    figures = [getattr(row, name) for name in _SHOWN]
    return [row.component, row.kind, row.tasks, *figures, *told, f"{row.capacity:.2f}"]


def _json_value(value: object) -> Any:
    if isinstance(value, Histogram):
        return value.to_json()
    if isinstance(value, Stats):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return round(value, 4) if isinstance(value, float) else value


def tree_counts(totals: ComponentStats) -> dict[str, int]:
    """Return the numbers of trees by their outcome."""
    ends = ("acked", "failed", "timed_out", "rejected", "restarted", "shut_down", "ack_errors")
    names = (*ends, "dead_letters", "pending")
    return {name: getattr(totals, name) for name in names}


def format_fields(value: object, fields: Mapping[str, object]) -> str:
    """Return the repr of a value without the fields that are 0 or empty."""
    nothing: tuple[object, ...] = (0, None, "", {}, Histogram())
    written = ", ".join(f"{name}={field!r}" for name, field in fields.items() if field not in nothing)
    return f"{type(value).__name__}({written})"


def _sum_rows(rows: Sequence[TaskStats]) -> dict[str, Any]:
    """Return the fields of `CommonStats` over some tasks."""
    executors = {row.executor or row.task: row for row in rows}
    found: dict[str, Any] = {}
    for item in dataclasses.fields(CommonStats):
        values = [getattr(row, item.name) for row in rows]
        if item.name == "oldest_age_ms":
            found[item.name] = max((value for value in values if value is not None), default=None)
        elif item.name == "capacity":
            found[item.name] = max(values, default=0.0)
        elif item.name in ("execute_latency", "complete_latency"):
            found[item.name] = sum(values, start=Histogram())
        elif item.name in ("queue", "queue_capacity"):
            found[item.name] = sum(getattr(row, item.name) for row in executors.values())
        elif item.name in ("emitted", "user"):
            found[item.name] = _add_counts(values)
        else:
            found[item.name] = sum(values)
    return found


def _add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return found
