"""The map side for rows, as a worker runs it: what crosses as four longs is what was in five columns."""

import numpy as np
import pyarrow as pa
import pytest

from acker.combiner import Combiner
from acker.errors import ColumnValueError
from acker.spark.blocks import decode_block
from acker.spark.rows import combine_batches


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
    for found, expected in zip(partials, combiner.partials()[0], strict=True):
        assert np.array_equal(found, expected)
    assert header.messages == 4
    assert header.event_ms is None


def test_every_task_is_heard_by_shard_0_and_by_all_of_its_event_time():
    rows = [(2, 7, 5, None, None)]
    out = [row for batch in combine_batches(iter([batch_of(rows)]), 5) for row in batch.to_pylist()]
    assert {row["shard"] for row in out} >= {0}
    out = [
        row for batch in combine_batches(iter([batch_of(rows * 2, event_ms=[3, None])]), 5) for row in batch.to_pylist()
    ]
    assert sorted(row["shard"] for row in out) == list(range(5))
    assert {decode_block(row["block"])[1].event_ms for row in out} == {row["event_ms"] for row in out} == {3}
    assert [row["shard"] for batch in combine_batches(iter([]), 5) for row in batch.to_pylist()] == [0]


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
