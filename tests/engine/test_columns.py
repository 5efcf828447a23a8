"""What ingest accepts and refuses: every bad input, also by the reference in the same words, and nothing applied."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import acker
from acker import Kind, Outcome
from acker._engine.columns import check_columns, check_now_ms
from acker._engine.completions import Completions
from acker._engine.protocol import INT64_MAX, INT64_MIN
from acker.errors import AckerError, ColumnTypeError, ColumnValueError

N = 3
GOOD = {
    "kind": np.array([0, 2, 2], np.int8),
    "root_id": np.array([7, 7, 8], np.int64),
    "value": np.array([5, 5, 6], np.int64),
    "task_id": np.array([1, 0, 0], np.int32),
    "message_id": np.array([42, 0, 0], np.int64),
}
FINISHED = [(7, 42, 1, Outcome.ACKED, 0)]
KIND, INT, TASK = "a kind from 0 to 4", "int64", "an int32 >= 0"


def accepts(acker_type):
    """Return an acker that holds something, so that a change shows."""
    a = acker_type(buckets=3, seed=1)
    a.ingest([0, 2, 3], [1, 2, 3], [5, 6, 0], [0, 0, 0])
    a.rotate()
    return a


def assert_refused(acker_type, error, text, call):
    """Both `call(acker)` raises exactly this and the acker is exactly as before."""
    a = accepts(acker_type)
    before, stats = a.snapshot(), a.stats()
    with pytest.raises(error) as caught:
        call(a)
    assert str(caught.value) == text
    assert isinstance(caught.value, AckerError)
    assert isinstance(caught.value, TypeError if error is ColumnTypeError else ValueError)
    assert a.snapshot() == before
    assert a.stats() == stats


def ingest(**columns):
    """Return a call of ingest with the good columns, some replaced."""
    return lambda a: a.ingest(*({**GOOD, **columns}.values()))


# --- one bad column at a time -----------------------------------------------------------------------------------------

EXPECTED = {"kind": KIND, "root_id": INT, "value": INT, "task_id": TASK, "message_id": INT}
every_column = pytest.mark.parametrize("name", GOOD)


@every_column
@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (np.array([True, False, True]), "bool"),
        (np.array([1.0, 2.0, 3.0]), "float64"),
        (np.array([1.0, 2.0, 3.0], np.float32), "float32"),
        (np.array([1, 2, 3], np.complex128), "complex128"),
        (np.array([1, 2, 3], object), "object"),
        (np.array(["1", "2", "3"]), "<U1"),
        (np.array([b"1", b"2", b"3"]), "|S1"),
        (np.array([1, 2, 3], "datetime64[s]"), "datetime64[s]"),
        (np.array([1, 2, 3], "timedelta64[s]"), "timedelta64[s]"),
        (np.zeros(3, [("a", np.int64)]), "[('a', '<i8')]"),
        (pd.Series([1.0, 2.0, 3.0]), "float64"),
        (pa.array([1.0, 2.0, 3.0]), "float64"),
    ],
)
def test_a_dtype_that_is_not_of_integers(acker_type, name, bad, got):
    text = f"{name}: expected {EXPECTED[name]}, got {got}"
    assert_refused(acker_type, ColumnTypeError, text, ingest(**{name: bad}))


@every_column
@pytest.mark.parametrize(
    ("item", "got"),
    [
        (True, "bool"),
        (np.True_, "bool"),
        (1.0, "float"),
        (np.float64(1), "float64"),
        ("1", "str"),
        (None, "None"),
        ([1], "list"),
        (float("nan"), "float"),
        (pd.NA, "NAType"),
    ],
)
@pytest.mark.parametrize("container", [list, tuple, lambda items: np.array([*items, 0], object)[:N]])
def test_a_value_that_is_not_an_integer_is_named_by_its_row(acker_type, name, item, got, container):
    text = f"{name}: row 1: expected {EXPECTED[name]}, got {got}"
    assert_refused(acker_type, ColumnTypeError, text, ingest(**{name: container([1, item, item])}))


@every_column
@pytest.mark.parametrize(
    "bad",
    [
        np.ma.array([1, 2, 3], mask=[False, True, True]),
        pd.Series([1, None, None], dtype="Int64"),
        pa.array([1, None, None], pa.int64()),
        pa.chunked_array([[1], [None, None]], pa.int64()),
    ],
    ids=["masked", "pandas", "arrow", "chunked"],
)
def test_a_masked_or_null_value_is_named_by_its_row(acker_type, name, bad):
    got = "a masked value" if isinstance(bad, np.ma.MaskedArray) else "null"
    text = f"{name}: row 1: expected {EXPECTED[name]}, got {got}"
    assert_refused(acker_type, ColumnValueError, text, ingest(**{name: bad}))


@every_column
@pytest.mark.parametrize(
    ("bad", "got"),
    [
        (np.ones((3, 1), np.int64), "shape (3, 1)"),
        (np.ones((1, 3), np.int8), "shape (1, 3)"),
        (np.ones((0, 3), np.int8), "shape (0, 3)"),
        (pd.DataFrame({"a": [1, 2, 3]}), "shape (3, 1)"),
    ],
)
def test_a_column_that_is_not_1_d(acker_type, name, bad, got):
    text = f"{name}: expected a 1-D column ({EXPECTED[name]}), got {got}"
    assert_refused(acker_type, ColumnValueError, text, ingest(**{name: bad}))


@pytest.mark.parametrize("name", list(GOOD)[1:])
@pytest.mark.parametrize(
    ("bad", "got"),
    [(5, "int"), (np.int64(5), "int64"), (np.array(5), "ndarray"), ("555", "str"), (b"555", "bytes"), ({1, 2}, "set")],
)
def test_only_a_kind_may_be_a_scalar(acker_type, name, bad, got):
    text = f"{name}: expected a 1-D column ({EXPECTED[name]}), got {got}"
    assert_refused(acker_type, ColumnTypeError, text, ingest(**{name: bad}))


@pytest.mark.parametrize("name", ["kind", "root_id", "value"])
def test_the_first_three_columns_cannot_be_left_out(acker_type, name):
    text = f"{name}: expected a 1-D column ({EXPECTED[name]}), got None"
    assert_refused(acker_type, ColumnTypeError, text, ingest(**{name: None}))


@pytest.mark.parametrize("name", list(GOOD)[1:])
@pytest.mark.parametrize("bad", [[1, 1], np.ones(4, np.int32), [], np.ones(0, np.int64)], ids=len)
def test_a_column_of_another_length(acker_type, name, bad):
    text = f"{name}: expected 3 rows as in kind, got {len(bad)}"
    assert_refused(acker_type, ColumnValueError, text, ingest(**{name: bad}))


def test_with_a_scalar_kind_root_id_says_how_many_rows_there_are(acker_type):
    text = "value: expected 3 rows as in root_id, got 2"
    assert_refused(acker_type, ColumnValueError, text, ingest(kind=Kind.OK, value=[1, 1]))


@pytest.mark.parametrize("name", ["root_id", "value", "message_id"])
@pytest.mark.parametrize("bad", [2**63, -(2**63) - 1, 2**64, 10**30])
@pytest.mark.parametrize("others", [1, -1])
def test_a_python_int_outside_int64_is_named_by_its_row(acker_type, name, bad, others):
    # NumPy makes floats of [-1, 2**63], and objects of [1, 2**64].
    text = f"{name}: row 1: expected int64, got {bad}"
    assert_refused(acker_type, ColumnValueError, text, ingest(**{name: [others, bad, bad]}))


@pytest.mark.parametrize("name", ["root_id", "value", "message_id"])
def test_a_uint64_above_int64_is_named_by_its_row(acker_type, name):
    bad = np.array([1, 2**63, 2**64 - 1], np.uint64)
    text = f"{name}: row 1: expected int64, got {2**63}"
    assert_refused(acker_type, ColumnValueError, text, ingest(**{name: bad}))


@pytest.mark.parametrize("bad", [-1, 5, 127, -128])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int64, None])
def test_an_unknown_kind_is_named_by_its_row(acker_type, bad, dtype):
    kinds = [2, bad, bad] if dtype is None else np.array([2, bad, bad], dtype)
    assert_refused(acker_type, ColumnValueError, f"kind: row 1: expected {KIND}, got {bad}", ingest(kind=kinds))


def test_a_kind_is_not_cut_down_to_8_bits(acker_type):
    kinds = np.array([2, 258, 2], np.int64)
    assert_refused(acker_type, ColumnValueError, f"kind: row 1: expected {KIND}, got 258", ingest(kind=kinds))


@pytest.mark.parametrize(
    ("bad", "error", "got"),
    [
        (5, ColumnValueError, "5"),
        (-1, ColumnValueError, "-1"),
        (2**64, ColumnValueError, str(2**64)),
        (np.int64(256), ColumnValueError, "256"),
        (np.array(9), ColumnValueError, "9"),
        (2.0, ColumnTypeError, "float"),
        (True, ColumnTypeError, "bool"),
        (np.True_, ColumnTypeError, "bool"),
        (np.float32(2), ColumnTypeError, "float32"),
        (np.ma.masked, ColumnValueError, "a masked value"),
    ],
)
def test_a_bad_scalar_kind(acker_type, bad, error, got):
    assert_refused(acker_type, error, f"kind: expected {KIND}, got {got}", ingest(kind=bad))


@pytest.mark.parametrize("bad", [-1, -(2**31), 2**31, 2**40, INT64_MIN])
@pytest.mark.parametrize("row", [0, 2])
def test_a_task_id_outside_int32_or_negative_is_named_by_its_row(acker_type, bad, row):
    # On every row, though it is read on TRACK rows only: here row 2 is an OK.
    tasks = np.array([0, 0, 0], np.int64)
    tasks[row] = bad
    text = f"task_id: row {row}: expected {TASK}, got {bad}"
    assert_refused(acker_type, ColumnValueError, text, ingest(task_id=tasks))
    assert_refused(acker_type, ColumnValueError, text, ingest(task_id=tasks.tolist()))
    if -(2**31) <= bad < 2**31:
        assert_refused(acker_type, ColumnValueError, text, ingest(task_id=tasks.astype(np.int32)))


@pytest.mark.parametrize("kind", [np.array([2, 0, 0], np.int8), [2, 0, 0], Kind.TRACK])
def test_task_id_may_not_be_left_out_where_a_row_is_a_track(acker_type, kind):
    row = 0 if kind is Kind.TRACK else 1
    text = f"task_id: row {row}: expected {TASK} for a TRACK, got no column"
    assert_refused(acker_type, ColumnValueError, text, ingest(kind=kind, task_id=None))


# --- which of several errors is told ----------------------------------------------------------------------------------


def test_columns_are_checked_in_the_order_of_the_parameters(acker_type):
    bad = {
        "kind": ([2, 2, 9], ColumnValueError, f"kind: row 2: expected {KIND}, got 9"),
        "root_id": ([1.5, 1, 1], ColumnTypeError, "root_id: row 0: expected int64, got float"),
        "value": (np.ones(2, np.int64), ColumnValueError, "value: expected 3 rows as in kind, got 2"),
        "task_id": (np.array([0, 0, -1], np.int32), ColumnValueError, f"task_id: row 2: expected {TASK}, got -1"),
        "message_id": (np.ones(3), ColumnTypeError, "message_id: expected int64, got float64"),
    }
    for first in range(len(bad)):
        names = list(bad)[first:]
        _, error, text = bad[names[0]]
        assert_refused(acker_type, error, text, ingest(**{name: bad[name][0] for name in names}))


def test_a_missing_task_id_is_told_before_a_bad_message_id(acker_type):
    text = f"task_id: row 0: expected {TASK} for a TRACK, got no column"
    assert_refused(acker_type, ColumnValueError, text, ingest(task_id=None, message_id=[1.5] * 3))


def test_the_clock_is_checked_last(acker_type):
    def call(a):
        a.ingest([2, 9], [1, 1], [1, 1], now_ms=1.5)

    assert_refused(acker_type, ColumnValueError, f"kind: row 1: expected {KIND}, got 9", call)


def test_the_first_bad_row_is_the_one_that_is_named(acker_type):
    tasks = np.zeros(100_000, np.int32)
    tasks[[70_001, 99_999]] = -5
    kinds = np.full(100_000, 2, np.int8)
    columns = (kinds, np.arange(100_000), np.ones(100_000, np.int64), tasks)
    text = f"task_id: row 70001: expected {TASK}, got -5"
    assert_refused(acker_type, ColumnValueError, text, lambda a: a.ingest(*columns))
    kinds[3] = 7
    text = f"kind: row 3: expected {KIND}, got 7"
    assert_refused(acker_type, ColumnValueError, text, lambda a: a.ingest(*columns))


def test_an_array_interface_that_raises_is_a_type_error(acker_type):
    class Ragged:
        def __array__(self, dtype=None, copy=None):
            raise ValueError("no array of that")

    text = "value: expected a 1-D column (int64), got no array of that"
    assert_refused(acker_type, ColumnTypeError, text, ingest(value=Ragged()))


# --- what is accepted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        np.ndarray.tolist,
        lambda column: [np.int64(x) for x in column],
        lambda column: column.astype(np.int64),
        lambda column: column.astype(np.uint64),
        lambda column: column.astype(np.int16),
        lambda column: column.astype(np.uint8),
        lambda column: column.astype(">i8"),
        lambda column: np.repeat(column, 2)[::2],
        lambda column: column[::-1].copy()[::-1],
        lambda column: np.frombuffer(b"x" + column.tobytes(), column.dtype, offset=1),  # not aligned
        lambda column: np.ma.array(column, mask=False),
        lambda column: column.view(np.memmap),
        pd.Series,
        lambda column: pd.Series(column, dtype="Int64"),
        pa.array,
        lambda column: pa.chunked_array([pa.array(column[:1]), pa.array(column[1:])]),
        lambda column: memoryview(column.copy()),
    ],
)
def test_integers_of_any_width_and_home_are_converted(acker_type, convert):
    a = acker_type()
    assert a.ingest(*map(convert, GOOD.values())).rows() == FINISHED
    assert 8 in a


def test_read_only_columns_are_fine(acker_type):
    columns = [column.copy() for column in GOOD.values()]
    for column in columns:
        column.flags.writeable = False
    assert acker_type().ingest(*columns).rows() == FINISHED


def test_a_range_is_a_column(acker_type):
    a = acker_type()
    a.ingest(Kind.OK, range(5), range(5))
    assert len(a) == 5


@pytest.mark.parametrize("scalar", [Kind.OK, 2, np.int8(2), np.uint64(2), np.array(2), np.ma.array(2)])
def test_a_scalar_kind_applies_to_all_rows(acker_type, scalar):
    a = acker_type()
    assert len(a.ingest(scalar, [7, 8], [5, 6])) == 0
    assert a.ingest([Kind.TRACK] * 2, [7, 8], [5, 6], [1, 2]).rows() == [(7, 0, 1, 0, 0), (8, 0, 2, 0, 0)]


@pytest.mark.parametrize("kind", [[], Kind.OK, Kind.TRACK, np.array([])])
@pytest.mark.parametrize(
    "nothing", [[], (), np.array([]), np.zeros(0, np.int64), pd.Series([], dtype=object), range(0)]
)
def test_nothing_is_an_empty_batch(acker_type, kind, nothing):
    a = accepts(acker_type)
    before = a.snapshot()
    assert a.ingest(kind, nothing, nothing) == Completions.empty()
    assert a.ingest(kind, nothing, nothing, nothing, nothing) == Completions.empty()
    assert a.snapshot() == before


def test_message_id_left_out_reads_0(acker_type):
    a = acker_type()
    assert a.ingest([0], [7], [0], [3]).rows() == [(7, 0, 3, 0, 0)]
    assert a.ingest(kind=[0], root_id=[7], value=[0], task_id=[3], now_ms=5).rows() == [(7, 0, 3, 0, 0)]


def test_task_and_message_id_of_other_messages_are_not_read(acker_type):
    a = acker_type()
    a.ingest([2, 1, 3], [7, 7, 7], [4, 5, 0], [9, 9, 9], [99, 99, 99])
    assert a.ingest([0], [7], [1], [3], [42]).rows() == [(7, 42, 3, Outcome.ACKED, 0)]


def test_the_columns_of_the_caller_are_not_written_to(acker_type):
    columns = [column.copy() for column in GOOD.values()]
    acker_type().ingest(*columns)
    for column, good in zip(columns, GOOD.values(), strict=True):
        assert np.array_equal(column, good)


def test_completions_own_their_memory(acker_type):
    a = acker_type()
    first = a.ingest(Kind.TRACK, [1, 2], [0, 0], [3, 3], [10, 20])
    kept = first.rows()
    for root in range(100):
        a.ingest(Kind.TRACK, [root] * 50, [0] * 50, [5] * 50, [6] * 50)
    del a
    assert first.rows() == kept == [(1, 10, 3, 0, 0), (2, 20, 3, 0, 0)]


# --- check_columns and Completions themselves -------------------------------------------------------------------------


def test_exact_columns_are_not_copied():
    checked = check_columns(*GOOD.values())
    for name, column in GOOD.items():
        assert getattr(checked, name) is column


def test_checked_columns_have_exact_dtypes():
    checked = check_columns([2, 2], np.array([1, 2], ">i4"), np.array([1, 2, 3, 4], np.int64)[::2], [0, 1], [1, 2])
    assert [column.dtype for column in checked] == [np.int8, np.int64, np.int64, np.int32, np.int64]
    assert all(column.flags.c_contiguous and column.flags.aligned and column.dtype.isnative for column in checked)


def test_check_now_ms_takes_any_int64():
    assert [check_now_ms(now) for now in (INT64_MIN, INT64_MAX, np.int8(-1), np.uint64(7))] == [
        INT64_MIN,
        INT64_MAX,
        -1,
        7,
    ]


def test_completions_are_a_value():
    rows = [(INT64_MIN, 1, 2, 3, 4), (5, INT64_MAX, 7, 1, 9)]
    done = Completions.from_rows(rows)
    assert (len(done), done.rows()) == (2, rows)
    assert done == Completions.from_rows(rows)
    assert done != Completions.from_rows(rows[::-1])
    assert done != Completions.from_rows(rows[:1])
    assert done != rows
    assert Completions.concat([done, Completions.empty(), done]).rows() == rows * 2
    assert Completions.concat([]) == Completions.empty()
    assert repr(Completions.from_rows(rows[1:])) == (
        f"Completions(root_id=[5], message_id=[{INT64_MAX}], task_id=[7], outcome=[1], elapsed_ms=[9])"
    )
    with pytest.raises(TypeError, match="unhashable"):
        hash(done)


def test_completions_to_arrow_has_the_schema():
    for rows in ([], [(5, 6, 7, 1, 9)]):
        batch = Completions.from_rows(rows).to_arrow()
        assert batch.schema == acker.COMPLETION_SCHEMA
        assert [tuple(row.values()) for row in batch.to_pylist()] == rows


# --- Arrow ------------------------------------------------------------------------------------------------------------


def good_batch(**columns):
    types = {"kind": pa.int8(), "task_id": pa.int32()}
    arrays = {name: pa.array(column, types.get(name, pa.int64())) for name, column in GOOD.items()}
    arrays.update(columns)
    return pa.table({name: array for name, array in arrays.items() if array is not None})


class Capsule:
    """An object that has the Arrow C array interface and nothing else."""

    def __init__(self, array):
        self._array = array

    def __arrow_c_array__(self, requested_schema=None):
        return self._array.__arrow_c_array__(requested_schema)


class Stream:
    """An object that has the Arrow C stream interface and nothing else."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def in_pieces(table):
    return pa.concat_tables([table.slice(0, 1), table.slice(1, 0), table.slice(1)])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda table: table,
        lambda table: table.to_batches()[0],
        lambda table: Capsule(table.to_batches()[0]),
        lambda table: Capsule(table.to_struct_array().chunk(0)),
        Stream,
        in_pieces,
        lambda table: Stream(in_pieces(table)),
        lambda table: table.to_reader(),
        lambda table: table.select(table.column_names[::-1]),
        lambda table: table.append_column("further", pa.array(["a", None, "c"])),
        lambda table: pa.concat_tables([table, table]).slice(3),
        lambda table: table.to_pandas(),
        lambda table: pa.table({name: table[name].cast(pa.int64()) for name in table.column_names}),
        lambda table: pa.table({name: table[name].cast(pa.uint16()) for name in table.column_names}),
    ],
)
def test_arrow_batches_of_any_home(acker_type, wrap):
    a = acker_type()
    assert a.ingest_arrow(wrap(good_batch()), now_ms=5).rows() == FINISHED
    assert 8 in a


