"""Windows on both runtimes: what they hold does not depend on where micro-batches end."""

from __future__ import annotations

import pytest

from acker.topology import Grouping, Topology, Window, WindowedArrowBolt, WindowedBolt
from tests.spark.topologies.both import Numbers, note, run_both

pytestmark = pytest.mark.spark


class Noted(WindowedBolt):
    outputs = ["total"]

    def group_key(self, tup):
        return tup.key

    def process_window(self, window):
        rows = (sorted(tup.n for tup in each) for each in (window.tuples, window.new, window.expired))
        note(self, window.key, window.start, window.end, *(tuple(each) for each in rows))
        self.emit([len(window)])


class ByCount(Noted):
    window = Window.sliding(count=5, every_count=3)


class ByEventTime(Noted):
    window = Window.sliding(secs=10, every_secs=4)
    timestamp_field = "n"
    lag_secs = 20


class NotedColumns(WindowedArrowBolt):
    """The same in columns: each task has one window."""

    def process_window(self, window):
        tables = (sorted(each["n"].to_pylist()) for each in (window.table, window.new, window.expired))
        note(self, window.start, window.end, *map(tuple, tables))


class ColumnsByCount(NotedColumns):
    window = ByCount.window


class ColumnsByEventTime(NotedColumns):
    window = ByEventTime.window
    timestamp_field = "n"
    lag_secs = 20


class Totals(WindowedBolt):
    window = Window.tumbling(count=2)

    def process_window(self, window):
        note(self, sum(tup.total for tup in window.tuples))


class Many(Numbers):
    numbers = range(100)


def test_windows_are_the_same_on_both(spark, tmp_path):
    class Windows(Topology):
        numbers = Many.spec()
        by_count = ByCount.spec(inputs={numbers: Grouping.fields("key")}, par=2)
        by_time = ByEventTime.spec(inputs={numbers: Grouping.fields("key")}, par=2)
        totals = Totals.spec(inputs=[by_count])
        columns_by_count = ColumnsByCount.spec(inputs={numbers: Grouping.fields("key")}, par=2)
        columns_by_time = ColumnsByEventTime.spec(inputs={numbers: Grouping.fields("key")}, par=2)

    both = run_both(Windows, spark, tmp_path, {"topology.max.spout.pending": 20})
    for component, count in (
        ("by_count", 5 * 6),
        ("by_time", 5 * 17),
        ("columns_by_count", 30),
        ("columns_by_time", 2 * 17),
    ):
        ours, theirs = both.local.of(component), both.spark.of(component)
        assert ours == theirs
        assert sum(ours.values()) >= count
    # Which windows of two tasks meet in one window of another task depends on the order in which they come.
    for end in (both.local, both.spark):
        assert sum(total for (total,) in end.of("totals", tasks=False).elements()) == 5 * (3 + 5 * 5)
    assert both.spark.report.stats.totals.acked == 100
    assert not both.differences("user")
