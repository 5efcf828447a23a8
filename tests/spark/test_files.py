"""What the driver does with footers, and a task with its units, without Spark."""

import errno
import io
import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from acker import MESSAGE_SCHEMA
from acker._engine.combiner import Combiner
from acker._files import reader as files
from acker._files.paths import list_files
from acker._files.reader import Unit, deal, inspect_file
from acker.errors import ArgumentValueError, ColumnTypeError, ColumnValueError
from acker.spark.blocks import decode_block
from acker.spark.files import combine_units
from tests import message_files
from tests.oracles import settle_as_sets


def table_of(rows=10, **types):
    """Return messages, some columns of other types."""
    columns = {
        "kind": np.arange(rows) % 5,
        "root_id": np.arange(rows) // 5,
        "value": np.arange(rows),
        "task_id": np.zeros(rows, np.int64),
        "message_id": np.arange(rows),
    }
    fields = [pa.field(entry.name, types.get(entry.name, entry.type)) for entry in MESSAGE_SCHEMA]
    return pa.table([pa.array(columns[field.name]).cast(field.type) for field in fields], schema=pa.schema(fields))


write = partial(message_files.write, piece_rows=4)


def units_of(path):
    return [unit for file in list_files(path) for unit in inspect_file(*file)]


def test_footers_say_what_there_is_to_read(tmp_path):
    write(table_of(), tmp_path / "a")
    write(table_of(), tmp_path / "b", files.ARROW_FILE)
    write(table_of(), tmp_path / "c", files.ARROW_STREAM)
    found = [(Path(unit.path).name, unit.kind, unit.number, unit.pieces, unit.first_row) for unit in units_of(tmp_path)]
    assert found == [
        *[("a", files.PARQUET, i, 3, 4 * i) for i in range(3)],
        *[("b", files.ARROW_FILE, i, 3, 0) for i in range(3)],
        ("c", files.ARROW_STREAM, 0, 1, 0),
    ]
    assert [unit.messages for unit in units_of(tmp_path / "a")] == [4, 4, 2]


@pytest.mark.parametrize("kind", [files.PARQUET, files.ARROW_FILE, files.ARROW_STREAM])
def test_files_of_another_shape_are_refused(tmp_path, kind):
    path = tmp_path / "m"
    for table, error, text in (
        (table_of(task_id=pa.float64()), ColumnTypeError, "task_id: expected int32, got double"),
        (table_of(kind=pa.bool_()), ColumnTypeError, "kind: expected int8, got bool"),
        (table_of(value=pa.string()), ColumnTypeError, "value: expected int64, got string"),
        (
            table_of().drop_columns("value"),
            ColumnValueError,
            "value: expected a column of int64, got no column of that",
        ),
        (
            table_of().append_column("kind", pa.array([1] * 10)),
            ColumnValueError,
            "kind: expected a column of int8, got 2",
        ),
    ):
        write(table, path, kind)
        with pytest.raises(error) as caught:
            units_of(path)
        assert str(caught.value).startswith(f"{path}: {text}")


@pytest.mark.parametrize("content", [b"", b"PAR", b"some text that is long enough", b"\0" * 100])
def test_files_of_another_format_are_refused(tmp_path, content):
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ArgumentValueError) as caught:
        units_of(tmp_path)
    assert f"{tmp_path}/m: expected a Parquet or Arrow IPC file, got one that begins with {content[:8]!r}" in str(
        caught.value
    )


@pytest.mark.parametrize("kind", [files.PARQUET, files.ARROW_FILE, files.ARROW_STREAM])
def test_truncated_files_are_refused(tmp_path, kind):
    path = tmp_path / "m"
    write(table_of(), path, kind)
    os.truncate(path, 20)
    with pytest.raises(ArgumentValueError, match=f"{path}: damaged: "):
        units_of(path)


class Unreadable(io.BytesIO):
    """Can be read once, for the first bytes, and fails then."""

    reads = 0

    def read(self, size=-1):
        self.reads += 1
        if self.reads > 1:
            raise OSError(errno.EIO, "the disk is gone")
        return super().read(size)


class UnreadableFiles:
    """A filesystem of one such file."""

    def __init__(self, data):
        self.data = data

    def open_input_file(self, _):
        return pa.PythonFile(Unreadable(self.data), mode="r")


