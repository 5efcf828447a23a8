"""Prometheus and OpenTelemetry, with their own libraries: a real scrape, and the SDK's reader."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Sum
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from acker.local.otel import instrument
from acker.local.prometheus import RuntimeCollector, serve
from acker.observe.latencies import Histogram
from acker.observe.metric_names import METRICS, metric_points, prometheus_name
from acker.observe.stats import RuntimeStats

LINES = {"topology": "WordCount", "component": "lines", "kind": "spout", "task": "1"}
SPLIT = {"topology": "WordCount", "component": "split", "kind": "bolt", "task": "2"}
ACKER = {"topology": "WordCount", "component": "__acker", "kind": "acker", "task": "3"}


def test_the_table_is_consistent(runtime) -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS) > 20
    values = metric_points(runtime.stats())
    for metric in METRICS:
        assert re.fullmatch(r"acker(\.[a-z_]+){2}", metric.name)
        assert metric.text and not metric.text.endswith(".")
        for attributes, value in values[metric.name]:
            assert tuple(attributes) == metric.attributes, metric.name
            assert isinstance(value, Histogram) == (metric.kind == "histogram")
    assert all(values[name] for name in ("acker.messages.acked", "acker.user.events", "acker.trees.open"))
    assert metric_points(RuntimeStats(topology="t"))["acker.messages.acked"] == []


@pytest.mark.repository
def test_the_document_has_the_same_table() -> None:
    page = Path(__file__).parents[2] / "docs/observability.md"
    told = re.findall(r"^\| `(acker\.[\w.]+)` \| (\w+) \| (\S+) \| (.+) \| (.+) \|$", page.read_text(), re.MULTILINE)
    by = {("topology",): "topology"}
    for metric in METRICS:
        by.setdefault(metric.attributes, ", ".join(("task", *metric.attributes[4:])))
    assert told == [(metric.name, metric.kind, metric.unit, metric.text, by[metric.attributes]) for metric in METRICS]


def test_points_name_topology_component_kind_task_and_stream(runtime) -> None:
    values = metric_points(runtime.stats())
    assert values["acker.messages.emitted"] == [
        ({**LINES, "stream": "default"}, 10),
        ({**LINES, "stream": "errors"}, 1),
        ({**SPLIT, "stream": "default"}, 50),
    ]
    assert values["acker.messages.oldest_age"] == [(LINES, 2.5)], "nothing pending has no age"
    assert values["acker.messages.timed_out"] == [(LINES, 2)], "bolts know of no timeout"
    assert values["acker.queue.depth"] == [(LINES, 0), (SPLIT, 4), (ACKER, 2)]
    assert values["acker.topology.restarts"] == [({"topology": "WordCount"}, 1)]
    assert values["acker.trees.tracked"] == [(ACKER, 0)] and values["acker.trees.open"] == [(ACKER, 12)]


def scrape(url: str) -> dict[tuple[str, frozenset], float]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_scrapes_over_http(runtime) -> None:
    with serve(runtime, 0) as server:
        assert server.host == "127.0.0.1" and runtime.asked == 0
        samples = scrape(server.url)
        assert runtime.asked == 1, "one scrape, one snapshot"

        def value(name: str, /, **labels: str) -> float:
            return samples[name, frozenset(labels.items())]

        assert value("acker_messages_emitted_total", **LINES, stream="default") == 10
        assert value("acker_messages_acked_total", **LINES) == 6
        assert value("acker_messages_pending", **LINES) == 1
        assert value("acker_messages_oldest_age_seconds", **LINES) == 2.5
        assert value("acker_task_capacity_ratio", **SPLIT) == 0.5
        assert value("acker_user_events_total", **LINES, name="files") == 3
        assert value("acker_trees_open", **ACKER) == 12
        assert value("acker_topology_uptime_seconds", topology="WordCount") == 2
        duration = "acker_complete_duration_seconds"
        assert value(f"{duration}_count", **LINES) == 2
        assert value(f"{duration}_sum", **LINES) == pytest.approx(0.012)
        assert value(f"{duration}_bucket", **LINES, le="0.004096") == 0
        assert value(f"{duration}_bucket", **LINES, le="0.008192") == 2
        assert value(f"{duration}_bucket", **LINES, le="+Inf") == 2
        # All that the runtime tells arrives, in the spelling that the table gives.
        families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name, _ in samples}
        told = {prometheus_name(metric) for metric in METRICS}
        assert families == told

        runtime.value = replace(runtime.value, restarts=4)
        assert scrape(server.url)["acker_topology_restarts_total", frozenset({("topology", "WordCount")})] == 4


def test_the_server_stops_and_gives_its_port_back(runtime) -> None:
    server = serve(runtime, 0)
    server.close()
    server.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(server.url, timeout=60)
    with serve(runtime, server.port) as again:
        assert again.port == server.port
        scrape(again.url)
        with pytest.raises(OSError, match="in use"):
            serve(runtime, again.port)


def test_a_collector_fits_in_a_registry_of_ones_own(runtime) -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(RuntimeCollector(runtime))
    assert runtime.asked == 0, "registering asks nothing"
    assert registry.get_sample_value("acker_messages_acked_total", LINES) == 6
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(RuntimeCollector(runtime))


def collected(reader: InMemoryMetricReader) -> dict[str, tuple[type, str, dict[frozenset, float]]]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: (
            type(metric.data),
            metric.unit,
            {frozenset(point.attributes.items()): point.value for point in metric.data.data_points},
        )
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_opentelemetry_reads_the_same_figures(runtime) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with instrument(runtime, provider) as instruments:
        found = collected(reader)
        assert runtime.asked == 1, "one collection, one snapshot"
        assert set(found) == set(instruments.names)
        kind, unit, points = found["acker.messages.emitted"]
        assert kind is Sum and unit == "{message}"
        assert points[frozenset({**LINES, "stream": "errors"}.items())] == 1
        kind, unit, points = found["acker.messages.oldest_age"]
        assert kind is Gauge and unit == "s" and points == {frozenset(LINES.items()): 2.5}
        _, unit, points = found["acker.complete.duration.sum"]
        assert unit == "s" and points == {frozenset(LINES.items()): pytest.approx(0.012)}
        assert found["acker.complete.duration.count"][2] == {frozenset(LINES.items()): 2}
        median = found["acker.complete.duration.quantile"][2][frozenset({**LINES, "quantile": "0.5"}.items())]
        assert 0.004 < median < 0.007
        told = {name.removesuffix(".count").removesuffix(".sum").removesuffix(".quantile") for name in found}
        assert told == {metric.name for metric in METRICS}

        runtime.value = replace(runtime.value, restarts=4)
        assert collected(reader)["acker.topology.restarts"][2] == {frozenset({("topology", "WordCount")}): 4}
        assert runtime.asked == 2
    assert collected(reader) == {}, "after close() nothing is observed"
    assert runtime.asked == 2
    provider.shutdown()


def test_the_runtime_imports_no_exporter() -> None:
    code = (
        "import sys, acker.observe.metric_names, acker.observe.watchdog;"
        "print(sorted({'prometheus_client', 'opentelemetry', 'click', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
