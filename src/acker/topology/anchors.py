"""Anchors: the trees of each row as columns, and the ids that outputs of a batch get in the trees of their parents.

Each pair of an output and a parent is an edge of its own, as in Storm's BoltOutputCollectorImpl.boltEmit: its id enters
the parent's ack val, and the output's tuple id in a tree is the xor of its edges there. So it does not matter whether
two parents of an output belong to the same tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


class Anchors(NamedTuple):
    """The anchors of n rows, m in all.

    Attributes
    ----------
    starts : (n + 1,) int64
        Row i owns the anchors from starts[i] up to starts[i + 1]. A row without one is unanchored.
    root_id, tuple_id : (m,) int64
        No root twice in a row. Tuple id 0 marks the output of a sink, which is no tuple.
    event_ms : (m,) int64 or None
        The event time of each anchor's tree, where trees have one.
    """

    starts: Int64s
    root_id: Int64s
    tuple_id: Int64s
    event_ms: Int64s | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.starts.size - 1

    def row_of_each(self) -> Int64s:
        """Return the row of each anchor, (m,)."""
        return np.repeat(np.arange(self.rows), np.diff(self.starts))

    def take(self, rows: Int64s) -> Anchors:
        """Return the anchors of the rows at these indices."""
        counts = np.diff(self.starts)[rows]
        indices = spread(self.starts[rows], counts)
        return Anchors(starts_of(counts), self.root_id[indices], self.tuple_id[indices], _at(self.event_ms, indices))


def spread(first: Int64s, counts: Int64s) -> Int64s:
    """Return first[i], first[i] + 1, ... (counts[i] of them) for each i, one after the other."""
    starts = np.cumsum(counts) - counts
    indices: Int64s = np.arange(int(counts.sum())) + np.repeat(first - starts, counts)
    return indices


def starts_of(counts: Int64s) -> Int64s:
    """Return where the part of each row begins in a column with so many entries of each, and its end: (n + 1,)."""
    starts = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _at(column: Int64s | None, indices: NDArray[Any]) -> Int64s | None:
    return None if column is None else column[indices]


def unanchored(rows: int, *, timed: bool = False) -> Anchors:
    """Return the anchors of rows without any."""
    none = np.empty(0, np.int64)
    return Anchors(np.zeros(rows + 1, np.int64), none, none, none if timed else None)


def single(
    root_id: Int64s,
    tuple_id: Int64s,
    anchored: NDArray[np.bool_] | None = None,
    event_ms: Int64s | None = None,
) -> Anchors:
    """Return one anchor for each row where `anchored` is true (all when None); as many ids as there are such rows."""
    counts = np.ones(root_id.size, np.int64) if anchored is None else anchored.astype(np.int64)
    return Anchors(starts_of(counts), root_id, tuple_id, event_ms)


def concat(parts: list[Anchors]) -> Anchors:
    """Return the anchors of several batches of rows, one after the other."""
    counts = [np.diff(part.starts) for part in parts]
    roots, tuples = [part.root_id for part in parts], [part.tuple_id for part in parts]
    times = [part.event_ms for part in parts if part.event_ms is not None]
    return Anchors(
        starts_of(np.concatenate(counts)),
        np.concatenate(roots),
        np.concatenate(tuples),
        np.concatenate(times) if times else None,
    )


def by_row(row: Int64s, root_id: Int64s, tuple_id: Int64s, rows: int) -> Anchors:
    """Return the anchors of n rows, given the row of each in any order; no root twice in a row."""
    return _gather(row, root_id, tuple_id, None, rows)


class Parents(NamedTuple):
    """The input rows that each output row came from: p pairs, in the order of the outputs.

    Attributes
    ----------
    output, row : (p,) int64
    """

    output: Int64s
    row: Int64s


def ordinals(row: Int64s) -> Int64s:
    """Return the position of each pair among those of the same input row, (p,): 0, 1, ... in the order given."""
    order = np.argsort(row, kind="stable")
    of_row = row[order]
    first = np.flatnonzero(np.r_[True, of_row[1:] != of_row[:-1]])[: of_row.size]
    indices = np.empty(row.size, np.int64)
    indices[order] = np.arange(row.size) - np.repeat(first, np.diff(np.r_[first, row.size]))
    return indices


def _xor_by(group: Int64s, values: Int64s, groups: int) -> Int64s:
    """Return the xor of the values of each group, (groups,); 0 for a group without any."""
    result = np.zeros(groups, np.int64)
    if not group.size:
        return result
    if (group[1:] < group[:-1]).any():
        order = np.argsort(group, kind="stable")
        group, values = group[order], values[order]
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    result[group[first]] = np.bitwise_xor.reduceat(values, first)
    return result


def by_root(root_id: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """Return one message in place of several for a root that come one after the other: the xor of their values."""
    if root_id.size < 2:
        return root_id, values
    differs = root_id[1:] != root_id[:-1]
    if differs.all():
        return root_id, values
    first = np.flatnonzero(np.r_[True, differs])
    return root_id[first], np.bitwise_xor.reduceat(values, first)


def join(
    inputs: Anchors, parents: Parents, outputs: int, make_ids: Callable[[Int64s, Int64s], Int64s]
) -> tuple[Int64s, Anchors]:
    """Let each output join the trees of all its parents.

    Parameters
    ----------
    inputs : Anchors of n rows, m in all
    parents : Parents
    outputs : int
        Number of output rows.
    make_ids : callable
        (the input anchor of each edge, the number of edges of each pair in `parents`) -> an id for each edge.

    Returns
    -------
    (m,) int64, Anchors
        For each input anchor the xor of the ids emitted under it, 0 if none; and the anchors of the outputs.
    """
    counts = np.diff(inputs.starts)[parents.row]
    anchor = spread(inputs.starts[parents.row], counts)
    edge = make_ids(anchor, counts)
    emitted = _xor_by(anchor, edge, inputs.root_id.size)
    event_ms = _at(inputs.event_ms, anchor)
    return emitted, _gather(np.repeat(parents.output, counts), inputs.root_id[anchor], edge, event_ms, outputs)


def roots_only(inputs: Anchors, parents: Parents, outputs: int) -> Anchors:
    """Return the trees that each output of a sink belongs to, with tuple id 0."""
    counts = np.diff(inputs.starts)[parents.row]
    anchor = spread(inputs.starts[parents.row], counts)
    root_id, event_ms = inputs.root_id[anchor], _at(inputs.event_ms, anchor)
    return _gather(np.repeat(parents.output, counts), root_id, np.zeros(root_id.size, np.int64), event_ms, outputs)


def _gather(output: Int64s, root_id: Int64s, edge: Int64s, event_ms: Int64s | None, outputs: int) -> Anchors:
    """Xor the edges of each output by tree; trees of an output come in ascending order of root id if it has several."""
    counts = np.bincount(output, minlength=outputs)
    if (counts <= 1).all() and (output[1:] > output[:-1]).all():
        return Anchors(starts_of(counts), root_id, edge, event_ms)
    order = np.lexsort((root_id, output))
    output, root_id, edge, event_ms = output[order], root_id[order], edge[order], _at(event_ms, order)
    first = np.flatnonzero(np.r_[True, (output[1:] != output[:-1]) | (root_id[1:] != root_id[:-1])])[: output.size]
    tuple_id = np.bitwise_xor.reduceat(edge, first) if first.size else edge
    starts = starts_of(np.bincount(output[first], minlength=outputs))
    return Anchors(starts, root_id[first], tuple_id, _at(event_ms, first))
