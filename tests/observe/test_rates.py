"""Rates and latencies of a window."""

from __future__ import annotations

from acker.observe.latencies import Histogram, LatencyRecorder
from acker.observe.rates import Reading, RecentFigures, difference

SECOND = 1_000_000_000


def test_a_rate_is_the_growth_of_the_window() -> None:
    recent = RecentFigures(window_secs=10)
    recent.take(Reading(0, {"acked": 100}, {}))
    assert recent.rate("acked") is None and recent.growth("acked") == 100
    for second in range(1, 31):
        recent.take(Reading(second * SECOND, {"acked": 100 + 5 * second}, {}))
    assert recent.rate("acked") == recent.rate("acked", at_once=True) == 5
    recent.take(Reading(31 * SECOND, {"acked": 250}, {}))
    assert recent.rate("acked", at_once=True) == 0
    assert 4 < recent.rate("acked") < 5
    assert recent.growth("acked") == 45
    assert recent.rate("new") == 0


def test_readings_of_one_moment_have_no_rate() -> None:
    recent = RecentFigures()
    recent.take(Reading(7, {"acked": 1}, {}))
    recent.take(Reading(7, {"acked": 2}, {}))
    assert recent.rate("acked") is None


def test_latencies_are_those_of_the_window() -> None:
    recorder, recent = LatencyRecorder(), RecentFigures(window_secs=1)
    recorder.record(1_000_000)
    recent.take(Reading(0, {}, {"complete": recorder.snapshot()}))
    assert recent.latency("complete").total == 1
    recorder.record(8_000_000)
    recorder.record(8_000_000)
    recent.take(Reading(SECOND, {}, {"complete": recorder.snapshot()}))
    found = recent.latency("complete")
    assert found.total == 2 and found.mean_ns == 8_000_000
    recent.take(Reading(2 * SECOND, {}, {"complete": recorder.snapshot()}))
    assert recent.latency("complete") == Histogram()
    assert recent.latency("unknown") == Histogram()


def test_a_histogram_that_shrank_gives_no_negative_counts() -> None:
    recorder = LatencyRecorder()
    recorder.record(5)
    before = recorder.snapshot()
    assert difference(Histogram(), before).total == 0
