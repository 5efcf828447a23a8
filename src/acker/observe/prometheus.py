"""Figures in Prometheus's format, for a scrape and for the live page. Users import `acker.local.prometheus`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from acker.observe.exporter import Exporter
from acker.observe.latencies import Histogram
from acker.observe.metric_names import (
    METRICS,
    HasMetrics,
    HasStats,
    NamedMetric,
    Points,
    metric_points,
    points_of,
    prometheus_name,
    specs_of,
)

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

# Every fourth latency bucket is exported; they are an octave apart.
_BUCKETS_EVERY = 4


class RuntimeCollector(Collector):
    """Collects the figures of a runtime each time Prometheus scrapes.

    Parameters
    ----------
    runtime : LocalRuntime, Consumer or AckerListener

    Examples
    --------
    To export it together with your own metrics, add it to their registry:

    >>> import prometheus_client
    >>> prometheus_client.REGISTRY.register(RuntimeCollector(runtime))      # doctest: +SKIP
    """

    def __init__(self, runtime: HasStats | HasMetrics) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Family]:
        """Yield the metrics that have at least one point."""
        yield from _families(specs_of(self._runtime), points_of(self._runtime))

    def describe(self) -> list[Family]:
        """Return the names alone, since registration must not read a runtime that has not started."""
        return [_family(metric) for metric in specs_of(self._runtime)]


class _FixedPoints(Collector):
    """Collects points that were read before."""

    def __init__(self, metrics: Sequence[NamedMetric], points: Points) -> None:
        self._metrics, self._points = metrics, points

    def collect(self) -> Iterator[Family]:
        yield from _families(self._metrics, self._points)


def _families(metrics: Sequence[NamedMetric], points: Points) -> Iterator[Family]:
    for metric in metrics:
        family = _family(metric)
        for attributes, value in points.get(metric.name, ()):
            _add(family, [attributes[name] for name in metric.attributes], value)
        if family.samples:
            yield family


def _family(metric: NamedMetric) -> Any:
    families: dict[str, Any] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return families[metric.kind](prometheus_name(metric), metric.text, labels=metric.attributes)


def _add(family: Any, labels: list[str], value: float | Histogram) -> None:
    if isinstance(value, Histogram):
        buckets = [(repr(bound / 1e9), count) for bound, count in value.cumulative(_BUCKETS_EVERY)]
        family.add_metric(labels, [*buckets, ("+Inf", value.total)], value.sum_ns / 1e9)
    else:
        family.add_metric(labels, value)


class MetricsServer(Exporter):
    """An HTTP server for Prometheus; closed by close() or at the end of its `with`.

    Attributes
    ----------
    host, port : str, int
        The address on which it listens.
    """

    def __init__(self, runtime: HasStats | HasMetrics, port: int, host: str) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(RuntimeCollector(runtime))
        self._server, self._thread = start_http_server(port, host, registry)
        self._closing = threading.Lock()
        self.host, self.port = host, self._server.server_port

    @property
    def url(self) -> str:
        """The URL to scrape."""
        return f"http://{self.host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening, and wait for the thread. May be called again."""
        with self._closing:
            if self._thread.is_alive():
                self._server.shutdown()
                self._thread.join()
            self._server.server_close()

    def __enter__(self) -> Self:
        return self


def exposition(runtime: HasStats) -> bytes:
    """Return the figures of a runtime in Prometheus's text format."""
    return exposition_of(METRICS, metric_points(runtime.stats()))


def exposition_of(metrics: Sequence[NamedMetric], points: Points) -> bytes:
    """Return the points of some metrics in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FixedPoints(metrics, points))
    return generate_latest(registry)


def serve(runtime: HasStats | HasMetrics, port: int, host: str = "127.0.0.1") -> MetricsServer:
    """Serve the figures of a runtime to Prometheus over HTTP.

    Parameters
    ----------
    runtime : LocalRuntime
    port : int
        0: a free one; see the result's `port`.
    host : str
        By default only this machine, since the figures name components and there is no login.

    Returns
    -------
    MetricsServer
        Close it when the runtime has ended.

    Raises
    ------
    OSError
        The port is in use, or the host is not an address of this machine.
    """
    return MetricsServer(runtime, port, host)
