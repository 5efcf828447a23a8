"""Rotations that expire many trees: absolute times."""

import pytest

from acker import Acker, ReferenceAcker
from benchmarks.suite.rotate import bring_to_death_row, tracks
from benchmarks.suite.workloads import SEED


@pytest.mark.parametrize(("acker_type", "trees"), [(Acker, 1_000_000), (ReferenceAcker, 100_000)])
def test_rotate(benchmark, acker_type, trees, scale):
    batches, expected = tracks(scale.size(trees, 100))
    found = []

    def setup():
        return (bring_to_death_row(acker_type(seed=SEED), batches),), {}

    benchmark.extra_info.update(trees=expected.completions)
    benchmark.pedantic(lambda acker: found.append(len(acker.rotate())), setup=setup, rounds=scale.pairs)
    assert set(found) == {expected.completions}
