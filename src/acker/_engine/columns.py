"""The checks that turn array-likes and Arrow batches into columns of messages.

`check_columns` alone decides which batches are legal. The native core has a fast path for columns that need no
conversion and calls it for every other one, so every error text has one source.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, SupportsIndex

import numpy as np

from acker._engine.protocol import INT64_MAX, INT64_MIN, Kind, check_ms
from acker._engine.schemas import MESSAGE_COLUMNS, MessageColumn
from acker.errors import ArgumentTypeError, ColumnTypeError, ColumnValueError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from acker._engine.completions import Int8Column, Int32Column, Int64Column


class Columns(NamedTuple):
    """One checked batch: C-contiguous arrays of one length in native byte order, perhaps read-only.

    ``kind`` int8 (n,), ``root_id`` and ``value`` int64 (n,), ``task_id`` int32 (n,) or None where no row is a TRACK,
    ``message_id`` int64 (n,) or None, which reads 0.
    """

    kind: Int8Column
    root_id: Int64Column
    value: Int64Column
    task_id: Int32Column | None
    message_id: Int64Column | None


_INTEGER_TYPE: Final = re.compile(r"u?int\d+", re.IGNORECASE)

_KIND, _ROOT_ID, _VALUE, _TASK_ID, _MESSAGE_ID = MESSAGE_COLUMNS


def check_columns(
    kind: npt.ArrayLike,
    root_id: npt.ArrayLike,
    value: npt.ArrayLike,
    task_id: npt.ArrayLike | None = None,
    message_id: npt.ArrayLike | None = None,
) -> Columns:
    """Check one batch, column after column in the order of the parameters, and return it in exact dtypes.

    A column that has its exact dtype and is C-contiguous is returned as it is, without a copy.

    Parameters
    ----------
    kind : (n,) integers from 0 to 4, or one for all rows
    root_id, value : (n,) integers that fit int64
    task_id : (n,) integers that fit int32, >= 0 on every row; None only where no row is a TRACK
    message_id : (n,) integers that fit int64, or None

    Raises
    ------
    ColumnTypeError    bool, float, object or other values that are not integers.
    ColumnValueError   wrong shape or length, masked values, values out of range, a TRACK row without a task id.
        Both name the column, the first bad row (0-based) where one row is to blame, and what was expected.

    Notes
    -----
    O(n). Python sequences are converted value by value, arrays at memory speed.
    """
    scalar_kind = None
    kinds = None
    if _is_scalar(kind):
        scalar_kind = _check_scalar_kind(kind)
    else:
        kinds = _check_column(_KIND, kind, None, "")
    sized_by = "root_id" if kinds is None else "kind"
    roots = _check_column(_ROOT_ID, root_id, None if kinds is None else len(kinds), sized_by)
    rows = len(roots)
    if kinds is None:
        kinds = np.full(rows, scalar_kind, np.int8)
    values = _check_column(_VALUE, value, rows, sized_by)
    tasks = None
    if task_id is not None:
        tasks = _check_column(_TASK_ID, task_id, rows, sized_by)
    else:
        _refuse_track(kinds)
    messages = None if message_id is None else _check_column(_MESSAGE_ID, message_id, rows, sized_by)
    return Columns(kinds, roots, values, tasks, messages)


def check_now_ms(now_ms: SupportsIndex) -> int:
    """Return the clock as an int; any int64 is legal, bool and float are not.

    Integers in seconds cannot be detected: a machine that has been up for 20 days counts about as many milliseconds
    as there were seconds since 1970.
    """
    return check_ms("now_ms", now_ms)


def find_root_id(root_id: object) -> int | None:
    """Return a root id as an int, or None if it is outside int64, so that no acker can hold it.

    Raises
    ------
    ArgumentTypeError   `root_id` is not an integer.
    """
    if isinstance(root_id, (bool, np.bool_)) or not isinstance(root_id, SupportsIndex):
        raise ArgumentTypeError(f"root_id: expected int64, got {type(root_id).__name__}")
    number = operator.index(root_id)
    return number if INT64_MIN <= number <= INT64_MAX else None


def columns_from_arrow(batch: object) -> Columns:
    """Check one Arrow batch or stream of batches; its columns are found by name.

    Zero copy where the columns have the types of `MESSAGE_SCHEMA` and the data is one batch. Further columns are
    ignored; ``task_id`` and ``message_id`` may be missing under the rules of `check_columns`. Imports pyarrow.

    Parameters
    ----------
    batch : object with ``__arrow_c_array__`` (of struct type) or ``__arrow_c_stream__``
        A stream is read to its end.

    Raises
    ------
    ColumnTypeError    no Arrow interface, no columns, or a column that does not hold integers.
    ColumnValueError   a column missing or there twice, nulls, and what `check_columns` refuses.
    """
    table = _arrow_table(batch)
    kinds, roots, values = (_required_column(field, table) for field in (_KIND, _ROOT_ID, _VALUE))
    tasks = _arrow_column(_TASK_ID, table)
    if tasks is None:
        _refuse_track(kinds)
    messages = _arrow_column(_MESSAGE_ID, table)
    return Columns(kinds, roots, values, tasks, messages)


def _is_scalar(data: object) -> bool:
    return isinstance(data, (SupportsIndex, np.generic, float)) and getattr(data, "ndim", 0) == 0


def _check_scalar_kind(kind: object) -> int:
    array = np.asarray(kind)
    if isinstance(kind, np.ma.MaskedArray) and np.ma.is_masked(kind):
        raise ColumnValueError(f"kind: expected {_KIND.expected}, got a masked value")
    if array.dtype.kind not in "iu" and not (array.dtype.kind == "O" and isinstance(array.item(), int)):
        raise ColumnTypeError(f"kind: expected {_KIND.expected}, got {_type_name(kind)}")
    number = int(array)
    if not _KIND.least <= number <= _KIND.most:
        raise ColumnValueError(f"kind: expected {_KIND.expected}, got {number}")
    return number


def _check_column(field: MessageColumn, data: object, rows: int | None, sized_by: str) -> npt.NDArray[Any]:
    """Return one column as a C-contiguous array of the field's dtype; `rows` is the length it must have, if any."""
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes, bytearray, memoryview)):
        return _check_sequence(field, list(data), rows, sized_by)
    try:
        array = np.asarray(data)
    except (TypeError, ValueError) as error:
        raise ColumnTypeError(f"{field.name}: expected a 1-D column ({field.expected}), got {error}") from error
    if array.ndim == 0:
        raise ColumnTypeError(f"{field.name}: expected a 1-D column ({field.expected}), got {_type_name(data)}")
    if array.ndim > 1:
        raise ColumnValueError(f"{field.name}: expected a 1-D column ({field.expected}), got shape {array.shape}")
    _check_length(field, len(array), rows, sized_by)
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        row = _first(np.ma.getmaskarray(data))
        raise ColumnValueError(f"{field.name}: row {row}: expected {field.expected}, got a masked value")
    if array.dtype.kind == "f" and _INTEGER_TYPE.match(str(getattr(data, "dtype", getattr(data, "type", "")))):
        # pandas and pyarrow turn integers with nulls into floats with NaN.
        row = _first(np.isnan(array))
        raise ColumnValueError(f"{field.name}: row {row}: expected {field.expected}, got null")
    return _check_array(field, array)


