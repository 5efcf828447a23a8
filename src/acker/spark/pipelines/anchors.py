"""The anchors of rows as one binary column, and the keyed ids of a bolt's outputs.

A row of a tracked DataFrame carries a map root id -> tuple id (Storm's MessageId): 16 bytes an anchor, both ids
little-endian int64. One binary column crosses between the JVM and Python for about the price of one long, whatever the
number of trees; two list columns cost three times as much. Where trees expire by event time an anchor also has the time
of its tree in ms: 24 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acker._engine.ids import tuple_ids
from acker.topology.anchors import Anchors, Int64s, Parents, join, ordinals, unanchored

ANCHOR_BYTES = 16
TIMED_ANCHOR_BYTES = 24


def to_arrow(anchors: Anchors) -> pa.Array[Any]:
    """Encode as a binary column without nulls."""
    columns = [anchors.root_id, anchors.tuple_id] + ([] if anchors.event_ms is None else [anchors.event_ms])
    offsets = anchors.starts * (8 * len(columns))
    if offsets[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{anchors.root_id.size} anchors in one Arrow batch: send fewer rows a batch")
    words = np.empty((anchors.root_id.size, len(columns)), "<i8")
    for index, column in enumerate(columns):
        words[:, index] = column
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(words)]
    return pa.Array.from_buffers(pa.binary(), anchors.rows, buffers)


def from_arrow(column: pa.Array[Any], *, timed: bool = False) -> Anchors:
    """Decode a binary column, of anchors with event times or without; null is a row without anchors."""
    anchor_bytes = TIMED_ANCHOR_BYTES if timed else ANCHOR_BYTES
    column = column.cast(pa.binary())
    if column.null_count:
        column = pc.fill_null(column, b"")  # type: ignore[arg-type]
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    if not len(column) or data is None:
        return unanchored(len(column), timed=timed)
    words = np.frombuffer(data, "<i8")[offsets[0] // 8 : offsets[-1] // 8].reshape(-1, anchor_bytes // 8)
    starts = (offsets - offsets[0]) // anchor_bytes
    return Anchors(starts, *words.T.astype(np.int64, "C"))


def emit(inputs: Anchors, parents: Parents, outputs: int, run_seed: int, component: str) -> tuple[Int64s, Anchors]:
    """Give each output of a bolt a tuple id in each tree of each of its parents; see `acker.topology.anchors.join`.

    Parameters
    ----------
    run_seed, component
        See `acker._engine.ids.tuple_ids`: whoever computes the outputs again gives them the same ids.
    """

    def make_ids(anchor: Int64s, counts: Int64s) -> Int64s:
        ordinal = np.repeat(ordinals(parents.row), counts)
        return tuple_ids(run_seed, inputs.root_id[anchor], inputs.tuple_id[anchor], component, ordinal)

    return join(inputs, parents, outputs, make_ids)
