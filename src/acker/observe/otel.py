"""Figures as instruments of OpenTelemetry. Users import `acker.local.otel`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from acker.observe.latencies import Histogram
from acker.observe.metric_names import METRICS, Figures, HasStats, MetricSpec, Point

# OpenTelemetry has no instrument that takes a whole histogram, so these quantiles are observed instead.
QUANTILES: Final = (0.5, 0.9, 0.99)


class _Snapshots:
    """The figures of one collection, which are the same for all instruments and read once.

    OpenTelemetry calls the instruments one by one, without a sign that a new collection begins. So it begins when an
    instrument asks that got these figures before.
    """

    def __init__(self, runtime: HasStats) -> None:
        self._runtime: HasStats | None = runtime
        self._lock = threading.Lock()
        self._stats: Figures | None = None
        self._served: set[str] = set()

    def stats_for(self, name: str) -> Figures | None:
        with self._lock:
            if self._runtime is None:
                return None
            if self._stats is None or name in self._served:
                self._stats = self._runtime.stats()
                self._served.clear()
            self._served.add(name)
            return self._stats

    def close(self) -> None:
        with self._lock:
            self._runtime = self._stats = None


class Instruments:
    """The instruments of one runtime. After close() they observe nothing, since OpenTelemetry cannot remove them."""

    def __init__(self, runtime: HasStats, meter: Meter) -> None:
        self._snapshots = _Snapshots(runtime)
        self.names: list[str] = []
        for metric in METRICS:
            if metric.kind == "histogram":
                self._add_histogram(meter, metric)
            else:
                self._add(meter, metric.kind, metric.name, metric.unit, metric.text, metric.read)

    def _add_histogram(self, meter: Meter, metric: MetricSpec) -> None:
        def part(read: Callable[[Histogram], float]) -> Callable[[Figures], Iterator[Point]]:
            return lambda stats: (
                Point(point.attributes, read(point.value))
                for point in metric.read(stats)
                if isinstance(point.value, Histogram)
            )

        def quantiles(stats: Figures) -> Iterator[Point]:
            for point in metric.read(stats):
                assert isinstance(point.value, Histogram)
                for q in QUANTILES:
                    ns = point.value.quantile(q)
                    if ns is not None:
                        yield Point({**point.attributes, "quantile": str(q)}, ns / 1e9)

        name, text = metric.name, metric.text
        self._add(
            meter, "counter", f"{name}.count", "{message}", f"{text}: how many", part(lambda histogram: histogram.total)
        )
        self._add(
            meter, "counter", f"{name}.sum", "s", f"{text}: all of it", part(lambda histogram: histogram.sum_ns / 1e9)
        )
        self._add(meter, "gauge", f"{name}.quantile", "s", f"{text}: by share", quantiles)

    def _add(
        self,
        meter: Meter,
        kind: str,
        name: str,
        unit: str,
        text: str,
        read: Callable[[Figures], Iterator[Point]],
    ) -> None:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            stats = self._snapshots.stats_for(name)
            if stats is None:
                return []
            return [Observation(_number(point), point.attributes) for point in read(stats)]

        create: Any = meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
        create(name, [observe], unit, text)
        self.names.append(name)

    def close(self) -> None:
        """Release the runtime."""
        self._snapshots.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _number(point: Point) -> float:
    """Return the value of a point that is not a histogram."""
    assert not isinstance(point.value, Histogram)
    return point.value
