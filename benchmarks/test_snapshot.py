"""Snapshot and restore: absolute times."""

import pytest

from acker import Acker, ReferenceAcker
from benchmarks.suite.ingest import fill
from benchmarks.suite.workloads import SEED, WORKLOADS


@pytest.mark.parametrize(("acker_type", "workload"), [(Acker, "m1"), (ReferenceAcker, "s20k")])
def test_snapshot(benchmark, acker_type, workload, scale):
    acker = fill(acker_type(seed=SEED), WORKLOADS[workload].stream(scale))
    blob = benchmark.pedantic(acker.snapshot, rounds=scale.pairs)
    benchmark.extra_info.update(snapshot_bytes=len(blob))
    assert acker_type.restore(blob).stats() == acker.stats()


@pytest.mark.parametrize(("acker_type", "workload"), [(Acker, "m1"), (ReferenceAcker, "s20k")])
def test_restore(benchmark, acker_type, workload, scale):
    acker = fill(acker_type(seed=SEED), WORKLOADS[workload].stream(scale))
    restored = benchmark.pedantic(acker_type.restore, (acker.snapshot(),), rounds=scale.pairs)
    assert restored.stats() == acker.stats()
