"""The ids of a shard's open trees that are texts or bytes: beside each chunk of the log, those of its entries.

Trees of a pipeline end in the micro-batch in which they begin, unless something of them was lost or nobody reads the
last outputs. So ids are written for few trees, and read when such a tree ends at last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acker.errors import ArgumentValueError
from acker.spark.messages import describe_collision
from acker.spark.notes import TextIds, decode_note, encode_note

if TYPE_CHECKING:
    import numpy.typing as npt

    from acker._engine.open_trees import TreeEntries
    from acker.spark.streams.state_format import Store


class TextLog:
    """Reads and writes the ids during one micro-batch.

    Parameters
    ----------
    store : Store
        Has the ids of chunk n under the number -n.
    type_ : DataType
    fresh : TextIds
        Of the trees that begin now.
    chunks : range
        The numbers of the log's chunks.
    """

    def __init__(self, store: Store, type_: pa.DataType, fresh: TextIds, chunks: range) -> None:
        self._store = store
        self._type = type_
        self._fresh = fresh
        self._unread = list(chunks)
        self._read: list[pa.Table] = []

    def of(self, root_id: npt.NDArray[np.int64]) -> pa.Array[Any]:
        """Return the id of each tree; null where it is not known."""
        ids = self._fresh.of(root_id, self._type)
        while ids.null_count:
            ids = pc.coalesce(ids, TextIds(self._read).of(root_id, self._type))
            if not ids.null_count or not self._unread:
                break
            self._read_chunk(self._unread.pop())
        return ids

    def write(self, number: int, entries: TreeEntries) -> int:
        """Write the ids of a chunk's entries; return the bytes."""
        root_id = entries.root_id[entries.task_id >= 0]
        ids = self.of(root_id)
        if ids.null_count == len(ids):
            return 0
        data = encode_note(pa.table({"root_id": pa.array(root_id), "message_id": ids}))
        self._store.put(-number, data)
        return len(data)

    def remove(self, number: int) -> None:
        """Remove the ids of a chunk, and keep them for those of its entries that are written again."""
        if number in self._unread:
            self._unread.remove(number)
            has_ids = self._read_chunk(number)
        else:
            has_ids = self._store.get(-number) is not None
        if has_ids:
            self._store.remove(-number)

    def refuse_collisions(self) -> None:
        """Raise if a tree that begins now is open already and has another id; call it if one was begun again.

        Raises
        ------
        ArgumentValueError
        """
        while self._unread:
            self._read_chunk(self._unread.pop())
        held, fresh = TextIds(self._read), self._fresh
        new = dict(fresh.all_of(held.root_id))
        for root_id, old in held.all_of(fresh.root_id):
            if old != new[root_id]:
                raise ArgumentValueError(f"message_id: {describe_collision(old, new[root_id])}")

    def _read_chunk(self, number: int) -> bool:
        data = self._store.get(-number)
        if data is not None:
            self._read.append(decode_note(data))
        return data is not None
