"""Columns that user code gives, as Arrow has them, and the input rows from which its output rows derive."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.topology.anchors import Parents

if TYPE_CHECKING:
    import pyarrow as pa


def array_of(values: Any, kind: pa.DataType | None, name: str) -> pa.Array[Any]:
    """Return values as a column of a type, if it is known; Arrow alone would cut fractions off for integers."""
    import pyarrow as pa

    if not isinstance(values, np.ndarray):
        values = list(values)
        if kind is not None:
            _refuse_fractions(values, kind, name)
    column: pa.Array[Any] = pa.array(values, kind)
    return column


def owned(values: Any) -> Any:
    """Return values that their caller may change afterwards: Arrow takes over the memory of NumPy and pandas."""
    return values.copy() if hasattr(values, "__array__") and hasattr(values, "copy") else values


def _refuse_fractions(values: list[Any], kind: pa.DataType, name: str) -> None:
    """Raise for the first number that has a fraction where the type has integers, also within lists and structs."""
    import pyarrow as pa

    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        types: set[Any] = set(map(type, values)) - {int, type(None)}
        for each in types:
            if issubclass(each, numbers.Number):
                bad = [value for value in values if type(value) is each and value != int(value)]
                if bad:
                    raise ArgumentValueError(f"{name}: expected {kind}, got {bad[0]!r}")
    elif isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        inner = [each for value in values if isinstance(value, (list, tuple)) for each in value]
        _refuse_fractions(inner, kind.value_type, name)
    elif isinstance(kind, pa.StructType):
        for field in kind:
            inner = [value.get(field.name) for value in values if isinstance(value, dict)]
            _refuse_fractions(inner, field.type, f"{name}.{field.name}")


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
