"""Calls of a user's bolt function with rows or Arrow batches: its outputs, their input rows, and the rows that failed.

An error of the function fails the rows of the call, never the job; so does a result that does not fit the schema. What
ends a program ends the task, and so does MemoryError, since the row is not its cause.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.observe.reasons import reason_text
from acker.topology.anchors import Int64s, Parents
from acker.topology.arrow_columns import array_of, one_batch, read_parents, table_of
from acker.topology.bad_rows import ENDS_TASK, RowFault, fault_of, find_bad_rows
from acker.topology.tuple_batch import values_of

# Long enough to name the error; whole documents should not travel with every failed row.
REASON_CHARS_MAX: Final = 1000

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


def reason_of(error: BaseException | str) -> str:
    """Return the text of an error: the exception's type and message, cut at `REASON_CHARS_MAX`."""
    text = reason_text(error, missing="no reason was given in Outputs.failed")
    # Arrow holds UTF-8, which has no lone surrogates.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= REASON_CHARS_MAX else text[: REASON_CHARS_MAX - 1] + "…"


def run_rows(
    function: RowFunction, batch: pa.RecordBatch, schema: pa.Schema, numbers: Iterable[int] | None = None
) -> Produced:
    """Call `function` once for each row, as a named tuple; it returns or yields the rows to emit.

    `numbers` are those of the rows, each taken before its call, so that another thread can see how far it is. A row
    with a value that no object of Python can hold fails without a call.
    """
    make = _row_type(batch.schema.names)._make
    outputs: list[Any] = []
    counts = np.zeros(batch.num_rows, np.int64)
    failed: dict[int, str] = {}
    read_rows = _read_single_column if len(schema) == 1 else _read_columns
    tuples, misfits = _tuples(batch)
    for row, values in zip(range(batch.num_rows) if numbers is None else numbers, tuples, strict=True):
        if row in misfits:
            failed[row] = reason_of(misfits[row])
            continue
        try:
            result = function(make(values))
            produced = [] if result is None else read_rows(result, schema)
        except ENDS_TASK:
            raise
        except BaseException as error:  # noqa: BLE001  Whatever a user's function raises fails its row.
            failed[row] = reason_of(error)
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
    """Call `function` for the batch, and search for the bad rows if it raises and `divide` is true.

    Without `divide` every row of the batch fails; see `acker.topology.bad_rows.find_bad_rows`.
    """

    def attempt(begin: int, end: int) -> Produced | RowFault:
        return _attempt(function, batch.slice(begin, end - begin), schema)

    good, bad = find_bad_rows(attempt, batch.num_rows, divide=divide)
    if len(good) == 1 and not bad:
        return good[0][2]
    produced = _join_parts(good, schema)
    reasons = {row: fault.reason for row, fault in bad.items()}
    return produced._replace(failed=dict(sorted((produced.failed | reasons).items())))


def _attempt(
    function: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch, schema: pa.Schema
) -> Produced | RowFault:
    """Call a batch function; return its outputs or its error."""
    try:
        return _check_outputs(function(batch), batch.num_rows, schema)
    except ENDS_TASK:
        raise
    except BaseException as error:  # noqa: BLE001  Whatever a user's function raises fails its rows.
        return fault_of(error, reason_of(error))


def _join_parts(parts: list[tuple[int, int, Produced]], schema: pa.Schema) -> Produced:
    """Join the outputs of parts of a batch; each has its first row and the row behind the last one."""
    if not parts:
        nothing = np.empty(0, np.int64)
        return Produced(_empty(schema), Parents(nothing, nothing), {})
    outputs = np.cumsum([0, *(part.rows.num_rows for _, _, part in parts)])
    rows = pa.Table.from_batches([part.rows for _, _, part in parts]).combine_chunks().to_batches()
    parents = Parents(
        np.concatenate([part.parents.output + first for (_, _, part), first in zip(parts, outputs[:-1], strict=True)]),
        np.concatenate([part.parents.row + begin for begin, _, part in parts]),
    )
    failed = {begin + row: text for begin, _, part in parts for row, text in part.failed.items()}
    return Produced(rows[0] if rows else _empty(schema), parents, failed)


def _row_type(names: Sequence[str]) -> Any:
    return namedtuple("Row", names, rename=True)  # noqa: PYI024  The names are known at run time only.


def _tuples(batch: pa.RecordBatch) -> tuple[Iterable[tuple[Any, ...]], dict[int, str]]:
    """Return the values of each row, and why rows have one that no object of Python can hold."""
    if not batch.num_columns:
        return [()] * batch.num_rows, {}
    columns: list[list[Any]] = []
    misfits: dict[int, str] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values, errors = _values(column)
        columns.append(values)
        misfits |= {row: f"{name!r} is {column.type}: {text}" for row, text in errors.items()}
    return zip(*columns, strict=True), misfits


def _values(column: pa.Array[Any]) -> tuple[list[Any], dict[int, str]]:
    # Plain numbers go through NumPy, which is several times faster than one Arrow scalar each.
    if not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return values, {}
    return values_of(column)


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


def _record_batch(outputs: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    if not len(schema):
        raise ArgumentValueError("a bolt's schema has at least one column")
    if not outputs:
        return _empty(schema)
    columns = [outputs] if len(schema) == 1 else list(zip(*outputs, strict=True))
    return pa.RecordBatch.from_arrays(
        [array_of(values, entry.type, entry.name) for values, entry in zip(columns, schema, strict=True)], schema=schema
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
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            failed[row] = reason_of(error)
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
    parents = read_parents(result.parent, rows.num_rows, inputs)
    failed: dict[int, str] = {}
    for row, error in (result.failed or {}).items():
        if not 0 <= row < inputs:
            raise ArgumentValueError(f"failed: the batch has {inputs} rows, there is no row {row}")
        failed[int(row)] = reason_of(error)
    bad = np.flatnonzero(np.isin(parents.row, np.fromiter(failed, np.int64)))
    if bad.size:
        output, row = int(parents.output[bad[0]]), int(parents.row[bad[0]])
        raise ArgumentValueError(f"failed: input row {row} failed and is a parent of output row {output}")
    return Produced(rows, parents, failed)


def _columns(rows: Any, schema: pa.Schema) -> pa.RecordBatch:
    table = table_of(rows, {entry.name: entry.type for entry in schema})
    if sorted(table.column_names) != sorted(schema.names):
        raise ArgumentValueError(
            f"rows: expected the columns {', '.join(schema.names)}, got {', '.join(table.column_names) or 'none'}"
        )
    return one_batch(table.select(schema.names).cast(schema))
