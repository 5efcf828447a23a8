"""Another thread writes to a column while a call reads it: the batch may come out wrong, but no memory is harmed."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from acker import Acker, Kind, ShardedAcker
from acker._engine.columns import check_columns
from acker._engine.combiner import Cohorts, Combiner
from acker.errors import SnapshotError
from tests.native_testing import check_invariants

ROWS = 20_000
ROUNDS = 60
# Few root ids for the size of the table, so that lines overflow and entries are displaced.
ROOTS = 3 * ROWS


@contextlib.contextmanager
def written(*columns):
    """Write other values to the columns all the time, from another thread."""
    rng = np.random.default_rng(1)
    over, begun = threading.Event(), threading.Event()

    def write():
        values = [rng.integers(0, ROOTS, len(column)).astype(column.dtype) for column in columns]
        while not over.is_set():
            for column, fresh in zip(columns, values, strict=True):
                np.copyto(column, fresh)
                np.copyto(column, fresh[::-1])
            begun.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        assert begun.wait(60)
        try:
            yield
        finally:
            over.set()
            writing.result()


def batch(seed):
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 2, ROWS).astype(np.int8) * np.int8(Kind.OK)
    return kind, rng.integers(0, ROOTS, ROWS), rng.integers(1, 2**62, ROWS), np.zeros(ROWS, np.int32), np.arange(ROWS)


def test_the_table_of_an_acker_never_contradicts_itself():
    columns = batch(2)
    with written(columns[1], columns[2], columns[4]):
        for _ in range(ROUNDS):
            acker = Acker()
            for _ in range(3):
                acker.ingest(*columns)
                check_invariants(acker)
                acker.rotate()
            check_invariants(acker)


def test_a_sharded_acker_counts_every_tree():
    """A row may go to a shard that is no longer its root id's; the tree then ends by its timeout."""
    columns = batch(4)
    with written(columns[1], columns[2], columns[4]):
        for _ in range(ROUNDS):
            acker = ShardedAcker(shards=2)
            for _ in range(3):
                acker.ingest(*columns)
                acker.rotate()
            stats = acker.stats()
            assert stats.tracked == stats.acked + stats.failed + stats.timed_out + stats.open


@pytest.mark.parametrize("event_ms", [False, True], ids=["untimed", "by event time"])
def test_a_combiner_keeps_one_row_of_a_root(event_ms):
    columns = batch(5)
    times = np.zeros(ROWS, np.int64) if event_ms else None
    with written(columns[1], columns[2], columns[4]):
        for _ in range(ROUNDS):
            combiner = Combiner(cohorts=Cohorts(0, 2) if event_ms else None)
            combiner.add_unchecked(check_columns(*columns), times)
            combiner.add_unchecked(check_columns(*columns), times)
            root_id = combiner.partials()[0].root_id
            assert len(np.unique(root_id)) == len(root_id)


def test_a_combiner_that_merges_keeps_one_row_of_a_root():
    source = Combiner()
    source.add(*batch(6))
    partials = source.partials()[0]
    with written(partials.root_id, partials.value, partials.message_id):
        for _ in range(ROUNDS):
            combiner = Combiner()
            combiner.merge(partials)
            combiner.merge(partials)
            root_id = combiner.partials()[0].root_id
            assert len(np.unique(root_id)) == len(root_id)


def test_an_acker_from_a_snapshot_that_changes_is_refused_or_sound():
    acker = Acker()
    acker.ingest(*batch(7))
    blob = bytearray(acker.snapshot())
    refused = 0
    with written(np.frombuffer(blob, np.uint8)):
        for _ in range(ROUNDS):
            try:
                check_invariants(Acker.restore(blob))
            except SnapshotError:
                refused += 1
    assert refused > 0
