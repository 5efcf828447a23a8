"""Ingest of a window of messages in the steady state: absolute times, for comparing two builds on one machine."""

import pytest

from acker import Acker, ReferenceAcker, _core
from benchmarks.suite.ingest import Checker, feed, fill, update, windows
from benchmarks.suite.workloads import SEED, WORKLOADS

BATCH_ROWS = 10_000


def time_window(benchmark, side, stream, rows, rounds, work, batch_rows=BATCH_ROWS):
    """Time `work` on one new window a round, and check what it finished."""
    checker, given = Checker(), windows(stream, rows, batch_rows, rounds)
    timed = {}

    def setup():
        timed["window"] = next(given)
        return (timed["window"],), {}

    def finish(window):
        timed["returned"] = work(window)

    def teardown(window):
        checker.check(side, window, timed["returned"])

    benchmark.extra_info.update(messages=rows, batch_rows=batch_rows)
    benchmark.pedantic(finish, setup=setup, teardown=teardown, rounds=rounds)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_native(benchmark, workload, scale):
    stream = WORKLOADS[workload].stream(scale)
    acker = fill(Acker(seed=SEED), stream)
    rows = scale.size(WORKLOADS[workload].window_rows, BATCH_ROWS)
    time_window(benchmark, "native", stream, rows, scale.pairs, lambda window: feed(acker, window))


@pytest.mark.parametrize("batch_rows", [1, 100, 1000, 100_000])
def test_native_by_batch_rows(benchmark, batch_rows, scale):
    stream = WORKLOADS["m1"].stream(scale)
    acker = fill(Acker(seed=SEED), stream)
    rows = scale.size(1_000_000 if batch_rows > 1 else 100_000, batch_rows)
    time_window(benchmark, "native", stream, rows, scale.pairs, lambda window: feed(acker, window), batch_rows)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_gups(benchmark, workload, scale):
    stream = WORKLOADS[workload].stream(scale)
    gups = _core.Gups(fill(Acker(seed=SEED), WORKLOADS[workload].stream(scale)).nbytes, SEED)
    rows = scale.size(WORKLOADS[workload].window_rows, BATCH_ROWS)
    time_window(benchmark, "GUPS", stream, rows, scale.pairs, lambda window: update(gups, window))


@pytest.mark.parametrize("workload", ["k20", "s20k", "p100", "mixed"])
def test_reference(benchmark, workload, scale):
    stream = WORKLOADS[workload].stream(scale)
    acker = fill(ReferenceAcker(seed=SEED), stream)
    rows = scale.size(WORKLOADS[workload].window_rows // 10, 1000)
    time_window(benchmark, "reference", stream, rows, scale.pairs, lambda window: feed(acker, window))