def test_arrow_columns_that_may_be_left_out(acker_type):
    a = acker_type()
    assert a.ingest_arrow(good_batch(message_id=None)).rows() == [(7, 0, 1, 0, 0)]
    ok = good_batch(task_id=None, message_id=None).slice(1)
    assert len(a.ingest_arrow(ok)) == 0


def test_an_empty_arrow_batch(acker_type):
    a = accepts(acker_type)
    before = a.snapshot()
    empty = acker.MESSAGE_SCHEMA.empty_table()
    for batch in (empty, Stream(empty), pa.RecordBatch.from_pylist([], acker.MESSAGE_SCHEMA)):
        assert a.ingest_arrow(batch) == Completions.empty()
    assert a.snapshot() == before


@pytest.mark.parametrize(
    ("batch", "error", "text"),
    [
        (good_batch(kind=None), ColumnValueError, f"kind: expected a column of {KIND}, got no column of that name"),
        (good_batch(root_id=None), ColumnValueError, "root_id: expected a column of int64, got no column of that name"),
        (good_batch(value=None), ColumnValueError, "value: expected a column of int64, got no column of that name"),
        (good_batch(task_id=None), ColumnValueError, f"task_id: row 0: expected {TASK} for a TRACK, got no column"),
        (
            pa.Table.from_arrays([*good_batch().columns, pa.array([1, 2, 3])], [*GOOD, "value"]),
            ColumnValueError,
            "value: expected one column of that name, got 2",
        ),
        (good_batch(value=pa.array([1.0, 2, 3])), ColumnTypeError, "value: expected int64, got double"),
        (good_batch(kind=pa.array([True] * 3)), ColumnTypeError, f"kind: expected {KIND}, got bool"),
        (good_batch(root_id=pa.array(["1", "2", "3"])), ColumnTypeError, "root_id: expected int64, got string"),
        (
            good_batch(root_id=pa.array([1, 2, 3], pa.timestamp("ms"))),
            ColumnTypeError,
            "root_id: expected int64, got timestamp[ms]",
        ),
        (
            good_batch(value=pa.array([1, 2, 3]).dictionary_encode()),
            ColumnTypeError,
            "value: expected int64, got dictionary<values=int64, indices=int32, ordered=0>",
        ),
        (good_batch(value=pa.array([1, None, None])), ColumnValueError, "value: row 1: expected int64, got null"),
        (
            good_batch(task_id=pa.array([1, 2, None], pa.int32())),
            ColumnValueError,
            f"task_id: row 2: expected {TASK}, got null",
        ),
        (good_batch(value=pa.nulls(3)), ColumnTypeError, "value: expected int64, got null"),
        (
            in_pieces(good_batch(value=pa.array([1, 2, None]))),
            ColumnValueError,
            "value: row 2: expected int64, got null",
        ),
        (
            in_pieces(good_batch(kind=pa.array([2, 2, 5]))),
            ColumnValueError,
            f"kind: row 2: expected {KIND}, got 5",
        ),
        (
            good_batch(root_id=pa.array([1, 2**63, 3], pa.uint64())),
            ColumnValueError,
            f"root_id: row 1: expected int64, got {2**63}",
        ),
        (good_batch(task_id=pa.array([1, 2, -3])), ColumnValueError, f"task_id: row 2: expected {TASK}, got -3"),
        (
            good_batch(kind=pa.array([2, 2, 5]), root_id=None),
            ColumnValueError,
            f"kind: row 2: expected {KIND}, got 5",
        ),
        (
            7,
            ColumnTypeError,
            "batch: expected an object with __arrow_c_array__ or __arrow_c_stream__, got int",
        ),
        (
            None,
            ColumnTypeError,
            "batch: expected an object with __arrow_c_array__ or __arrow_c_stream__, got None",
        ),
    ],
)
def test_bad_arrow_batches(acker_type, batch, error, text):
    assert_refused(acker_type, error, text, lambda a: a.ingest_arrow(batch))
    if hasattr(batch, "__arrow_c_stream__"):
        assert_refused(acker_type, error, text, lambda a: a.ingest_arrow(Stream(batch)))


@pytest.mark.parametrize(
    "batch",
    [
        pa.array([1, 2]),
        pa.chunked_array([[1, 2]]),
        Capsule(pa.array([{"kind": 2}, None])),
    ],
    ids=["no struct", "stream of no struct", "null structs"],
)
def test_arrow_data_that_is_no_batch(acker_type, batch):
    a = accepts(acker_type)
    before = a.snapshot()
    with pytest.raises(ColumnTypeError, match=re.escape("batch: expected the columns of MESSAGE_SCHEMA, got ")):
        a.ingest_arrow(batch)
    assert a.snapshot() == before


def test_an_arrow_batch_without_nulls_is_not_copied():
    batch = good_batch().to_batches()[0]
    checked = acker._engine.columns.columns_from_arrow(batch)
    for name in GOOD:
        address = getattr(checked, name).__array_interface__["data"][0]
        assert address == batch.column(name).buffers()[1].address


def test_a_bad_clock_with_an_arrow_batch(acker_type):
    a = accepts(acker_type)
    before = a.snapshot()
    with pytest.raises(TypeError, match="now_ms: expected an integer"):
        a.ingest_arrow(good_batch(), now_ms=0.5)
    assert a.snapshot() == before
