"""The map side for rows, as a worker runs it: what crosses as four longs is what was in five columns."""

import numpy as np
import pyarrow as pa
import pytest

from acker._engine.combiner import Cohorts, Combiner
from acker._files.columns import event_times_of
from acker.errors import ColumnValueError
from acker.spark.blocks import decode_block
from acker.spark.streams.rows import combine_batches


def packed(kind, task_id):
    """Pack as the plan's expression does."""
    low = 1 << 8 if kind is None else kind & 0xFF
    return ((task_id or 0) << 16) | low | (0 if task_id is not None else 1 << 9)


def batch_of(rows, *, event_ms=None):
    """Return the Arrow batch that crosses for (kind, root id, value, task id, message id) rows."""
    columns = {
        "root_id": pa.array([row[1] for row in rows], pa.int64()),
        "value": pa.array([row[2] for row in rows], pa.int64()),
        "packed": pa.array([packed(row[0], row[3]) for row in rows], pa.int64()),
        "message_id": pa.array([row[4] for row in rows], pa.int64()),
    }
    if event_ms is not None:
        columns["event_ms"] = pa.array(event_ms, pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def test_messages_arrive_as_they_were():
    rows = [(0, 7, 5, 2**31 - 1, -(2**63)), (2, 7, 5, None, None), (3, -8, 0, 0, 0), (4, 9, 0, None, None)]
    shards, blocks = zip(
        *(
            (row["shard"], row["block"])
            for out in combine_batches(iter([batch_of(rows)]), 1)
            for row in out.to_pylist()
        ),
        strict=True,
    )
    assert shards == (0,)
    partials, header = decode_block(blocks[0])
    combiner = Combiner(resets=True)
    combiner.add([0, 2, 3, 4], [7, 7, -8, 9], [5, 5, 0, 0], [2**31 - 1, 0, 0, 0], [-(2**63), 0, 0, 0])
    assert partials.event_ms is None
    for found, expected in zip(partials[:6], combiner.partials()[0][:6], strict=True):
        assert np.array_equal(found, expected)
    assert header.messages == 4
    assert header.event_ms is None


COHORTS = Cohorts(timeout_ms=10, buckets=3)


def test_event_times_come_along_by_root_and_cohort():
    rows = [(2, 7, 5, None, None), (2, 7, 6, None, None), (2, 7, 8, None, None), (0, 8, 1, 2, 3)]
    # Cohorts are 5 ms long; the earliest of each is kept.
    batches = iter([batch_of(rows, event_ms=[4, 3, 5, 91]), batch_of([], event_ms=[])])
    out = list(combine_batches(batches, 1, COHORTS))
    (row,) = [row for batch in out for row in batch.to_pylist()]
    partials, header = decode_block(row["block"])
    assert (row["event_ms"], header.event_ms, header.messages, header.timed) == (91, 91, 4, True)
    trees = sorted(zip(*(column.tolist() for column in partials), strict=True))
    assert trees == [(7, 3, 0, 0, 0, 0, 3), (7, 8, 0, 0, 0, 0, 5), (8, 0, 1, 1, 2, 3, 91)]


@pytest.mark.parametrize("batches", [[], [batch_of([], event_ms=[])]])
def test_a_task_without_rows_gives_nothing_that_contradicts_the_plan(batches):
    """What has no event times because it has no rows must not pass for what the plan gives none to."""
    assert list(combine_batches(iter(batches), 2, COHORTS)) == []
    assert list(combine_batches(iter([]), 2)) == []


@pytest.mark.parametrize("at", [None, 10**18, -(10**17)])
def test_a_row_without_an_event_time_is_named(at):
    rows = [(2, 7, 5, None, None), (2, 7, 5, None, None)]
    text = f"row 1 .*: event_time: expected a time in each row, .* got {'null' if at is None else at}$"
    with pytest.raises(ColumnValueError, match=text):
        list(combine_batches(iter([batch_of(rows, event_ms=[0, at])]), 1, COHORTS))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_all_units_are_read_in_milliseconds(unit):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    times = pa.array([1_700_000_000 * per_second, -1 * per_second], pa.timestamp(unit))
    assert event_times_of(times, "at", str).tolist() == [1_700_000_000_000, -1000]


def test_a_task_that_is_run_again_puts_out_the_same_bytes():
    rows = [(0, root, 5, 1, 2) for root in range(500)]
    first, second = (
        [row for batch in combine_batches(iter([batch_of(rows)]), 3) for row in batch.to_pylist()] for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((None, 7, 5, 0, 0), r"kind: expected a kind from 0 to 4, got null \(root id 7\)"),
        ((9, 7, 5, 0, 0), r"kind: expected a kind from 0 to 4, got 9 \(root id 7\)"),
        ((-1, 7, 5, 0, 0), r"kind: expected a kind from 0 to 4, got -1 \(root id 7\)"),
        ((0, None, 5, 0, 0), r"root_id: expected int64, got null \(root id null\)"),
        ((2, 7, None, 0, 0), r"value: expected int64, got null \(root id 7\)"),
        ((0, 7, 5, -1, 0), r"task_id: expected an int32 >= 0, got -1 \(root id 7\)"),
        ((0, 7, 5, None, 0), r"task_id: expected an int32 >= 0 for a TRACK, got null \(root id 7\)"),
        ((0, 7, 5, 0, None), r"message_id: expected int64 for a TRACK, got null \(root id 7\)"),
    ],
)
def test_a_bad_row_is_named(row, text):
    with pytest.raises(ColumnValueError, match=f"row 1 .*{text}"):
        list(combine_batches(iter([batch_of([(2, 1, 5, None, None), row])]), 2))
