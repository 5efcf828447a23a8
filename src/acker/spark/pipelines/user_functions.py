"""Calls of a user's bolt function with rows or Arrow batches: its outputs, their input rows, and the rows that failed.

An error of the function fails the rows of the call, never the job; so does a result that does not fit the schema. Only
MemoryError ends the task, since the row is not its cause.
"""

from __future__ import annotations

import numbers
import traceback
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.observe.reasons import reason_text
from acker.spark.pipelines.anchors import Int64s, Parents

# Long enough to name the error; whole documents should not travel with every failed row.
REASON_CHARS_MAX: Final = 1000

# The number of rows that are tried alone before a function counts as raising for every row.
_ALONE_MAX: Final = 32

RowFunction = Callable[[Any], "Iterable[Any] | None"]


class Outputs(NamedTuple):
    """The result of a batch function.

    Attributes
    ----------
    rows : RecordBatch, Table, or mapping of column name to array-like
        The k output rows, with the columns of the bolt's schema.
    parent : (k,) integers, or k lists of integers
        The input row (0-based, in the batch of the call) of each output row; a list anchors it to several. The outputs
        of one input row must come in the same order whenever they are computed.
    failed : mapping of input row to exception or text, optional
        Input rows that failed. None of them may be a parent.
    """

    rows: Any
    parent: Any
    failed: Mapping[int, BaseException | str] | None = None


class Produced(NamedTuple):
    """The outputs of some input rows: their columns, their input rows, and the reason for each failed row."""

    rows: pa.RecordBatch
    parents: Parents
    failed: dict[int, str]


def reason_of(fault: BaseException | str) -> str:
    """Return the text of an error: the exception's type and message, cut at `REASON_CHARS_MAX`."""
    text = reason_text(fault, missing="no reason was given in Outputs.failed")
    # Arrow holds UTF-8, which has no lone surrogates.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= REASON_CHARS_MAX else text[: REASON_CHARS_MAX - 1] + "…"


