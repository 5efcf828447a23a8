"""The figures of a topology on Spark, as the driver adds them up."""

from acker.observe.latencies import LATENCY_BOUNDS_NS, LatencyRecorder
from acker.spark.topologies.spark_executor import SummedLatencies


def test_latencies_are_added_as_if_each_was_recorded():
    one_by_one, added = LatencyRecorder(), SummedLatencies()
    bounds = [LATENCY_BOUNDS_NS[0], LATENCY_BOUNDS_NS[7], LATENCY_BOUNDS_NS[-1]]
    for ns in (0, *(bound + step for bound in bounds for step in (-1, 0, 1))):
        added.add_many(ns, 3)
        for _ in range(3):
            one_by_one.record(ns)
    assert added.snapshot() == one_by_one.snapshot()


def test_latencies_of_workers_and_of_the_driver_are_one_histogram():
    of_worker, added, expected = LatencyRecorder(), SummedLatencies(), LatencyRecorder()
    of_worker.record(5_000)
    added.add_totals(*of_worker.totals())
    added.add_many(7_000_000, 1)
    added.record(9_000_000_000)
    for ns in (5_000, 7_000_000, 9_000_000_000):
        expected.record(ns)
    assert added.snapshot() == expected.snapshot()
