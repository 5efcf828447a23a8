"""The trees of what a micro-batch has taken from the spouts on the driver: those of tuples, and of rows of batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from acker.spark.topologies.tuple_blocks import MixedChunk, tuples_by_root
from acker.topology.anchors import Int64s, by_root
from acker.topology.tuple_batch import TupleBatch, value_rows


class TakenTrees:
    """Finds tuples and rows by their trees.

    Parameters
    ----------
    chunks : iterable of MixedChunk

    Attributes
    ----------
    tuples : dict of int to list of Tuple
        Root id -> the tuples of its tree.
    root_ids, ack_vals : (n,) int64
        The trees of rows of batches, in ascending order, and the xor of the tuple ids in each.
    """

    def __init__(self, chunks: Iterable[MixedChunk]) -> None:
        chunks = list(chunks)
        self.tuples = tuples_by_root((task, rows) for task, rows in chunks if not isinstance(rows, TupleBatch))
        self._batches = [rows for _, rows in chunks if isinstance(rows, TupleBatch) and rows.root_ids is not None]
        none = np.zeros(0, np.int64)
        anchors = [batch.anchors() for batch in self._batches]
        root_ids = np.concatenate([none, *(each.root_id for each in anchors)])
        tuple_ids = np.concatenate([none, *(each.tuple_id for each in anchors)])
        order = np.argsort(root_ids)
        self.root_ids, self.ack_vals = by_root(root_ids[order], tuple_ids[order])

    def tracks(self) -> dict[int, int]:
        """Return root id -> ack val of all trees."""
        tracks = dict.fromkeys(self.tuples, 0)
        for root_id, tuples in self.tuples.items():
            for tup in tuples:
                tracks[root_id] ^= (tup._ids or {})[root_id]
        return tracks | dict(zip(self.root_ids.tolist(), self.ack_vals.tolist(), strict=True))

    def rows_among(self, root_ids: Iterable[int]) -> tuple[Int64s, Int64s]:
        """Return which of some trees are those of rows, and their ack vals."""
        wanted = np.fromiter(root_ids, np.int64)
        is_wanted = np.isin(self.root_ids, wanted)
        return self.root_ids[is_wanted], self.ack_vals[is_wanted]

    def values_of_rows(self, root_ids: Int64s) -> dict[int, tuple[Any, ...]]:
        """Return root id -> the values of the row whose tree it is."""
        found: dict[int, tuple[Any, ...]] = {}
        if not root_ids.size:
            return found
        for batch in self._batches:
            rows = np.flatnonzero(np.isin(batch.anchors().root_id, root_ids))
            if rows.size:
                taken = batch.take(rows)
                found |= zip(taken.anchors().root_id.tolist(), value_rows(taken.columns), strict=True)
        return found
