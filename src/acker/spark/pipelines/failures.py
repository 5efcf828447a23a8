"""The failures of a pipeline: one row for each row that failed, with its message and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from acker.spark.blocks import decode_block, tracks_of
from acker.spark.notes import Notes, ids_or_zero, indices_in, is_note, nullable
from acker.spark.text_ids import text_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from acker.topology.anchors import Int64s

# Behind the message id.
FAILURES_DDL: Final = "component string, reason string, attempt long, row string, root_id long, tuple_id long"


def list_failures(batches: Iterator[pa.RecordBatch], ids: str) -> Iterator[pa.RecordBatch]:
    """Turn blocks and notes of a partition into the rows that `Tracked.failures` describes, with ids of this type."""
    notes = Notes()
    tracks = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for batch in batches:
        for block in batch.column(1):
            data = block.as_buffer()
            if is_note(data):
                notes.add(data)
            else:
                tracks.append(tracks_of(decode_block(data)[0]))
    failed = notes.failures()
    if failed.num_rows:
        yield from _with_messages(failed, notes, tracks, text_type(ids)).to_batches()


def _with_messages(
    failed: pa.Table, notes: Notes, tracks: list[tuple[Int64s, Int64s]], text: pa.DataType | None
) -> pa.Table:
    root_id, message_id = (np.concatenate(column) for column in zip(*tracks, strict=True))
    has_tree = failed["root_id"].is_valid().to_numpy()
    roots = ids_or_zero(failed["root_id"])
    index = np.where(has_tree, indices_in(root_id, roots), -1)
    message = pa.array(message_id).take(nullable(index))
    if text is not None:
        message = notes.text_ids().of(np.where(index < 0, 0, roots), text)
    columns: dict[str, Any] = {
        "message_id": message,
        "attempt": pa.array(notes.attempts_of(roots), mask=~has_tree),
        **{name: failed[name] for name in failed.column_names},
    }
    names = ("message_id", "component", "reason", "attempt", "row", "root_id", "tuple_id")
    return pa.table({name: columns[name] for name in names})
