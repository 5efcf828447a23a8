"""The table of metrics: the name, unit, attributes and reader of each.

Names follow OpenTelemetry: dots, base units, no unit in the name. `prometheus_name` derives the names for Prometheus.
docs/observability.md has the same table, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

from acker._engine.protocol import COUNTERS
from acker.observe.latencies import Histogram
from acker.observe.stats import TaskStats

Attributes = dict[str, str]


class Figures(Protocol):
    """The figures of a topology or a consumer that exporters read."""

    @property
    def topology(self) -> str:
        """The name of the topology or consumer."""

    @property
    def uptime_secs(self) -> float:
        """The time since the start."""

    @property
    def restarts(self) -> int:
        """How often it was started again after an exception."""

    @property
    def tasks(self) -> tuple[TaskStats, ...]:
        """The figures of each task."""


class HasStats(Protocol):
    """An object with figures, for exporters: a `LocalRuntime` or a `Consumer`."""

    def stats(self) -> Figures:
        """Return the figures of this moment."""


class Point(NamedTuple):
    """One value of a metric. Attributes always hold topology; most also component, kind and task."""

    attributes: Attributes
    value: float | Histogram


class NamedMetric(Protocol):
    """A metric as exporters name it; its attributes are as for `MetricSpec`."""

    @property
    def name(self) -> str:
        """Its name, with dots."""

    @property
    def kind(self) -> str:
        """One of "counter", "gauge", "histogram"."""

    @property
    def unit(self) -> str:
        """In UCUM."""

    @property
    def text(self) -> str:
        """One sentence."""

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of the attributes of its points."""


# The points of metrics by the names of these: attributes, value.
Points = Mapping[str, Sequence[tuple[Attributes, Any]]]


class HasMetrics(Protocol):
    """An object with metrics of its own, for exporters: an `acker.spark.AckerListener`."""

    @property
    def metric_specs(self) -> Sequence[NamedMetric]:
        """The table of its metrics."""

    def metrics(self) -> Points:
        """Return the points of this moment."""