def run_rows(
    function: RowFunction, batch: pa.RecordBatch, schema: pa.Schema, numbers: Iterable[int] | None = None
) -> Produced:
    """Call `function` once for each row, as a named tuple; it returns or yields the rows to emit.

    `numbers` are those of the rows, each taken before its call, so that another thread can see how far it is.
    """
    make = _row_type(batch.schema.names)._make
    outputs: list[Any] = []
    counts = np.zeros(batch.num_rows, np.int64)
    failed: dict[int, str] = {}
    read_rows = _read_single_column if len(schema) == 1 else _read_columns
    for row, values in zip(range(batch.num_rows) if numbers is None else numbers, _tuples(batch), strict=True):
        try:
            result = function(make(values))
            produced = [] if result is None else read_rows(result, schema)
        except MemoryError:
            raise
        except Exception as fault:  # noqa: BLE001  Whatever a user's function raises fails its row.
            failed[row] = reason_of(fault)
        else:
            outputs += produced
            counts[row] = len(produced)
    try:
        rows = _record_batch(outputs, schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        rows, counts = _drop_misfits(outputs, counts, schema, failed)
    parent = np.repeat(np.arange(batch.num_rows), counts)
    return Produced(rows, Parents(np.arange(parent.size), parent), failed)


def run_batch(
    function: Callable[[pa.RecordBatch], Outputs | None], batch: pa.RecordBatch, schema: pa.Schema, *, divide: bool
) -> Produced:
    """Call `function` for the batch. If it raises and `divide` is true, call it for parts until the bad rows are found.

    Without `divide` every row of the batch fails.

    Notes
    -----
    It tries the first half, its first half, and so on, until one does not raise or one row is left; then each second
    half, as a batch of its own. This finds b bad rows among n with about 2 b log2(n / b) calls.

    A function that always raises would be called twice for each row. So if all first halves raise the same error,
    `_ALONE_MAX` rows from all over the batch are tried alone; if those raise it too, all rows fail with the error of
    the batch. A good row can thus fail with the others, but only where nearly all are bad: if every second row is bad,
    this happens to one batch in 2**33.
    """
    whole = _attempt(function, batch, schema)
    if isinstance(whole, Produced):
        return whole
    if batch.num_rows == 1 or not divide:
        return _fail_all(dict.fromkeys(range(batch.num_rows), whole.reason), schema)
    ends = [batch.num_rows]
    part: Produced | _FunctionFault = whole
    are_alike = True
    while isinstance(part, _FunctionFault) and ends[-1] > 1:
        ends.append(ends[-1] // 2)
        part = _attempt(function, batch.slice(0, ends[-1]), schema)
        are_alike = are_alike and whole.is_like(part)
    if are_alike:
        reasons = _reasons_if_all_fail(function, batch, schema, whole)
        if reasons is not None:
            return _fail_all(reasons, schema)
    parts = [_fail_all({0: part.reason}, schema) if isinstance(part, _FunctionFault) else part]
    for end, start in zip(ends[-2::-1], ends[:0:-1], strict=True):
        parts.append(run_batch(function, batch.slice(start, end - start), schema, divide=True))
    return _join_parts(parts, ends[::-1], schema)


class _FunctionFault(NamedTuple):
    """An error of a batch function: its text, its type, and the file and line that raised it."""

    reason: str
    kind: type[Exception]
    origin: tuple[str, int]

    def is_like(self, other: Produced | _FunctionFault) -> bool:
        """Return whether this is the same error; texts may differ, since many name a row."""
        return isinstance(other, _FunctionFault) and (self.kind, self.origin) == (other.kind, other.origin)


def _attempt(
    function: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch, schema: pa.Schema
) -> Produced | _FunctionFault:
    """Call a batch function; return its outputs or its error."""
    try:
        return _check_outputs(function(batch), batch.num_rows, schema)
    except MemoryError:
        raise
    except Exception as fault:  # noqa: BLE001  Whatever a user's function raises fails its rows.
        *_, (frame, line) = traceback.walk_tb(fault.__traceback__)
        return _FunctionFault(reason_of(fault), type(fault), (frame.f_code.co_filename, line))


def _reasons_if_all_fail(
    function: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch, schema: pa.Schema, whole: _FunctionFault
) -> dict[int, str] | None:
    """Try some rows alone; if the function raises the same error for all of them, return a text for every row."""
    if batch.num_rows <= 2 * _ALONE_MAX:  # Dividing it to the end costs little.
        return None
    alone: dict[int, str] = {}
    # At random, as bad rows may be regular; seeded, as what is computed twice must come out the same.
    for row in np.random.default_rng(batch.num_rows).choice(batch.num_rows, _ALONE_MAX, replace=False).tolist():
        found = _attempt(function, batch.slice(row, 1), schema)
        if isinstance(found, Produced) or not whole.is_like(found):
            return None
        alone[row] = found.reason
    reason = whole.reason
    if set(alone.values()) != {reason}:  # It names a row, or the number of rows.
        reason = f"{reason[: REASON_CHARS_MAX // 2]} (raised for the batch of {batch.num_rows} rows)"
    return dict.fromkeys(range(batch.num_rows), reason) | alone


def _fail_all(failed: dict[int, str], schema: pa.Schema) -> Produced:
    nothing = np.empty(0, np.int64)
    return Produced(_empty(schema), Parents(nothing, nothing), failed)


def _join_parts(parts: list[Produced], ends: list[int], schema: pa.Schema) -> Produced:
    """Join the outputs of the parts of a batch; part i ends before row ends[i]."""
    starts = [0, *ends[:-1]]
    outputs = np.cumsum([0, *(part.rows.num_rows for part in parts)])
    rows = pa.Table.from_batches([part.rows for part in parts]).combine_chunks().to_batches()
    parents = Parents(
        np.concatenate([part.parents.output + first for part, first in zip(parts, outputs[:-1], strict=True)]),
        np.concatenate([part.parents.row + start for part, start in zip(parts, starts, strict=True)]),
    )
    failed = {start + row: text for part, start in zip(parts, starts, strict=True) for row, text in part.failed.items()}
    return Produced(rows[0] if rows else _empty(schema), parents, failed)


def _row_type(names: Sequence[str]) -> Any:
    return namedtuple("Row", names, rename=True)  # noqa: PYI024  The names are known at run time only.


def _tuples(batch: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
    if not batch.num_columns:
        return [()] * batch.num_rows
    return zip(*map(_values, batch.columns), strict=True)


def _values(column: pa.Array[Any]) -> list[Any]:
    # Plain numbers go through NumPy, which is several times faster than one Arrow scalar each.
    if not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return values
    return column.to_pylist()


def _list_rows(result: Any) -> list[Any]:
    if isinstance(result, (str, bytes, dict)) or not isinstance(result, Iterable):
        raise ArgumentTypeError(f"a bolt function returns None or an iterable of rows, not {type(result).__name__}")
    return list(result)


def _read_single_column(result: Any, schema: pa.Schema) -> list[Any]:
    """Read the rows of a one-column schema, where the value alone is enough."""
    rows = result if type(result) is list else _list_rows(result)
    if not any(issubclass(kind, (tuple, dict)) for kind in set(map(type, rows))):
        return rows
    is_struct = pa.types.is_struct(schema.types[0])
    return [row if _is_value(row, schema.names, is_struct=is_struct) else _row(row, schema)[0] for row in rows]


def _is_value(row: Any, names: list[str], *, is_struct: bool) -> bool:
    """Return whether an output for a one-column schema is the value itself, and not a row that holds it."""
    if not isinstance(row, (tuple, dict)):
        return True
    fields = _fields_of(row)
    return is_struct and fields is not None and fields != names


def _read_columns(result: Any, schema: pa.Schema) -> list[Any]:
    rows = result if type(result) is list else _list_rows(result)
    # Two passes in C, as this runs for every output row.
    if set(map(type, rows)) <= {tuple} and set(map(len, rows)) <= {len(schema)}:
        return rows
    return [_row(row, schema) for row in rows]


def _row(row: Any, schema: pa.Schema) -> tuple[Any, ...]:
    if isinstance(row, dict):
        if row.keys() != set(schema.names):
            raise ArgumentValueError(f"expected the columns {', '.join(schema.names)}, got {', '.join(map(str, row))}")
        return tuple(row[name] for name in schema.names)
    fields = _fields_of(row)
    if fields is not None and set(fields) == set(schema.names):
        return tuple(row[fields.index(name)] for name in schema.names)
    if hasattr(row, "__fields__"):
        raise ArgumentValueError(
            f"expected the columns {', '.join(schema.names)}, got a Row of {', '.join(map(str, row.__fields__))}"
        )
    if not isinstance(row, (tuple, list)):
        raise ArgumentTypeError(f"an output row is a tuple or a dict, not {type(row).__name__}")
    if len(row) != len(schema):
        raise ArgumentValueError(f"expected {len(schema)} columns ({', '.join(schema.names)}), got {len(row)}")
    return tuple(row)


def _fields_of(row: Any) -> list[str] | None:
    """Return the names in a Row of PySpark or a named tuple; None where there are none."""
    fields = getattr(row, "__fields__", None) or getattr(row, "_fields", None)
    return list(fields) if isinstance(row, tuple) and fields else None


def _array(values: Any, entry: pa.Field[Any]) -> pa.Array[Any]:
    """Return values as a column of the schema; Arrow alone would cut fractions off for integers."""
    if not isinstance(values, np.ndarray):
        values = list(values)
        _refuse_fractions(values, entry.type, entry.name)
    column: pa.Array[Any] = pa.array(values, entry.type)
    return column


def _refuse_fractions(values: list[Any], type_: pa.DataType, name: str) -> None:
    """Raise for the first number that has a fraction where the type has integers, also within lists and structs."""
    if pa.types.is_integer(type_) or pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        kinds: set[Any] = set(map(type, values)) - {int, type(None)}
        for kind in kinds:
            if issubclass(kind, numbers.Number):
                bad = [value for value in values if type(value) is kind and value != int(value)]
                if bad:
                    raise ArgumentValueError(f"{name}: expected {type_}, got {bad[0]!r}")
    elif isinstance(type_, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        inner = [each for value in values if isinstance(value, (list, tuple)) for each in value]
        _refuse_fractions(inner, type_.value_type, name)
    elif isinstance(type_, pa.StructType):
        for field in type_:
            inner = [value.get(field.name) for value in values if isinstance(value, dict)]
            _refuse_fractions(inner, field.type, f"{name}.{field.name}")


def _record_batch(outputs: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    if not len(schema):
        raise ArgumentValueError("a bolt's schema has at least one column")
    if not outputs:
        return _empty(schema)
    columns = [outputs] if len(schema) == 1 else list(zip(*outputs, strict=True))
    return pa.RecordBatch.from_arrays(
        [_array(values, entry) for values, entry in zip(columns, schema, strict=True)], schema=schema
    )


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], entry.type) for entry in schema], schema=schema)


def _drop_misfits(
    outputs: list[Any], counts: Int64s, schema: pa.Schema, failed: dict[int, str]
) -> tuple[pa.RecordBatch, Int64s]:
    """Fail each input row with an output that does not fit the schema, and keep the outputs of the others."""
    kept: list[Any] = []
    kept_counts = counts.copy()
    ends = np.cumsum(counts)
    for row in np.flatnonzero(counts).tolist():
        part = outputs[ends[row] - counts[row] : ends[row]]
        try:
            _record_batch(part, schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as fault:
            failed[row] = reason_of(fault)
            kept_counts[row] = 0
        else:
            kept += part
    return _record_batch(kept, schema), kept_counts


def _check_outputs(result: Any, inputs: int, schema: pa.Schema) -> Produced:
    """Check the result of a batch function, and convert it to the bolt's schema."""
    if result is None:
        result = Outputs({name: [] for name in schema.names}, [])
    if not isinstance(result, Outputs):
        raise ArgumentTypeError(f"a batch function returns acker.spark.Outputs or None, not {type(result).__name__}")
    rows = _columns(result.rows, schema)
    parents = _parents(result.parent, rows.num_rows, inputs)
    failed: dict[int, str] = {}
    for row, fault in (result.failed or {}).items():
        if not 0 <= row < inputs:
            raise ArgumentValueError(f"failed: the batch has {inputs} rows, there is no row {row}")
        failed[int(row)] = reason_of(fault)
    bad = np.flatnonzero(np.isin(parents.row, np.fromiter(failed, np.int64)))
    if bad.size:
        output, row = int(parents.output[bad[0]]), int(parents.row[bad[0]])
        raise ArgumentValueError(f"failed: input row {row} failed and is a parent of output row {output}")
    return Produced(rows, parents, failed)


def _columns(rows: Any, schema: pa.Schema) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        table = pa.Table.from_batches([rows])
    elif isinstance(rows, pa.Table):
        table = rows
    elif isinstance(rows, Mapping):
        entries = {entry.name: entry for entry in schema}

        def read(name: str, column: Any) -> Any:
            if isinstance(column, (pa.Array, pa.ChunkedArray)):
                return column
            return _array(column, entries[name]) if name in entries else pa.array(column)

        table = pa.table({name: read(name, column) for name, column in rows.items()})
    else:
        raise ArgumentTypeError(f"rows: expected a RecordBatch, a Table or a mapping, got {type(rows).__name__}")
    if sorted(table.column_names) != sorted(schema.names):
        raise ArgumentValueError(
            f"rows: expected the columns {', '.join(schema.names)}, got {', '.join(table.column_names) or 'none'}"
        )
    table = table.select(schema.names).cast(schema).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else _empty(schema)


def _parents(parent: Any, outputs: int, inputs: int) -> Parents:
    if isinstance(parent, (pa.Array, pa.ChunkedArray)):
        parent = parent.to_pylist() if pa.types.is_nested(parent.type) else parent.to_numpy()
    if not isinstance(parent, np.ndarray):
        parent = list(parent)
    if len(parent) != outputs:
        raise ArgumentValueError(f"parent: expected one entry for each of {outputs} output rows, got {len(parent)}")
    if not isinstance(parent, np.ndarray) and any(not isinstance(entry, (int, np.integer)) for entry in parent):
        lists = [[entry] if isinstance(entry, (int, np.integer)) else list(entry) for entry in parent]
        output = np.repeat(np.arange(outputs), [len(entry) for entry in lists])
        row = np.asarray([row for entry in lists for row in entry])
    else:
        output, row = np.arange(outputs), np.asarray(parent)
    if row.size and row.dtype.kind not in "iu":
        raise ArgumentTypeError(f"parent: expected integers or lists of them, got {row.dtype}")
    row = row.astype(np.int64)
    bad = np.flatnonzero((row < 0) | (row >= inputs))
    if bad.size:
        text = f"output row {output[bad[0]]} names input row {row[bad[0]]} of a batch of {inputs}"
        raise ArgumentValueError(f"parent: {text}")
    return Parents(output, row)
