"""Random topologies with faults end alike on both runtimes, and the state of bolts on Spark is that of acked trees."""

from __future__ import annotations

import pytest

from tests.spark.topologies.random_runs import check_alike

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quiet")]


@pytest.mark.parametrize(
    ("seeds", "stateful", "pending"),
    [
        pytest.param(range(6), False, None, id="without state"),
        pytest.param(range(40, 48), True, None, id="with state"),
        pytest.param(range(64, 68), True, 3, id="few at once", marks=pytest.mark.slow),
        # Of a tree that fails in front of the first bolt with state, an unanchored tuple has gone there; two tuples of
        # a tree meet in a batch, and the bolt fails the first of them.
        pytest.param([1795601111215, 1795652139651], True, None, id="unanchored, and batched"),
        pytest.param(range(6, 40), False, None, id="more without state", marks=pytest.mark.slow),
        pytest.param(range(48, 64), True, None, id="more with state", marks=pytest.mark.soak),
    ],
)
def test_random_topologies_end_alike(spark, tmp_path, seeds, stateful, pending):
    check_alike(spark, tmp_path, seeds, stateful=stateful, pending=pending)
