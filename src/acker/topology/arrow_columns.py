"""Columns that user code gives, as Arrow has them, and the input rows from which its output rows derive."""

from __future__ import annotations

import datetime as dt
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.topology.anchors import Parents

if TYPE_CHECKING:
    import pyarrow as pa


def array_of(values: Any, kind: pa.DataType | None, name: str) -> pa.Array[Any]:
    """Return values as a column of a type, if it is known; raise for one of which Arrow would drop a part."""
    import pyarrow as pa

    if not isinstance(values, np.ndarray):
        values = list(values)
        if kind is not None:
            _refuse_losses(values, kind, name)
    column: pa.Array[Any] = pa.array(values, kind)
    return column


def is_known(kind: pa.DataType) -> bool:
    """Return whether a type says what values are at every depth: None, empty lists and empty dicts leave it open."""
    import pyarrow as pa

    if isinstance(kind, pa.StructType):
        return kind.num_fields > 0 and all(is_known(field.type) for field in kind)
    if isinstance(kind, pa.MapType):
        return is_known(kind.key_type) and is_known(kind.item_type)
    inner = getattr(kind, "value_type", None)
    return not pa.types.is_null(kind) if inner is None else is_known(inner)


def owned(values: Any) -> Any:
    """Return values that their caller may change afterwards: Arrow takes over the memory of NumPy and pandas."""
    return values.copy() if hasattr(values, "__array__") and hasattr(values, "copy") else values


def _refuse_losses(values: list[Any], kind: pa.DataType, name: str) -> None:
    """Raise for the first value with a part that the type has no place for, also within lists, maps and structs."""
    import pyarrow as pa

    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        types: set[Any] = set(map(type, values)) - {int, type(None)}
        if getattr(kind, "unit", None) in ("us", "ns"):  # nothing of Python is smaller
            types -= {dt.datetime, dt.time, dt.timedelta}
        for each in types:
            if issubclass(each, numbers.Number):
                _refuse_any(values, each, lambda value: value != int(value), kind, name)
            elif issubclass(each, (dt.datetime, dt.time, dt.timedelta)):
                _refuse_any(values, each, _loses_time_in(kind), kind, name)
    elif isinstance(kind, pa.DictionaryType):
        _refuse_losses(values, kind.value_type, name)
    elif isinstance(kind, pa.MapType):
        entries = [entry for value in values if value is not None for entry in _entries_of(value)]
        _refuse_losses([key for key, _ in entries], kind.key_type, name)
        _refuse_losses([item for _, item in entries], kind.item_type, name)
    elif isinstance(kind, pa.StructType):
        _refuse_losses_of_structs(values, kind, name)
    elif (inner := getattr(kind, "value_type", None)) is not None:
        lists = [value for value in values if isinstance(value, (list, tuple, set, frozenset, np.ndarray))]
        _refuse_losses([each for value in lists for each in value], inner, name)


def _refuse_any(values: list[Any], type_: type, loses: Callable[[Any], bool], kind: pa.DataType, name: str) -> None:
    bad = [value for value in values if type(value) is type_ and loses(value)]
    if bad:
        raise ArgumentValueError(f"{name}: expected {kind}, got {bad[0]!r}")


def _loses_time_in(kind: Any) -> Callable[[Any], bool]:
    """Return a function that says whether a time has parts that are smaller than the unit of a type."""
    import pyarrow as pa

    if pa.types.is_date(kind):
        return lambda value: isinstance(value, dt.datetime) and value.time() != dt.time()
    micros = {"s": 1_000_000, "ms": 1000}.get(getattr(kind, "unit", "ns"), 1)
    keeps_nanos = getattr(kind, "unit", "ns") == "ns"

    def loses(value: Any) -> bool:
        of_delta = isinstance(value, dt.timedelta)
        nanos = getattr(value, "nanoseconds" if of_delta else "nanosecond", 0)  # of pandas
        return bool((value.microseconds if of_delta else value.microsecond) % micros or (nanos and not keeps_nanos))

    return loses


