"""Batch routes: the checks of emitted batches, and the tasks that receive their rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from acker._flow import Outlet, rows_by_task
from acker.errors import AckerError, ArgumentTypeError, TopologyError
from acker.topology.arrow_columns import array_of, is_known, one_batch, owned, table_of, take_rows
from acker.topology.column_hash import stable_hash_column
from acker.topology.streams import Stream
from acker.topology.tuple_batch import value_rows, values_of
from acker.topology.tuples import TupleSource

if TYPE_CHECKING:
    import pyarrow as pa

Rows = slice | NDArray[np.int64]

ALL_ROWS: Final = slice(None)
# A shuffle does not cut what is shorter.
_SLICE_ROWS: Final = 256

# The option that limits the bytes of a batch.
BATCH_BYTES: Final = "topology.arrow.batch.bytes"


class TaskRows(NamedTuple):
    """The rows of a batch that one task receives."""

    outlet: Outlet
    columns: pa.RecordBatch
    rows: Rows


class BatchGrouping(Protocol):
    """Chooses the tasks for the rows of a batch."""

    def split(self, columns: pa.RecordBatch) -> list[TaskRows]:
        """Return the rows of each task that receives any."""


class AllRows:
    """All rows to each of some tasks."""

    def __init__(self, outlets: Sequence[Outlet]) -> None:
        self._outlets = outlets

    def split(self, columns: pa.RecordBatch) -> list[TaskRows]:
        """Return the whole batch for each task."""
        return [TaskRows(outlet, columns, ALL_ROWS) for outlet in self._outlets]


class SlicesInTurn:
    """As evenly as possible to some tasks, in slices, which need no copy."""

    def __init__(self, outlets: Sequence[Outlet], begin: int) -> None:
        self._outlets = outlets
        self._next = begin

    def split(self, columns: pa.RecordBatch) -> list[TaskRows]:
        """Return a slice for each task, beginning with the task whose turn it is."""
        rows = columns.num_rows
        slices = min(len(self._outlets), -(-rows // _SLICE_ROWS))
        bounds = [rows * number // slices for number in range(slices + 1)]
        parts = []
        for begin, end in itertools.pairwise(bounds):
            parts.append(TaskRows(self._outlets[self._next], columns.slice(begin, end - begin), slice(begin, end)))
            self._next = (self._next + 1) % len(self._outlets)
        return parts


class ByHash:
    """The task that the hash of some fields selects, the same one as for tuples."""

    def __init__(self, outlets: Sequence[Outlet], names: Sequence[str], where: str) -> None:
        self._outlets = outlets
        self._names = names
        self._where = where

    def split(self, columns: pa.RecordBatch) -> list[TaskRows]:
        """Return the rows of each task, in their order."""
        if len(self._outlets) == 1:
            self._hashes(columns.slice(0, 1))  # for the error of a type without a hash, as with several tasks
            return [TaskRows(self._outlets[0], columns, ALL_ROWS)]
        order, bounds = rows_by_task(self._hashes(columns), len(self._outlets))
        taken = take_rows(columns, order)
        return [
            TaskRows(outlet, taken.slice(begin, end - begin), order[begin:end])
            for outlet, begin, end in zip(self._outlets, bounds.tolist(), bounds[1:].tolist(), strict=False)
            if begin < end
        ]

    def _hashes(self, columns: pa.RecordBatch) -> NDArray[np.uint32]:
        try:
            return stable_hash_column(*[columns.column(name) for name in self._names])
        except ArgumentTypeError:
            for name in self._names:
                try:
                    stable_hash_column(columns.column(name))
                except ArgumentTypeError as error:
                    raise TopologyError(f"{self._where}, which is grouped by field {name!r}: {error}") from None
            raise


class ByRow:
    """The tasks that a function chooses for the values of each row, which are as those of a tuple."""

    def __init__(self, choose: Callable[[tuple[Any, ...]], list[Outlet]], source: TupleSource, where: str) -> None:
        self._choose = choose
        self._source = source
        self._where = where

    def split(self, columns: pa.RecordBatch) -> list[TaskRows]:
        """Return the rows of each task, in their order."""
        rows: dict[int, list[int]] = {}
        outlets: dict[int, Outlet] = {}
        for row, each in enumerate(value_rows(columns)):
            try:
                chosen = self._choose(self._source.make_values(each))
            except TypeError as error:
                raise TopologyError(f"{self._where}: row {row}: {error}") from error
            for outlet in chosen:
                outlets[outlet.task] = outlet
                rows.setdefault(outlet.task, []).append(row)
        return [
            TaskRows(outlets[task], take_rows(columns, found), np.array(found, np.int64))
            for task, found in rows.items()
        ]


class BatchRoute:
    """One stream of one task: the fields and types that a batch has, and where its rows go.

    Parameters
    ----------
    source : TupleSource
    stream : Stream
    groupings : sequence of BatchGrouping
        One for each consumer, without those of direct streams.
    bytes_max : int, optional
        The limit of a batch.
    """

    def __init__(
        self,
        source: TupleSource,
        stream: Stream,
        groupings: Sequence[BatchGrouping],
        bytes_max: int | None = None,
    ) -> None:
        self.source = source
        self.where = emits_to(source)
        self._fields = list(source.fields)
        self._types: dict[str, pa.DataType] = dict(stream.types)
        self._declared = frozenset(stream.types)
        self._groupings = groupings
        self._bytes_max = bytes_max
        self._schema: pa.Schema | None = None

    def split(self, columns: pa.RecordBatch, direct: Outlet | None = None) -> list[TaskRows]:
        """Return the rows of each task that receives any: of `direct` alone, if it is given."""
        if not columns.num_rows:
            return []
        if direct is not None:
            return [TaskRows(direct, columns, ALL_ROWS)]
        return [part for grouping in self._groupings for part in grouping.split(columns)]

    def read(self, columns: Any) -> pa.RecordBatch:
        """Return emitted columns in the order of the fields; those that do not fit the stream raise TopologyError."""
        batch = self._read(columns)
        limit = self._bytes_max
        if has_more_bytes(batch, limit):
            self._refuse(
                f"a batch of {batch.num_rows:,} rows and {batch.nbytes:,} bytes, more than the {limit:,} of "
                f"{BATCH_BYTES!r}; emit fewer rows at once, or raise the option"
            )
        return batch

    def values_of_rows(self, columns: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Return the rows for tuples; refuse a value that no object of Python can hold."""
        found = []
        for name, column in zip(self._fields, columns.columns, strict=True):
            values, errors = values_of(column)
            for row, text in errors.items():
                self._refuse(
                    f"row {row}: field {name!r} is {column.type}: {text}. Its rows travel as tuples, which cannot hold "
                    "the value; cast the column, or see docs/columns.md, *What sees rows*"
                )
            found.append(values)
        return list(zip(*found, strict=True)) if found else [()] * columns.num_rows

    def _read(self, columns: Any) -> pa.RecordBatch:
        import pyarrow as pa

        if self._schema is not None:
            if isinstance(columns, pa.RecordBatch) and columns.schema.equals(self._schema):
                return columns
            if isinstance(columns, dict) and (known := self._as_known(columns, self._schema)) is not None:
                return known
        converted = self._converted(columns)
        try:
            table = table_of(converted, self._types, "columns")
        except (AckerError, pa.ArrowException) as error:  # of Arrow: columns of different lengths
            self._refuse(str(error))
        self._check_names(table.column_names)
        batch = one_batch(table.select(self._fields))
        schema = pa.schema([self._entry(entry) for entry in batch.schema])
        if all(map(is_known, schema.types)):
            self._schema = schema
        return batch.cast(schema) if not batch.schema.equals(schema) else batch

    def _as_known(self, columns: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch | None:
        """Return columns that fit as they are as a batch; None if any does not."""
        import pyarrow as pa

        found: list[Any] = [columns.get(name) for name in schema.names]
        if len(columns) != len(found) or not found:
            return None
        for column, entry in zip(found, schema, strict=True):
            if not isinstance(column, pa.Array) or column.type != entry.type or len(column) != len(found[0]):
                return None
        return pa.RecordBatch.from_arrays(found, schema=schema)

    def _converted(self, columns: Any) -> Any:
        """Return a mapping with columns of Arrow; anything else as it is."""
        import pyarrow as pa

        if not isinstance(columns, Mapping):
            return columns
        self._check_names(list(columns))
        found = {}
        for name, values in columns.items():
            try:
                is_column = isinstance(values, (pa.Array, pa.ChunkedArray))
                found[name] = values if is_column else array_of(owned(values), self._types.get(name), name)
            except (AckerError, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                expected = self._types.get(name)
                self._refuse(f"field {name!r}{'' if expected is None else f', which is {expected}'}: {error}")
        return found

    def _check_names(self, names: Sequence[str]) -> None:
        if sorted(names) != sorted(self._fields):
            self._refuse(f"expected the columns {', '.join(self._fields)}, got {', '.join(map(str, names)) or 'none'}")

    def _entry(self, entry: pa.Field[Any]) -> pa.Field[Any]:
        """Return the name and the type that a column gets; refuse another type than before."""
        import pyarrow as pa

        expected = self._types.get(entry.name)
        if expected is None:
            if is_known(entry.type):
                self._types[entry.name] = entry.type
            return pa.field(entry.name, entry.type)
        if entry.type != expected and not pa.types.is_null(entry.type):
            known, mend = f"was {expected} in the first batch", "cast it, or give `outputs` the type"
            if entry.name in self._declared:
                known, mend = f"`outputs` says {expected}", "cast it, or change `outputs`"
            self._refuse(f"field {entry.name!r} is {entry.type}, and {known}; {mend}")
        return pa.field(entry.name, expected)

    def _refuse(self, text: str) -> NoReturn:
        raise TopologyError(f"{self.where}: {text}")


def has_more_bytes(batch: pa.RecordBatch, limit: int | None) -> bool:
    """Return whether the rows of a batch take more bytes than a limit, if there is one."""
    # The buffers, which may have other rows too, are counted a hundred times as fast.
    return limit is not None and batch.get_total_buffer_size() > limit and batch.nbytes > limit


def emits_to(source: TupleSource) -> str:
    """Return how errors name a stream of a component."""
    return f"{source.component}: emits to stream {source.stream!r}"
