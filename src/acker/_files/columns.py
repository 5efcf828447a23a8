"""Columns of messages in Arrow batches: their checks, and those of event times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from acker._engine.columns import Columns
from acker._engine.protocol import Kind
from acker._engine.schemas import MESSAGE_COLUMNS, MessageColumn
from acker.errors import ColumnValueError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

NULLABLE: Final = ("task_id", "message_id")

# The range of event times: what Spark and Python can write as a date.
EVENT_MS_MIN: Final = -62_135_596_800_000
EVENT_MS_MAX: Final = 253_402_300_799_999
# Units of Arrow's timestamps in a millisecond; seconds have to be multiplied.
_UNITS: Final = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}


def columns_of(batch: pa.RecordBatch, locate: Callable[[int], str]) -> Columns:
    """Check one Arrow batch that holds the columns of messages and return them, without a copy where types are exact.

    Values under nulls stay as they are: such columns are read on TRACK rows only, where null is an error.

    Parameters
    ----------
    batch : RecordBatch
        Its columns have integer types, which `inspect_file` checks, but not yet legal values.
    locate : callable
        Returns where a row of the batch comes from, for errors.

    Raises
    ------
    ColumnValueError   the column, where the first bad row is, its root id, and what was expected.
    """
    arrays = {field.name: batch.column(field.name) for field in MESSAGE_COLUMNS}

    def refuse(field: MessageColumn, bad: npt.NDArray[np.bool_], suffix: str = "") -> None:
        if bad.any():
            row = int(np.argmax(bad))
            got, root = (arrays[name][row].as_py() for name in (field.name, "root_id"))
            shown = ["null" if number is None else number for number in (got, root)]
            raise ColumnValueError(
                f"{locate(row)}: {field.name}: expected {field.expected}{suffix}, got {shown[0]} (root id {shown[1]})"
            )

    columns: dict[str, Any] = {}
    for field in MESSAGE_COLUMNS:
        array = arrays[field.name]
        numbers = _numbers(array)
        if array.null_count and field.name not in NULLABLE:
            refuse(field, ~_is_valid(array))
        limits = np.iinfo(numbers.dtype)
        if limits.min < field.least or limits.max > field.most:
            bad = _outside(numbers, field)
            if bad is not None:
                refuse(field, bad & _is_valid(array))
        columns[field.name] = np.ascontiguousarray(numbers, field.dtype)
        if array.null_count and field.name in NULLABLE:
            is_track = columns["kind"] == int(Kind.TRACK)
            if _is_null_at(array, is_track):
                refuse(field, is_track & ~_is_valid(array), " for a TRACK")
    return Columns(**columns)


def event_times_of(array: pa.Array[Any], name: str, locate: Callable[[int], str]) -> npt.NDArray[np.int64]:
    """Check a column of event times and return them in milliseconds since 1970, rounded down.

    Parameters
    ----------
    array : Array
        Timestamps, or integers in milliseconds.
    name : str
        The column's, for errors.
    locate : callable
        As in `columns_of`.

    Raises
    ------
    ColumnValueError   where the first bad row is, and what was expected.
    """
    times = array.cast(pa.int64())
    unit = array.type.unit if pa.types.is_timestamp(array.type) else "ms"
    numbers = _numbers(times) // _UNITS[unit]
    milliseconds = 1000 if unit == "s" else 1
    bad = (numbers < EVENT_MS_MIN // milliseconds) | (numbers > EVENT_MS_MAX // milliseconds)
    if array.null_count:
        bad |= ~array.is_valid().to_numpy(zero_copy_only=False)
    if bad.any():
        row = int(np.argmax(bad))
        raise ColumnValueError(
            f"{locate(row)}: {name}: expected a time in each row, in milliseconds since 1970 from year 1 to 9999, got"
            f" {'null' if not array[row].is_valid else times[row].as_py()}"
        )
    return np.ascontiguousarray(numbers * milliseconds, np.int64)


def latest_of(latest_ms: int | None, event_ms: npt.NDArray[np.int64]) -> int | None:
    """Return the later of `latest_ms` and the latest event time; None if there is neither."""
    if not len(event_ms):
        return latest_ms
    latest = int(np.max(event_ms))
    return latest if latest_ms is None else max(latest, latest_ms)


def _outside(numbers: npt.NDArray[Any], field: MessageColumn) -> npt.NDArray[np.bool_] | None:
    """Return which numbers are out of range, or None if none is. In the common case two fast passes find none."""
    least = max(field.least, int(np.iinfo(numbers.dtype).min))
    most = min(field.most, int(np.iinfo(numbers.dtype).max))
    if len(numbers) == 0 or (numbers.min() >= least and numbers.max() <= most):
        return None
    return (numbers < least) | (numbers > most)


def _is_valid(array: pa.Array[Any]) -> npt.NDArray[np.bool_]:
    return array.is_valid().to_numpy(zero_copy_only=False)


def _is_null_at(array: pa.Array[Any], rows: npt.NDArray[np.bool_]) -> bool:
    """Return whether an array with nulls has one at any of these rows. Reads Arrow's bitmap as it is, if it can."""
    bitmap = array.buffers()[0]
    if bitmap is None or array.offset % 8:
        return bool((rows & ~_is_valid(array)).any())
    bits = np.packbits(rows, bitorder="little")
    valid = np.frombuffer(bitmap, np.uint8, len(bits), array.offset // 8)
    return bool((bits & ~valid).any())


def _numbers(array: pa.Array[Any]) -> npt.NDArray[Any]:
    """Return the values of an integer array, whatever lies under its nulls, as a view."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros(len(array), dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
