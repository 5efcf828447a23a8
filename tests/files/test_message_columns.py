"""Columns of messages in Arrow batches: which nulls are legal, wherever in an array they lie."""

import pyarrow as pa
import pytest

from acker import MESSAGE_SCHEMA, Kind
from acker._files.columns import columns_of
from acker.errors import ColumnValueError

ROWS = 20
TRACKS = (0, 9, 10, 19)


def batch_of(first, missing, column):
    """Return a batch that begins at row `first` of a longer one, with nulls in a column at some rows."""
    kinds = [int(Kind.TRACK if row in TRACKS else Kind.OK) for row in range(ROWS)]
    columns = {field.name: list(range(ROWS)) for field in MESSAGE_SCHEMA} | {"kind": kinds}
    columns[column] = [None if row in missing else row for row in range(ROWS)]
    before = [[1] * first for _ in MESSAGE_SCHEMA]
    arrays = [pa.array(b + columns[f.name], f.type) for b, f in zip(before, MESSAGE_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA).slice(first)


def place(row):
    return f"row {row}"


@pytest.mark.parametrize("first", [0, 3, 8])
@pytest.mark.parametrize("column", ["task_id", "message_id"])
def test_only_a_track_needs_its_task_and_message_ids(first, column):
    others = [row for row in range(ROWS) if row not in TRACKS]
    assert columns_of(batch_of(first, others, column), place).value.tolist() == list(range(ROWS))
    for track in TRACKS:
        with pytest.raises(
            ColumnValueError, match=rf"row {track}: {column}: .* for a TRACK, got null \(root id {track}"
        ):
            columns_of(batch_of(first, [*others, track], column), place)


@pytest.mark.parametrize("first", [0, 3, 8])
@pytest.mark.parametrize("column", ["root_id", "value"])
def test_every_message_needs_its_root_id_and_value(first, column):
    with pytest.raises(ColumnValueError, match=f"row 7: {column}: .* got null"):
        columns_of(batch_of(first, [7, 9], column), place)


def test_a_value_under_a_null_is_not_read():
    batch = batch_of(0, [1], "task_id")
    hidden = pa.Array.from_buffers(
        pa.int32(), ROWS, [batch.column("task_id").buffers()[0], pa.array([-1] * ROWS, pa.int32()).buffers()[1]]
    )
    columns = [hidden if field.name == "task_id" else batch.column(field.name) for field in MESSAGE_SCHEMA]
    with pytest.raises(ColumnValueError, match=r"row 0: task_id: .* got -1"):
        columns_of(pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA), place)
