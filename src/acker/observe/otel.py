"""Figures as instruments of OpenTelemetry. Users import `acker.local.otel`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from acker.observe.exporter import Exporter
from acker.observe.latencies import Histogram
from acker.observe.metric_names import HasMetrics, HasStats, NamedMetric, Point, Points, points_of, specs_of

# OpenTelemetry has no instrument that takes a whole histogram, so these quantiles are observed instead.
QUANTILES: Final = (0.5, 0.9, 0.99)

_Observe = Callable[[Iterable[Point]], Iterator[Point]]


class _Snapshots:
    """The points of one collection, which are the same for all instruments and read once.

    OpenTelemetry calls the instruments one by one, without a sign that a new collection begins. So it begins when an
    instrument asks that got these points before.
    """

    def __init__(self, runtime: HasStats | HasMetrics) -> None:
        self._runtime: HasStats | HasMetrics | None = runtime
        self._lock = threading.Lock()
        self._points: Points | None = None
        self._served: set[str] = set()

    def points_for(self, name: str) -> Points:
        with self._lock:
            if self._runtime is None:
                return {}
            if self._points is None or name in self._served:
                self._points = points_of(self._runtime)
                self._served.clear()
            self._served.add(name)
            return self._points

    def close(self) -> None:
        with self._lock:
            self._runtime = self._points = None


class Instruments(Exporter):
    """The instruments of one runtime. After close() they observe nothing, since OpenTelemetry cannot remove them."""

    def __init__(self, runtime: HasStats | HasMetrics, meter: Meter) -> None:
        self._snapshots = _Snapshots(runtime)
        self._meter = meter
        self.names: list[str] = []
        for metric in specs_of(runtime):
            if metric.kind == "histogram":
                self._add_histogram(metric)
            else:
                self._add(metric, metric.kind, "", metric.unit, metric.text, iter)

    def _add_histogram(self, metric: NamedMetric) -> None:
        def part(read: Callable[[Histogram], float]) -> _Observe:
            return lambda points: (Point(attributes, read(value)) for attributes, value in _histograms(points))

        def quantiles(points: Iterable[Point]) -> Iterator[Point]:
            for attributes, histogram in _histograms(points):
                for q in QUANTILES:
                    ns = histogram.quantile(q)
                    if ns is not None:
                        yield Point({**attributes, "quantile": str(q)}, ns / 1e9)

        text = metric.text
        self._add(metric, "counter", ".count", "{message}", f"{text}: how many", part(lambda found: found.total))
        self._add(metric, "counter", ".sum", "s", f"{text}: all of it", part(lambda found: found.sum_ns / 1e9))
        self._add(metric, "gauge", ".quantile", "s", f"{text}: by share", quantiles)

    def _add(self, metric: NamedMetric, kind: str, suffix: str, unit: str, text: str, read: _Observe) -> None:
        name = f"{metric.name}{suffix}"

        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            points = self._snapshots.points_for(name).get(metric.name, ())
            return [Observation(_number(point), point.attributes) for point in read(Point(*point) for point in points)]

        create: Any = self._meter.create_observable_counter
        if kind != "counter":
            create = self._meter.create_observable_gauge
        create(name, [observe], unit, text)
        self.names.append(name)

    def close(self) -> None:
        """Release the runtime."""
        self._snapshots.close()


def _histograms(points: Iterable[Point]) -> Iterator[tuple[dict[str, str], Histogram]]:
    for attributes, value in points:
        assert isinstance(value, Histogram)
        yield attributes, value


def _number(point: Point) -> float:
    """Return the value of a point that is not a histogram."""
    assert not isinstance(point.value, Histogram)
    return point.value
