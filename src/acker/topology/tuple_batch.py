"""TupleBatch: the rows of one stream that travel between two tasks as columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from acker._flow import pack_deliveries, unpack_deliveries
from acker.observe.reasons import reason_text
from acker.topology.anchors import Anchors, starts_of, unanchored
from acker.topology.arrow_columns import take_rows
from acker.topology.tuples import Tuple, TupleSource

if TYPE_CHECKING:
    import pyarrow as pa

Int64s = NDArray[np.int64]


class TupleBatch:
    """Rows of one stream as columns, and the trees that they belong to.

    Parameters
    ----------
    source : TupleSource
    columns : pyarrow.RecordBatch
        The fields of the stream.
    root_ids, tuple_ids : (m,) int64, or None
        None: the rows belong to no tree.
    starts : (n + 1,) int64, or None
        Row i belongs to the trees from starts[i] up to starts[i + 1]. None: each row belongs to one tree.
    tuples : list of Tuple, optional
        The rows as tuples, if they came as such.

    Attributes
    ----------
    misfits : dict
        The rows with a value that no object of Python can hold, and why; known once `tuples` was called.
    """

    __slots__ = ("_tuples", "columns", "misfits", "root_ids", "source", "starts", "tuple_ids")

    def __init__(
        self,
        source: TupleSource,
        columns: pa.RecordBatch,
        root_ids: Int64s | None = None,
        tuple_ids: Int64s | None = None,
        starts: Int64s | None = None,
        tuples: list[Tuple] | None = None,
    ) -> None:
        self.source = source
        self.columns = columns
        self.root_ids = root_ids
        self.tuple_ids = tuple_ids
        self.starts = starts
        self._tuples = tuples
        self.misfits: dict[int, str] = {}

    @classmethod
    def of_anchors(
        cls, source: TupleSource, columns: pa.RecordBatch, anchors: Anchors, tuples: list[Tuple] | None = None
    ) -> Self:
        """Return rows that belong to the trees of these anchors."""
        if not anchors.root_id.size:
            return cls(source, columns, tuples=tuples)
        starts = None if (np.diff(anchors.starts) == 1).all() else anchors.starts
        return cls(source, columns, anchors.root_id, anchors.tuple_id, starts, tuples)

    def __len__(self) -> int:
        return self.columns.num_rows

    def anchors(self) -> Anchors:
        """Return the trees of all rows."""
        if self.root_ids is None or self.tuple_ids is None:
            return unanchored(len(self))
        starts = np.arange(len(self) + 1) if self.starts is None else self.starts
        return Anchors(starts, self.root_ids, self.tuple_ids)

    def bounds(self, begin: int, end: int) -> slice:
        """Return which of the ids are those of rows[begin:end]."""
        if self.root_ids is None:
            return slice(0, 0)
        return slice(begin, end) if self.starts is None else slice(int(self.starts[begin]), int(self.starts[end]))

    def slice(self, begin: int, end: int) -> TupleBatch:
        """Return rows[begin:end], without a copy."""
        if begin == 0 and end == len(self):
            return self
        ids = self.bounds(begin, end)
        return TupleBatch(
            self.source,
            self.columns.slice(begin, end - begin),
            None if self.root_ids is None else self.root_ids[ids],
            None if self.tuple_ids is None else self.tuple_ids[ids],
            None if self.starts is None else self.starts[begin : end + 1] - self.starts[begin],
            None if self._tuples is None else self._tuples[begin:end],
        )

    def take(self, rows: Int64s) -> TupleBatch:
        """Return the rows at these indices."""
        columns, tuples = take_rows(self.columns, rows), self._tuples
        taken = None if tuples is None else [tuples[row] for row in rows.tolist()]
        return TupleBatch.of_anchors(self.source, columns, self.anchors().take(rows), taken)

    def tuples(self) -> list[Tuple]:
        """Return the rows as tuples, the same ones each time."""
        if self._tuples is None:
            self._tuples = self._make_tuples()
        return self._tuples

    def _make_tuples(self) -> list[Tuple]:
        rows = len(self)
        none = np.zeros(rows, np.int64)
        root_ids, tuple_ids, others = none, none, dict[int, dict[int, int] | None]()
        if self.root_ids is None or self.tuple_ids is None:
            others = dict.fromkeys(range(rows))
        elif self.starts is None:
            root_ids, tuple_ids = self.root_ids, self.tuple_ids
        else:
            others = dict(enumerate(self._ids_of_rows()))
        columns = []
        for name, column in zip(self.source.fields, self.columns.columns, strict=True):
            values, errors = values_of(column)
            columns.append(values)
            self.misfits |= {row: f"{name!r} is {column.type}: {text}" for row, text in errors.items()}
        if not columns:  # a stream without fields
            return [self.source.tuple_type((), self.source, ids) for ids in self._ids_of_rows()]
        made: list[Tuple] = unpack_deliveries(self.source, columns, root_ids, tuple_ids, others, frozenset())
        return made

    def _ids_of_rows(self) -> list[dict[int, int]]:
        anchors = self.anchors()
        pairs = list(zip(anchors.root_id.tolist(), anchors.tuple_id.tolist(), strict=True))
        return [dict(pairs[begin:end]) for begin, end in itertools.pairwise(anchors.starts.tolist())]


def values_of(column: pa.Array[Any]) -> tuple[list[Any], dict[int, str]]:
    """Return a column as objects of Python, and why rows have none: a year beyond 9999, or text that is not UTF-8.

    In place of such a value the list has a column of this row alone. MemoryError is no fault of a row.
    """
    try:
        return column.to_pylist(), {}
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  What the types of Python and the packages of time zones raise.
        values: list[Any] = []
        errors: dict[int, str] = {}
        for row in range(len(column)):
            try:
                values.append(column[row].as_py())
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001  As above.
                values.append(column.slice(row, 1))
                errors[row] = reason_text(error)
        return values, errors


def value_rows(columns: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return the values of each row as objects of Python; see `values_of` for what has none."""
    if not columns.num_columns:
        return [()] * columns.num_rows
    return list(zip(*(values_of(column)[0] for column in columns.columns), strict=True))


def rows_of(items: Sequence[Any]) -> list[Tuple]:
    """Return tuples and batches as tuples."""
    return [tup for item in items for tup in (item.tuples() if isinstance(item, TupleBatch) else (item,))]


def unpack(tuples: list[Tuple]) -> tuple[list[list[Any]], Anchors]:
    """Return the values of tuples of one stream column by column, and their trees."""
    columns, root_ids, tuple_ids, others = pack_deliveries(tuples)
    if not others:
        return columns, Anchors(np.arange(len(tuples) + 1), root_ids, tuple_ids)
    counts = np.ones(len(tuples), np.int64)
    for row, ids in others.items():
        counts[row] = len(ids or ())
    starts = starts_of(counts)
    roots, tuple_ids_of_rows = np.empty(starts[-1], np.int64), np.empty(starts[-1], np.int64)
    single = np.ones(len(tuples), bool)
    single[list(others)] = False
    roots[starts[:-1][single]], tuple_ids_of_rows[starts[:-1][single]] = root_ids[single], tuple_ids[single]
    for row, ids in others.items():
        for offset, (root_id, tuple_id) in enumerate((ids or {}).items()):
            roots[starts[row] + offset], tuple_ids_of_rows[starts[row] + offset] = root_id, tuple_id
    return columns, Anchors(starts, roots, tuple_ids_of_rows)