def _check_array(field: MessageColumn, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Check dtype and values of a 1-D array of the right length."""
    if len(array) == 0:  # NumPy's dtype of an empty column says nothing: np.asarray([]) is float64.
        return np.zeros(0, field.dtype)
    if array.dtype.kind == "O":
        _refuse_objects(field, array)
    if array.dtype.kind not in "iu":
        raise ColumnTypeError(f"{field.name}: expected {field.expected}, got {array.dtype}")
    limits = np.iinfo(array.dtype)
    if field.least <= limits.min and limits.max <= field.most:
        return _plain(field, array)
    # A comparison only where the dtype can hold a bad value: a bound outside of the dtype would not compare in NumPy 1.
    bad = np.zeros(len(array), np.bool_) if limits.min >= field.least else array < field.least
    if limits.max > field.most:
        bad |= array > field.most
    if bad.any():
        row = _first(bad)
        raise ColumnValueError(f"{field.name}: row {row}: expected {field.expected}, got {array[row]}")
    return _plain(field, array)


def _plain(field: MessageColumn, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array itself if C can read it, otherwise a copy that C can read."""
    return np.require(array, field.dtype, ["C_CONTIGUOUS", "ALIGNED"])


def _check_sequence(field: MessageColumn, items: list[Any], rows: int | None, sized_by: str) -> npt.NDArray[Any]:
    """Check a Python sequence value by value: NumPy would turn [1, True] into integers and [2**63, -1] into floats."""
    _check_length(field, len(items), rows, sized_by)
    if set(map(type, items)) == {int}:
        try:
            return _check_array(field, np.array(items, np.int64))
        except OverflowError:
            pass  # The walk below finds the row.
    for row, item in enumerate(items):
        if type(item) is not int and (isinstance(item, (bool, np.bool_)) or not _is_integer(item)):
            raise ColumnTypeError(f"{field.name}: row {row}: expected {field.expected}, got {_type_name(item)}")
        if not field.least <= item <= field.most:
            raise ColumnValueError(f"{field.name}: row {row}: expected {field.expected}, got {int(item)}")
    return np.array(items, field.dtype)


def _is_integer(item: object) -> bool:
    return isinstance(item, (int, np.integer))


def _refuse_objects(field: MessageColumn, array: npt.NDArray[Any]) -> None:
    for row, item in enumerate(array):
        if isinstance(item, (bool, np.bool_)) or not _is_integer(item):
            raise ColumnTypeError(f"{field.name}: row {row}: expected {field.expected}, got {_type_name(item)}")


def _check_length(field: MessageColumn, length: int, rows: int | None, sized_by: str) -> None:
    if rows is not None and length != rows:
        raise ColumnValueError(f"{field.name}: expected {rows} rows as in {sized_by}, got {length}")


def _refuse_track(kinds: Int8Column) -> None:
    track = kinds == Kind.TRACK
    if track.any():
        row = _first(track)
        raise ColumnValueError(f"task_id: row {row}: expected {_TASK_ID.expected} for a TRACK, got no column")


def _first(bad: npt.NDArray[Any]) -> int:
    return int(np.argmax(bad))


def _type_name(item: object) -> str:
    return "None" if item is None else type(item).__name__


def _arrow_table(batch: object) -> pa.Table | pa.RecordBatch:
    import pyarrow as pa

    if isinstance(batch, (pa.RecordBatch, pa.Table)):
        return batch
    try:
        if hasattr(batch, "__arrow_c_array__"):
            return pa.record_batch(batch)
        if hasattr(batch, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(batch).read_all()
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise ColumnTypeError(f"batch: expected the columns of MESSAGE_SCHEMA, got {error}") from error
    raise ColumnTypeError(
        f"batch: expected an object with __arrow_c_array__ or __arrow_c_stream__, got {_type_name(batch)}"
    )


def _arrow_column(field: MessageColumn, table: pa.Table | pa.RecordBatch) -> Any:
    """Return one checked column, or None if the table has none of that name."""
    import pyarrow as pa

    indices = table.schema.get_all_field_indices(field.name)
    if not indices:
        return None
    if len(indices) > 1:
        raise ColumnValueError(f"{field.name}: expected one column of that name, got {len(indices)}")
    column = table.column(indices[0])
    if not pa.types.is_integer(column.type):
        raise ColumnTypeError(f"{field.name}: expected {field.expected}, got {column.type}")
    if column.null_count:
        row = _first(column.is_null().to_numpy(zero_copy_only=False))
        raise ColumnValueError(f"{field.name}: row {row}: expected {field.expected}, got null")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    arrays = [chunk.to_numpy(zero_copy_only=True) for chunk in chunks]
    if len(arrays) == 1:
        return _check_array(field, arrays[0])
    return _check_array(field, np.concatenate(arrays) if arrays else np.zeros(0, field.dtype))


def _required_column(field: MessageColumn, table: pa.Table | pa.RecordBatch) -> Any:
    """Return one checked column; an error where there is none of that name."""
    column = _arrow_column(field, table)
    if column is None:
        raise ColumnValueError(f"{field.name}: expected a column of {field.expected}, got no column of that name")
    return column