@dataclass(frozen=True)
class MetricSpec:
    """The definition of one metric, a row of the table.

    Attributes
    ----------
    name : str
    kind : {"counter", "gauge", "histogram"}
        A counter never falls while the runtime lives.
    unit : str
        In UCUM: "s", "1", or the things counted in braces.
    text : str
        One sentence.
    attributes : tuple of str
        Names of the attributes.
    read : callable
        Takes the figures of a runtime and yields points.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    text: str
    attributes: tuple[str, ...]
    read: Callable[[Figures], Iterator[Point]]


_TASK: Final = ("topology", "component", "kind", "task")


def _base(stats: Figures, row: TaskStats) -> Attributes:
    return {"topology": stats.topology, "component": row.component, "kind": row.kind, "task": str(row.task)}


def _by_task(field: str, *kinds: str, scale: float = 1) -> Callable[[Figures], Iterator[Point]]:
    """Read a field of the tasks of some kinds; None gives no point."""

    def read(stats: Figures) -> Iterator[Point]:
        for row in stats.tasks:
            value = getattr(row, field)
            if row.kind in kinds and value is not None:
                yield Point(_base(stats, row), value if scale == 1 else value * scale)

    return read


def _by_key(field: str, attribute: str) -> Callable[[Figures], Iterator[Point]]:
    """Read a field that counts by stream or by name."""

    def read(stats: Figures) -> Iterator[Point]:
        for row in stats.tasks:
            for key, value in getattr(row, field).items():
                yield Point({**_base(stats, row), attribute: key}, value)

    return read


def _of_ackers(field: str) -> Callable[[Figures], Iterator[Point]]:
    def read(stats: Figures) -> Iterator[Point]:
        for row in stats.tasks:
            if row.acker is not None:
                yield Point(_base(stats, row), getattr(row.acker, field))

    return read


def _of_topology(field: str) -> Callable[[Figures], Iterator[Point]]:
    return lambda stats: iter([Point({"topology": stats.topology}, getattr(stats, field))])


def _messages(field: str, text: str, *kinds: str) -> MetricSpec:
    return MetricSpec(f"acker.messages.{field}", "counter", "{message}", text, _TASK, _by_task(field, *kinds))


_TREES: Final = {
    "tracked": "trees begun",
    "acked": "trees acked",
    "failed": "trees failed",
    "timed_out": "trees timed out",
    "rejected": "trees refused because of topology.acker.high_water",
    "duplicates": "trees begun again while open; ignored",
    "unknown": "messages about unknown trees; ignored",
    "orphans": "trees that got messages, but never the spout's",
    "dropped": "messages dropped because of topology.acker.high_water",
    "resets": "timeouts that were reset",
    "empty": "trees acked at once, because the spout's tuple had no receiver",
}

METRICS: Final[tuple[MetricSpec, ...]] = (
    MetricSpec(
        "acker.messages.emitted",
        "counter",
        "{message}",
        "tuples emitted, by stream",
        (*_TASK, "stream"),
        _by_key("emitted", "stream"),
    ),
    _messages("transferred", "deliveries: one for each task that a tuple goes to", "spout", "bolt"),
    _messages("executed", "bolts: tuples processed; spouts: calls of next_tuple", "spout", "bolt"),
    _messages("acked", "spouts: trees acked; bolts: tuples acked", "spout", "bolt"),
    _messages("failed", "spouts: trees failed; bolts: tuples failed", "spout", "bolt"),
    _messages("timed_out", "trees that took longer than the message timeout", "spout"),
    _messages("rejected", "trees that the acker had no room for", "spout"),
    _messages("restarted", "trees that a restart of the topology ended", "spout"),
    _messages("shut_down", "trees that the end of the topology ended", "spout"),
    _messages("ack_errors", "trees that were acked and whose ack() raised; not among the acked", "spout"),
    _messages("late", "spouts: outcomes of unknown tuples; ackers: messages about unknown trees", "spout", "acker"),
    _messages("duplicates", "TRACKs of trees that were open already; ignored", "acker"),
    _messages("dead_letters", "tuples that a reliable spout gave up", "spout"),
    MetricSpec(
        "acker.messages.pending",
        "gauge",
        "{message}",
        "spouts: trees open; bolts: tuples neither acked nor failed",
        _TASK,
        _by_task("pending", "spout", "bolt"),
    ),
    MetricSpec(
        "acker.messages.oldest_age",
        "gauge",
        "s",
        "age of the oldest pending tuple, if there is one",
        _TASK,
        _by_task("oldest_age_ms", "spout", "bolt", scale=1e-3),
    ),
    MetricSpec(
        "acker.calls.running",
        "gauge",
        "{call}",
        "of a consumer: calls of submit and spawn that run now",
        _TASK,
        _by_task("calls_running", "spout"),
    ),
    MetricSpec(
        "acker.calls.over",
        "gauge",
        "{call}",
        "those of them whose message timed out, failed or was taken back",
        _TASK,
        _by_task("calls_over", "spout"),
    ),
    MetricSpec(
        "acker.queue.depth",
        "gauge",
        "{message}",
        "tuples that wait in the queue of the task's executor",
        _TASK,
        _by_task("queue", "spout", "bolt", "acker"),
    ),
    MetricSpec(
        "acker.queue.capacity",
        "gauge",
        "{message}",
        "tuples that fit in that queue",
        _TASK,
        _by_task("queue_capacity", "spout", "bolt", "acker"),
    ),
    MetricSpec(
        "acker.task.capacity",
        "gauge",
        "1",
        "share of the time that was spent in user code",
        _TASK,
        _by_task("capacity", "spout", "bolt"),
    ),
    MetricSpec(
        "acker.execute.duration",
        "histogram",
        "s",
        "time in process(), of a sample of the tuples",
        _TASK,
        _by_task("execute_latency", "bolt"),
    ),
    MetricSpec(
        "acker.complete.duration",
        "histogram",
        "s",
        "time from emit to ack, of trees that were acked",
        _TASK,
        _by_task("complete_latency", "spout"),
    ),
    MetricSpec(
        "acker.user.events",
        "counter",
        "{event}",
        "what components count with report_metric, by name",
        (*_TASK, "name"),
        _by_key("user", "name"),
    ),
    *(
        MetricSpec(
            f"acker.trees.{field}", "counter", "{tree}", f"of an acker: {_TREES[field]}", _TASK, _of_ackers(field)
        )
        for field in COUNTERS
    ),
    MetricSpec("acker.trees.open", "gauge", "{tree}", "of an acker: open trees", _TASK, _of_ackers("open")),
    MetricSpec(
        "acker.topology.uptime", "gauge", "s", "time since the start", ("topology",), _of_topology("uptime_secs")
    ),
    MetricSpec(
        "acker.topology.restarts",
        "counter",
        "{restart}",
        "restarts after an exception",
        ("topology",),
        _of_topology("restarts"),
    ),
)


def prometheus_name(metric: NamedMetric) -> str:
    """Return the name for Prometheus, without the _total that Prometheus adds to counters.

    As in OpenTelemetry's exporters for Prometheus: underscores, and the unit after the name.
    """
    suffix = {"s": "_seconds", "1": "_ratio", "By": "_bytes"}.get(metric.unit, "")
    return metric.name.replace(".", "_") + suffix


def specs_of(source: HasStats | HasMetrics) -> Sequence[NamedMetric]:
    """Return the table of the metrics that an exporter shows."""
    return METRICS if hasattr(source, "stats") else source.metric_specs


def points_of(source: HasStats | HasMetrics) -> Points:
    """Return the points of this moment."""
    return metric_points(source.stats()) if hasattr(source, "stats") else source.metrics()


def metric_points(stats: Figures) -> dict[str, list[tuple[Attributes, Any]]]:
    """Return the points of every metric by its name, for logs, tests and your own exporters."""
    return {metric.name: [(point.attributes, point.value) for point in metric.read(stats)] for metric in METRICS}
