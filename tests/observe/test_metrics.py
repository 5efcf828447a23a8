"""Histograms, sums of counts, and the texts of stats and reports."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import replace

import pytest

from acker._engine.protocol import COUNTERS, Stats
from acker.observe.latencies import LATENCY_BOUNDS_NS, Histogram
from acker.observe.run_report import Abandoned, RunReport
from acker.observe.stats import RuntimeStats, TaskStats
from tests import figures
from tests.figures import latency_snapshot


def test_the_buckets_grow_by_a_quarter_at_most_from_a_microsecond_to_ten_minutes() -> None:
    assert LATENCY_BOUNDS_NS[0] == 1_000
    assert LATENCY_BOUNDS_NS[-2] < 600 * 10**9 <= LATENCY_BOUNDS_NS[-1]
    for low, high in itertools.pairwise(LATENCY_BOUNDS_NS):
        assert low < high <= 1.25 * low


def test_each_latency_falls_in_the_bucket_that_its_bound_ends() -> None:
    histogram = latency_snapshot(*LATENCY_BOUNDS_NS, 0, -5, LATENCY_BOUNDS_NS[-1] + 1)
    assert histogram.counts == (3, *[1] * (len(LATENCY_BOUNDS_NS) - 1), 1)
    assert histogram.total == len(LATENCY_BOUNDS_NS) + 3
    assert histogram.cumulative()[-1] == (LATENCY_BOUNDS_NS[-1], histogram.total - 1)


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_are_at_most_a_quarter_off(seed) -> None:
    draw = random.Random(seed)
    latencies = sorted(round(10 ** draw.uniform(3, 11)) for _ in range(1_000))
    histogram = latency_snapshot(*latencies)
    assert histogram.sum_ns == sum(latencies) and histogram.mean_ns == sum(latencies) / 1_000
    for q in (0.01, 0.5, 0.9, 0.99, 1):
        exact = latencies[max(0, round(q * 1_000) - 1)]
        assert 0.8 * exact <= histogram.quantile(q) <= 1.25 * exact


def test_quantiles_at_the_edges() -> None:
    assert Histogram().quantile(0.5) is None and Histogram().mean_ns is None
    assert latency_snapshot(10**15).quantile(0.5) == LATENCY_BOUNDS_NS[-1]
    assert latency_snapshot(2_000).quantile(0) == 1_750 and latency_snapshot(2_000).quantile(1) == 2_000
    with pytest.raises(ValueError, match=r"between 0 and 1, and not 1\.5"):
        Histogram().quantile(1.5)


def test_histograms_add_up() -> None:
    assert latency_snapshot(1, 5_000) + latency_snapshot(10**12, 5_000) == latency_snapshot(1, 5_000, 5_000, 10**12)
    with pytest.raises(ValueError, match="different buckets"):
        Histogram() + Histogram((1, 2), (0, 0, 0))
    with pytest.raises(TypeError):
        Histogram() + 1


def test_cumulated_in_octaves() -> None:
    octaves = latency_snapshot(1_000, 1_001, 3_000, 10**9).cumulative(4)
    assert octaves[:3] == [(1_000, 1), (2_000, 2), (4_000, 3)] and octaves[-1] == (LATENCY_BOUNDS_NS[-1], 4)
    assert len(octaves) == 31


SPOUT = replace(figures.SPOUT, oldest_age_ms=40, complete_latency=latency_snapshot(5_000_000))
BOLT = figures.BOLT
STATS = RuntimeStats(
    topology="WordCount",
    state="running",
    uptime_secs=2.0,
    tasks=(
        SPOUT,
        BOLT,
        replace(BOLT, task=3, executor="split-1", capacity=0.75, oldest_age_ms=7),
        TaskStats(component="__acker", kind="acker", task=4, acked=1, acker=Stats(*[0] * (len(COUNTERS) + 2))),
    ),
)


def test_components_add_their_tasks_up() -> None:
    components = STATS.components()
    assert list(components) == ["lines", "split", "__acker"]
    split = components["split"]
    assert (split.kind, split.tasks, split.executors) == ("bolt", 2, 1)
    assert (split.emitted, split.emitted_total, split.executed) == ({"default": 100}, 100, 20)
    assert (split.queue, split.queue_capacity) == (4, 100), "both tasks share one executor and its queue"
    assert (split.capacity, split.oldest_age_ms) == (0.75, 7)
    assert split.execute_latency == latency_snapshot(1_000, 2_000, 1_000, 2_000)
    assert components["lines"].user == {"files": 3}


def test_totals_count_trees_where_the_spouts_hear_of_them() -> None:
    totals = STATS.totals
    assert (totals.component, totals.kind, totals.tasks, totals.executors) == ("WordCount", "topology", 3, 2)
    assert (totals.acked, totals.failed, totals.timed_out, totals.pending, totals.oldest_age_ms) == (6, 1, 2, 1, 40)
    assert (totals.emitted, totals.executed, totals.queue) == ({"default": 110, "errors": 1}, 20, 4)
    assert RuntimeStats(topology="nothing").totals.capacity == 0


def test_what_is_printed_of_figures_is_short() -> None:
    histogram = latency_snapshot(*[2_000_000] * 99, 40_000_000)
    assert re.fullmatch(r"Histogram\(count=100, p50=\S+ ms, p99=\S+ ms\)", repr(histogram))
    assert repr(Histogram()) == "Histogram(count=0)"
    assert repr(BOLT) == (
        "TaskStats(component='split', kind='bolt', task=2, executor='split-1', emitted={'default': 50}, executed=10, "
        f"acked=9, failed=1, queue=4, queue_capacity=100, capacity=0.5, execute_latency={BOLT.execute_latency!r})"
    )
    assert repr(STATS.totals).startswith("ComponentStats(component='WordCount', kind='topology', tasks=3, executors=2,")
    counts = "acked=6, failed=1, timed_out=2, pending=1"
    assert repr(STATS) == f"RuntimeStats(topology='WordCount', state='running', uptime_secs=2.0, tasks=4, {counts})"
    started = "2026-01-01T00:00:00+00:00"
    report = RunReport(topology="WordCount", outcome="drained", started_at=started, seconds=2.03125, stats=STATS)
    told = "topology='WordCount', outcome='drained', seconds=2.031"
    assert repr(report) == f"RunReport({told}, {counts})"
    bad = replace(
        report, restarts=2, undelivered=3, abandoned=(Abandoned("split", 2, "File ..."),), error="ValueError: no"
    )
    assert repr(bad) == f"RunReport({told}, restarts=2, {counts}, undelivered=3, abandoned=1, error='ValueError: no')"


def test_a_report_is_json() -> None:
    report = RunReport(
        topology="WordCount",
        outcome="failed",
        started_at="2026-01-01T00:00:00+00:00",
        seconds=2.0,
        stats=STATS,
        abandoned=(Abandoned("split", 2, "File ..."),),
        error="ValueError: no",
    )
    values = json.loads(json.dumps(report.to_json()))
    assert values["abandoned"] == [{"component": "split", "task": 2, "stack": "File ..."}]
    assert values["stats"]["totals"]["acked"] == 6
    assert values["stats"]["components"]["lines"]["complete_latency"] == {
        "count": 1,
        "mean_ms": 5.0,
        "p50_ms": pytest.approx(5, rel=0.25),
        "p90_ms": pytest.approx(5, rel=0.25),
        "p99_ms": pytest.approx(5, rel=0.25),
        "buckets_ns": [[5_120_000, 1]],
    }
    assert values["stats"]["tasks"][3]["acker"]["tracked"] == 0