@pytest.mark.parametrize("kind", [files.PARQUET, files.ARROW_FILE])
def test_a_file_that_cannot_be_read_now_is_not_called_damaged(tmp_path, kind):
    path = tmp_path / "m"
    write(table_of(), path, kind)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        inspect_file(UnreadableFiles(path.read_bytes()), "m")
    assert caught.value.errno == errno.EIO


def test_units_are_dealt_in_order_and_evenly():
    def units(*messages):
        return [Unit(None, "m", files.PARQUET, i, 1, 0, rows) for i, rows in enumerate(messages)]

    def numbers(work):
        return [[unit.number for unit in run] for run in work]

    assert numbers(deal(units(5, 5, 5, 5), 2)) == [[0, 1], [2, 3]]
    assert numbers(deal(units(1, 1, 1, 9), 2)) == [[0, 1, 2], [3]]
    assert numbers(deal(units(100), 4)) == [[0]]
    assert numbers(deal(units(0, 0, 0), 2)) == [[0], [1, 2]]
    assert deal([], 3) == [[]]
    for tasks in range(1, 20):
        work = deal(units(*range(1, 60)), tasks)
        assert [number for run in numbers(work) for number in run] == list(range(59))
        loads = [sum(unit.messages for unit in run) for run in work]
        assert len(work) == tasks and max(loads) <= 1770 / tasks + 60


@pytest.mark.parametrize("kind", [files.PARQUET, files.ARROW_FILE, files.ARROW_STREAM])
def test_a_task_combines_its_units(tmp_path, kind):
    table = table_of(1000).append_column("more", pa.array(["x"] * 1000))
    order = ["more", "message_id", "kind", "value", "root_id", "task_id"]
    write(table.select(order), tmp_path / "m", kind, piece_rows=300)
    combiner = Combiner()
    messages = 0
    for batch in combine_units(units_of(tmp_path), 5):
        part, header = decode_block(batch.column(1)[0].as_buffer())
        combiner.merge(part)
        messages += header.messages
    assert messages == 1000
    columns = [table.column(name).to_numpy() for name in MESSAGE_SCHEMA.names]
    expected = settle_as_sets(*columns, include_pending=True).rows()
    assert sorted(combiner.settle(include_pending=True).rows()) == expected


@pytest.mark.parametrize(
    ("kind", "where"),
    [(files.PARQUET, ", row 9"), (files.ARROW_FILE, ", record batch 2, row 1"), (files.ARROW_STREAM, ", row 9")],
)
def test_a_bad_row_is_found_where_it_stands(tmp_path, kind, where):
    table = table_of()
    bad = table.set_column(3, "task_id", pa.array([0] * 9 + [-7], pa.int32()))
    path = tmp_path / "m"
    write(bad, path, kind)
    with pytest.raises(ColumnValueError) as caught:
        list(combine_units(units_of(path), 2))
    assert str(caught.value) == f"{path}{where}: task_id: expected an int32 >= 0, got -7 (root id 1)"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((5, 7, 1, 0, 0), "kind: expected a kind from 0 to 4, got 5 (root id 7)"),
        ((-1, 7, 1, 0, 0), "kind: expected a kind from 0 to 4, got -1 (root id 7)"),
        ((None, 7, 1, 0, 0), "kind: expected a kind from 0 to 4, got null (root id 7)"),
        ((2, None, 1, 0, 0), "root_id: expected int64, got null (root id null)"),
        ((3, 7, None, 0, 0), "value: expected int64, got null (root id 7)"),
        ((3, 7, 2**63, 0, 0), "value: expected int64, got 9223372036854775808 (root id 7)"),
        ((2, 7, 1, 2**31, 0), "task_id: expected an int32 >= 0, got 2147483648 (root id 7)"),
        ((0, 7, 1, None, 0), "task_id: expected an int32 >= 0 for a TRACK, got null (root id 7)"),
        ((0, 7, 1, 0, None), "message_id: expected int64 for a TRACK, got null (root id 7)"),
    ],
)
def test_what_is_wrong_with_a_row_is_told(tmp_path, row, text):
    columns = zip((2, 1, 1, None, None), row, strict=True)
    types = [pa.int64(), pa.int64(), pa.uint64() if 2**63 in row else pa.int64(), pa.int64(), pa.int64()]
    arrays = [pa.array(column, dtype) for column, dtype in zip(columns, types, strict=True)]
    path = tmp_path / "m"
    write(pa.table(arrays, names=MESSAGE_SCHEMA.names), path)
    with pytest.raises(ColumnValueError) as caught:
        list(combine_units(units_of(path), 2))
    assert str(caught.value) == f"{path}, row 1: {text}"
