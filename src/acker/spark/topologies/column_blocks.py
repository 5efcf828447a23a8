"""Rows that travel between the stages of a topology as columns: Arrow's stream format, and their ids as int64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acker.spark.narrow_columns import narrow, widen, width_of
from acker.topology.anchors import concat
from acker.topology.arrow_columns import one_batch
from acker.topology.tuple_batch import TupleBatch, value_rows
from acker.topology.tuples import TupleSource

# With so many rows, or so many bytes, a block is full. A worker holds some of each partition.
_ROWS: Final = 65_536
_BYTES: Final = 4_000_000


# How many numbers, the least of them, the bytes of each, and what is above the least (`narrow_columns`).
PackedIds = tuple[int, int, int, bytes]


class PackedRows(NamedTuple):
    """Rows of one stream for one task, as they travel.

    Attributes
    ----------
    columns : bytes
        A schema and a record batch in Arrow's stream format.
    root_ids, tuple_ids, starts : PackedIds or None
        Those of the `TupleBatch`.
    """

    columns: bytes
    root_ids: PackedIds | None
    tuple_ids: PackedIds | None
    starts: PackedIds | None


def share_of(batch: TupleBatch) -> float:
    """Return how much of a block rows fill."""
    return max(len(batch) / _ROWS, batch.columns.nbytes / _BYTES)


def parts_of(batch: TupleBatch) -> Iterator[TupleBatch]:
    """Yield the rows in parts that fill about one block at most: a value of Spark has less than 2 GiB."""
    count = max(1, min(len(batch), round(share_of(batch))))
    bounds = [len(batch) * number // count for number in range(count + 1)]
    for begin, end in itertools.pairwise(bounds):
        yield batch.slice(begin, end)


def may_join(batch: TupleBatch, other: TupleBatch) -> bool:
    """Return whether rows can be packed as one: those of one stream, with the same types."""
    if batch.source is not other.source or not batch.columns.schema.equals(other.columns.schema):
        return False
    return not any(pa.types.is_dictionary(kind) for kind in batch.columns.schema.types)  # each may have its own values


def pack_rows(batches: Sequence[TupleBatch]) -> PackedRows:
    """Pack rows that may join."""
    if len(batches) == 1:
        (batch,) = batches
        columns, root_ids, tuple_ids, starts = batch.columns, batch.root_ids, batch.tuple_ids, batch.starts
    else:
        columns = one_batch(pa.Table.from_batches([batch.columns for batch in batches]))
        anchors = concat([batch.anchors() for batch in batches])
        joined = TupleBatch.of_anchors(batches[0].source, columns, anchors)
        root_ids, tuple_ids, starts = joined.root_ids, joined.tuple_ids, joined.starts
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns)
    return PackedRows(sink.getvalue().to_pybytes(), *map(_pack_ids, (root_ids, tuple_ids, starts)))


def _pack_ids(ids: npt.NDArray[np.int64] | None) -> PackedIds | None:
    if ids is None:
        return None
    least, above = narrow(ids)
    return ids.size, least, width_of(above), above.tobytes()


def _unpack_ids(packed: PackedIds | None) -> npt.NDArray[np.int64] | None:
    if packed is None:
        return None
    count, least, width, content = packed
    return widen(content, 0, count, least, width)


def unpack_rows(
    rows: PackedRows,
    source: TupleSource,
    excluded: frozenset[int],
    on_roots: Callable[[npt.NDArray[np.int64]], object] | None,
) -> TupleBatch:
    """Return the rows that `pack_rows` has packed, without those that belong to a tree in `excluded`.

    Parameters
    ----------
    rows : PackedRows
    source : TupleSource
    excluded : frozenset of int
        Root ids.
    on_roots : callable, optional
        Gets the root ids of all rows.
    """
    with pa.ipc.open_stream(rows.columns) as reader:
        columns = reader.read_next_batch()
    root_ids, tuple_ids, starts = map(_unpack_ids, (rows.root_ids, rows.tuple_ids, rows.starts))
    batch = TupleBatch(source, columns, root_ids, tuple_ids, starts)
    if root_ids is None:
        return batch
    if on_roots is not None:
        on_roots(root_ids)
    if not excluded:
        return batch
    anchors = batch.anchors()
    is_excluded = np.isin(root_ids, np.fromiter(excluded, np.int64, len(excluded)))
    left_out = np.bincount(anchors.row_of_each()[is_excluded], minlength=len(batch)) > 0
    if not left_out.any():
        return batch
    return batch.take(np.flatnonzero(~left_out))


def values_by_root(rows: PackedRows) -> dict[int, tuple[Any, ...]]:
    """Return root id -> the values of its row; of rows that belong to one tree each."""
    root_ids = _unpack_ids(rows.root_ids)
    if root_ids is None:
        return {}
    with pa.ipc.open_stream(rows.columns) as reader:
        columns = reader.read_next_batch()
    return dict(zip(root_ids.tolist(), value_rows(columns), strict=True))
