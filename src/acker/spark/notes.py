"""Notes: what the tasks of a pipeline know of trees beside their messages, packed into one binary value.

There are two kinds: why rows failed, and what the spout knows of its trees. A note has a header as a block of messages
has, so that they travel together, then an Arrow stream. All numbers are little-endian:

    offset  bytes
         0      8    magic, "ACKERNOT"
         8      4    version, 1
        12      4    size of this header, 64
        16     32    zeros
        48      8    latest event time of the task's messages, in ms (signed); -2**63 where there is none
        56      8    checksum: XXH64 of the Arrow stream
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from acker._engine.combiner import xxh64
from acker._engine.protocol import INT64_MIN
from acker.errors import ArgumentValueError

if TYPE_CHECKING:
    import numpy.typing as npt

MAGIC: Final = b"ACKERNOT"
VERSION: Final = 1

_HEADER: Final = struct.Struct("<8sII32xqQ")

# Why rows failed: a row of the note for each failed row and tree; without ids for a row that belongs to no tree.
_FAILURE_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("root_id", pa.int64()),
    pa.field("tuple_id", pa.int64()),
    pa.field("component", pa.string()),
    pa.field("reason", pa.string()),
    pa.field("row", pa.string()),
]
FAILURE_SCHEMA: Final = pa.schema(_FAILURE_FIELDS)
# The trees that a spout began: a row for each. With ids that are texts or bytes there is a column message_id, too.
HEAD_SCHEMA: Final = pa.schema([pa.field("root_id", pa.int64()), pa.field("attempt", pa.int64())])


class Failed(NamedTuple):
    """For each of n trees the component that failed it, and why; null where none did."""

    component: pa.Array[Any]
    reason: pa.Array[Any]


def encode_note(table: pa.Table, event_ms: int | None = None) -> bytes:
    """Pack a note."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue()
    checksum = xxh64(np.frombuffer(content, np.uint8))
    return _HEADER.pack(MAGIC, VERSION, _HEADER.size, INT64_MIN if event_ms is None else event_ms, checksum) + content


def is_note(data: Any) -> bool:
    """Return whether some bytes begin as a note."""
    return bytes(memoryview(data)[: len(MAGIC)]) == MAGIC


def decode_note(data: Any) -> pa.Table:
    """Unpack a note.

    Raises
    ------
    ArgumentValueError   the bytes are not an undamaged note of a version that this release reads.
    """
    view = memoryview(data).cast("B")
    if len(view) < _HEADER.size:
        raise ArgumentValueError(f"note: expected at least {_HEADER.size} bytes, got {len(view)}")
    magic, version, size, _, checksum = _HEADER.unpack_from(view)
    if (magic, version, size) != (MAGIC, VERSION, _HEADER.size):
        raise ArgumentValueError(f"note: expected version {VERSION}, got {version}")
    content = view[_HEADER.size :]
    if xxh64(np.frombuffer(content, np.uint8)) != checksum:
        raise ArgumentValueError("note: the checksum does not fit the bytes")
    return pa.ipc.open_stream(pa.py_buffer(content)).read_all()


class TextIds:
    """The ids of trees that are texts or bytes.

    Parameters
    ----------
    tables : list of Table
        With columns root_id and message_id.

    Attributes
    ----------
    root_id : (n,) int64
        Sorted.
    """

    def __init__(self, tables: list[pa.Table]) -> None:
        self.root_id = np.empty(0, np.int64)
        self._ids: Any = None
        if tables:
            table = pa.concat_tables([each.select(["root_id", "message_id"]) for each in tables]).combine_chunks()
            order = np.argsort(table["root_id"].to_numpy(), kind="stable")
            table = table.take(order)
            self.root_id, self._ids = table["root_id"].to_numpy(), table["message_id"].combine_chunks()

    def of(self, root_id: npt.NDArray[np.int64], type_: Any) -> pa.Array[Any]:
        """Return the id of each tree; null where it is not known."""
        if self._ids is None:
            unknown: pa.Array[Any] = pa.array([None] * len(root_id), type_)
            return unknown
        found = np.minimum(np.searchsorted(self.root_id, root_id), max(len(self.root_id) - 1, 0))
        is_known = self.root_id[found] == root_id if len(self.root_id) else np.zeros(len(root_id), np.bool_)
        ids: pa.Array[Any] = self._ids.take(pa.array(found, mask=~is_known)).cast(type_)
        return ids

    def all_of(self, root_id: npt.NDArray[np.int64]) -> list[tuple[int, Any]]:
        """Return (root id, id) of each row of these trees: several for a tree that several rows have."""
        if self._ids is None:
            return []
        indices = np.flatnonzero(np.isin(self.root_id, root_id))
        return list(zip(self.root_id[indices].tolist(), self._ids.take(pa.array(indices)).to_pylist(), strict=True))


class Notes:
    """The notes of the trees of one shard."""

    def __init__(self) -> None:
        self._failures: list[pa.Table] = []
        self._heads: list[pa.Table] = []

    def add(self, data: Any) -> None:
        """Add a note, as `encode_note` packs it."""
        table = decode_note(data)
        (self._failures if "reason" in table.schema.names else self._heads).append(table)

    def failures(self) -> pa.Table:
        """Return why rows failed, with the columns of `FAILURE_SCHEMA`."""
        return pa.concat_tables([FAILURE_SCHEMA.empty_table(), *self._failures]).combine_chunks()

    def attempts_of(self, root_id: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the attempt of each tree; 0 where the spout has none."""
        heads = pa.concat_tables([HEAD_SCHEMA.empty_table(), *(each.select(HEAD_SCHEMA.names) for each in self._heads)])
        if not heads.num_rows:
            return np.zeros(len(root_id), np.int64)
        index = indices_in(heads["root_id"].to_numpy(), root_id)
        return np.where(index < 0, 0, heads["attempt"].to_numpy()[index])

    def text_ids(self) -> TextIds:
        """Return the ids of the trees that the spouts began, where these are texts or bytes."""
        return TextIds([table for table in self._heads if "message_id" in table.column_names])

    def failed(self, root_id: npt.NDArray[np.int64]) -> Failed:
        """Return why trees failed. Of several failures the first by its text counts, whatever their order."""
        if not self._failures:
            return Failed(pa.nulls(len(root_id), pa.string()), pa.nulls(len(root_id), pa.string()))
        rows = self.failures().sort_by(
            [("root_id", "ascending"), ("component", "ascending"), ("reason", "ascending")]  # nulls are last
        )
        of_trees = rows.slice(0, rows.num_rows - rows["root_id"].null_count)
        wanted = nullable(indices_in(of_trees["root_id"].to_numpy(), root_id))
        component, reason = (of_trees[name].combine_chunks().take(wanted) for name in Failed._fields)
        return Failed(component, reason)


def ids_or_zero(column: pa.ChunkedArray[Any]) -> npt.NDArray[np.int64]:
    """Return a column of ids with 0 in index of null."""
    ids: npt.NDArray[np.int64] = column.combine_chunks().fill_null(0).to_numpy()
    return ids


def nullable(index: npt.NDArray[np.int64]) -> Any:
    """Return indices as Arrow's `take` reads them: null for a negative one."""
    return pa.array(index, mask=index < 0)


def indices_in(ids: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the index of the first row with each wanted id , -1 where there is none."""
    if not len(ids):
        return np.full(len(wanted), -1)
    order = np.argsort(ids, kind="stable")
    found = np.searchsorted(ids, wanted, sorter=order)
    index: npt.NDArray[np.int64] = order[np.minimum(found, len(ids) - 1)]
    index[ids[index] != wanted] = -1
    return index