def _entries_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return keys and items of what Arrow takes for a map or, but for tuples, for a struct."""
    if isinstance(value, Mapping):
        return value.items()
    is_pairs = isinstance(value, (list, tuple)) and all(isinstance(each, tuple) and len(each) == 2 for each in value)
    return value if is_pairs else ()


def _refuse_losses_of_structs(values: list[Any], kind: pa.StructType, name: str) -> None:
    names = [field.name for field in kind]
    columns: dict[str, list[Any]] = {each: [] for each in names}
    for value in values:
        # In a tuple of values, they are in the order of the fields.
        entries = zip(names, value, strict=False) if isinstance(value, tuple) else _entries_of(value)
        for key, item in entries:
            if key not in columns:
                raise ArgumentValueError(f"{name}: expected {kind}, which has no field {key!r}, got {value!r:.200}")
            columns[key].append(item)
    for field in kind:
        _refuse_losses(columns[field.name], field.type, f"{name}.{field.name}")


def table_of(rows: Any, types: Mapping[str, pa.DataType], what: str = "rows") -> pa.Table:
    """Return rows as a table. Columns that are not Arrow's get the type that `types` has for them.

    Parameters
    ----------
    rows : RecordBatch, Table, or mapping of column name to array-like
    types : mapping
    what : str
        Names the rows in errors.
    """
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows
    if not isinstance(rows, Mapping):
        raise ArgumentTypeError(f"{what}: expected a RecordBatch, a Table or a mapping, got {type(rows).__name__}")

    def read(name: str, column: Any) -> Any:
        if isinstance(column, (pa.Array, pa.ChunkedArray)):
            return column
        return array_of(column, types[name], name) if name in types else pa.array(column)

    return pa.table({name: read(name, column) for name, column in rows.items()})


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one batch."""
    import pyarrow as pa

    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    if batches:
        raise ArgumentValueError(f"{table.num_rows} rows do not fit one Arrow batch: emit fewer at once")
    columns: list[Any] = [pa.array([], entry.type) for entry in table.schema]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def take_rows(batch: pa.RecordBatch, rows: Any) -> pa.RecordBatch:
    """Return the rows of a batch at these indices, whatever the types of its columns."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([take(column, rows) for column in batch.columns], schema=batch.schema)


def take(column: pa.Array[Any], rows: Any) -> pa.Array[Any]:
    """Return the values at these indices. Arrow's own `take` does not know views of text and binaries."""
    import pyarrow as pa

    indices = rows if isinstance(rows, pa.Array) else pa.array(rows)
    taken: pa.Array[Any]
    try:
        taken = column.take(indices)
    except pa.ArrowNotImplementedError:
        plain: Any = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(column.type)
        if plain is not None:
            taken = column.cast(plain).take(indices).cast(column.type)
        else:  # A view within a list or a struct.
            missing = pa.nulls(1, column.type)
            parts = [missing if row is None else column.slice(row, 1) for row in indices.to_pylist()]
            taken = pa.concat_arrays(parts) if parts else column.slice(0, 0)
    return taken


def read_parents(parents: Any, outputs: int, inputs: int, what: str = "parent") -> Parents:
    """Return the input rows of output rows as pairs.

    Parameters
    ----------
    parents : integers, or lists of integers
        The input row (0-based) of each output row; a list anchors it to several, null or an empty list to none.
    outputs, inputs : int
        Numbers of rows.
    what : str
        Names the parents in errors.
    """
    output, row = _pairs_of(parents, outputs, what)
    if row.size and (row.dtype.kind not in "iu" or row.ndim != 1):
        raise ArgumentTypeError(f"{what}: expected integers or lists of them, got {row.dtype}")
    row = row.astype(np.int64)
    bad = np.flatnonzero((row < 0) | (row >= inputs))
    if bad.size:
        text = f"output row {output[bad[0]]} names input row {row[bad[0]]} of a batch of {inputs}"
        raise ArgumentValueError(f"{what}: {text}")
    return Parents(output, row)


def _pairs_of(parents: Any, outputs: int, what: str) -> tuple[Any, Any]:
    import pyarrow as pa

    if isinstance(parents, (pa.Array, pa.ChunkedArray)):
        if parents.null_count or pa.types.is_nested(parents.type):
            parents = parents.to_pylist()
        else:
            parents = parents.to_numpy()
    if not isinstance(parents, np.ndarray) or parents.ndim > 1 or parents.dtype == object:
        parents = list(parents)
    if len(parents) != outputs:
        raise ArgumentValueError(f"{what}: expected one entry for each of {outputs} output rows, got {len(parents)}")
    if isinstance(parents, np.ndarray) or all(isinstance(entry, (int, np.integer)) for entry in parents):
        return np.arange(outputs), np.asarray(parents)
    lists = [_list_of(entry, what) for entry in parents]
    return np.repeat(np.arange(outputs), [len(each) for each in lists]), np.asarray(
        [row for each in lists for row in each]
    )


def _list_of(entry: Any, what: str) -> list[Any]:
    if entry is None:
        return []
    if isinstance(entry, (int, np.integer)):
        return [entry]
    try:
        return list(entry)
    except TypeError:
        raise ArgumentTypeError(f"{what}: expected integers or lists of them, got {type(entry).__name__}") from None
