"""The batches of a spout whose rows have open trees, and the outcomes of these on their way to the spout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acker._flow import close_rows
from acker.observe.reasons import Reason
from acker.topology.anchors import Int64s
from acker.topology.arrow_columns import take
from acker.topology.replays import ReplayBatch

if TYPE_CHECKING:
    import pyarrow as pa


# The outcome of a tree, on its way to a spout task: message id, outcome, reason of a failure.
TreeOutcome = tuple[int, int, Reason | None]


class OutcomeColumns:
    """The outcomes of trees of one spout task as columns.

    Parameters
    ----------
    message_ids : (n,) int64
    outcomes : (n,) int8
    reasons : list of (Reason or None), optional
        None: no tree failed.
    """

    def __init__(self, message_ids: Int64s, outcomes: NDArray[np.int8], reasons: list[Reason | None] | None) -> None:
        self.message_ids = message_ids
        self.outcomes = outcomes
        self.reasons = reasons

    def __len__(self) -> int:
        return self.message_ids.size

    def __iter__(self) -> Iterator[tuple[int, int, Reason | None]]:
        reasons = self.reasons or [None] * len(self)
        yield from zip(self.message_ids.tolist(), self.outcomes.tolist(), reasons, strict=True)


class OpenRow(NamedTuple):
    """One row of a batch whose tree is open; see `PendingTuple`."""

    tup_id: Any
    root_id: int
    value: int
    emitted_ns: int
    attempt: int


class OpenBatch:
    """A batch of a spout with the trees of its rows.

    Parameters
    ----------
    first : int
        The message id of row 0; the others follow. -1: no acker tracks the rows.
    tup_ids : pyarrow.Array
    root_ids, values : (n,) int64
        The tree of each row, and what its TRACK says.
    emitted_ns : int
    replay : ReplayBatch, optional
        What a reliable spout keeps of it.

    Attributes
    ----------
    is_open : (n,) bool
        The rows whose outcome the spout does not know.
    open_count : int
    """

    def __init__(
        self,
        first: int,
        tup_ids: pa.Array[Any],
        root_ids: Int64s,
        values: Int64s,
        emitted_ns: int,
        replay: ReplayBatch | None,
    ) -> None:
        self.first = first
        self.tup_ids = tup_ids
        self.root_ids = root_ids
        self.values = values
        self.emitted_ns = emitted_ns
        self.replay = replay
        self.is_open = np.ones(len(tup_ids), bool)
        self.open_count = len(tup_ids)

    def __len__(self) -> int:
        return len(self.tup_ids)

    @property
    def attempt(self) -> int:
        """Number of this emission, from 1."""
        return 1 if self.replay is None else self.replay.attempt

    def are_open(self, rows: Int64s) -> NDArray[np.bool_]:
        """Return which of some rows are open; a row that is there twice is so once."""
        found = self.is_open[rows]
        named = np.zeros(len(self), bool)
        named[rows] = True
        if np.count_nonzero(named) < rows.size:  # An acker that was restored tells some outcomes again.
            is_first = np.zeros(rows.size, bool)
            is_first[np.unique(rows, return_index=True)[1]] = True
            found &= is_first
        return found

    def close_open(self, rows: Int64s) -> Int64s:
        """Take note that the trees of some rows have ended; return those that were open, each once."""
        closed = close_rows(self.is_open.view(np.uint8), rows)
        self.open_count -= closed.size
        return closed

    def close(self, rows: Int64s) -> None:
        """Take note that the trees of some open rows have ended."""
        self.is_open[rows] = False
        self.open_count -= rows.size

    def open_rows(self) -> Int64s:
        """Return the rows whose trees are open. Any thread may call it."""
        return np.flatnonzero(self.is_open)

    def open_roots(self) -> list[int]:
        """Return the root ids of the open trees. Any thread may call it."""
        roots: list[int] = self.root_ids[self.is_open].tolist()
        return roots

    def row(self, row: int) -> OpenRow:
        """Return one row."""
        ids = int(self.root_ids[row]), int(self.values[row])
        return OpenRow(self.tup_ids[row].as_py(), *ids, self.emitted_ns, self.attempt)

    def ids_of(self, rows: Int64s) -> pa.Array[Any]:
        """Return the tuple ids of some rows."""
        if rows.size == len(self) and bool((rows == np.arange(rows.size)).all()):
            return self.tup_ids
        return take(self.tup_ids, rows)


class BatchOutcome:
    """The outcomes of some rows of one batch, which the spout has to hear.

    Parameters
    ----------
    batch : OpenBatch
    rows : (n,) int64
    outcomes : (n,) int8, optional
        Of rows that failed; None: all were acked.
    reasons : list of (Reason or None), optional
        As the acker has them, of rows that failed.
    settled : bool
        Whether the collector has taken note of it, and has given its reasons.
    """

    def __init__(
        self,
        batch: OpenBatch,
        rows: Int64s,
        outcomes: NDArray[np.int8] | None = None,
        reasons: Sequence[Reason | None] | None = None,
        *,
        settled: bool = False,
    ) -> None:
        self.batch = batch
        self.rows = rows
        self.outcomes = outcomes
        self.reasons = reasons
        self.settled = settled

    def rest(self, rows: Int64s, reasons: Sequence[Reason] | None) -> BatchOutcome:
        """Return the part that the spout has not heard, of which the collector has taken note."""
        return BatchOutcome(self.batch, rows, None, reasons, settled=True)
