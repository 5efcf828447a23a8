"""The replay table of a reliable spout: its open tuples, and those that wait for a replay."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acker.topology.arrow_columns import take, take_rows
from acker.topology.tuple_batch import values_of


@dataclass(slots=True)
class ReplayEntry:
    """One tuple: how to emit it, which attempt is or was open, when the next one is due."""

    values: Sequence[Any]
    stream: str | None
    direct_task: int | None
    attempt: int = 1
    due_ms: int | None = None  # None: open
    counted: bool = True  # whether the next emission is a further attempt

    @property
    def fail_count(self) -> int:
        """Number of failures that counted."""
        return self.attempt - 1 + (self.due_ms is not None and self.counted)


class ReplayBatch:
    """Rows of one batch: how to emit them, which attempt is or was open, when the next one is due.

    Attributes
    ----------
    number : int
        In the table.
    is_kept : (n,) bool
        The rows that were neither acked, nor given up, nor handed to another batch.
    due_ms : int or None
        None: it is open.
    """

    def __init__(
        self, columns: Any, tup_ids: Any, stream: str | None, direct_task: int | None, attempt: int = 1
    ) -> None:
        self.number = 0
        self.columns = columns
        self.tup_ids = tup_ids
        self.stream = stream
        self.direct_task = direct_task
        self.attempt = attempt
        self.is_kept = np.ones(len(tup_ids), bool)
        self.due_ms: int | None = None
        self.counted = True

    @property
    def fail_count(self) -> int:
        """Number of failures that counted."""
        return self.attempt - 1 + (self.due_ms is not None and self.counted)

    def entry(self, row: int) -> ReplayEntry:
        """Return one row as the entry of a tuple."""
        values = tuple(values_of(column.slice(row, 1))[0][0] for column in self.columns.columns)
        return ReplayEntry(values, self.stream, self.direct_task, self.attempt, self.due_ms, self.counted)

    def kept(self) -> list[tuple[Hashable, ReplayEntry]]:
        """Return the ids and the entries of the rows that are kept."""
        return [(self.tup_ids[row].as_py(), self.entry(row)) for row in np.flatnonzero(self.is_kept).tolist()]


class ReplayTable:
    """The tuples of a reliable spout that are open or wait for their replay: by their ids, and in batches.

    It outlives the spout: after a restart the runtime hands it to the new instance.

    Attributes
    ----------
    entries : dict
    batches : dict
        Number -> batch.
    ending : dict
        The tuples and rows whose spout has not returned from `dead_letter`: a commit still keeps them.
    """

    def __init__(self) -> None:
        self.entries: dict[Hashable, ReplayEntry] = {}
        self.batches: dict[int, ReplayBatch] = {}
        self.ending: dict[Hashable, ReplayEntry] = {}
        # (due_ms, number). Batches that are emitted or acked are not in it any more.
        self._due_batches: list[tuple[int, int]] = []
        # (due_ms, sequence number, tup_id). A row is stale unless its entry is still due then: acks leave rows behind.
        self._heap: list[tuple[int, int, Hashable]] = []
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self.entries) + len(self.batches)

    def record_batch(self, batch: ReplayBatch) -> ReplayBatch:
        """Record the emission of a batch; return it."""
        batch.number = next(self._sequence)
        self.batches[batch.number] = batch
        return batch

    def forget_rows(self, batch: ReplayBatch, rows: Any) -> None:
        """Remove rows of a batch."""
        batch.is_kept[rows] = False
        if not batch.is_kept.any():
            self.batches.pop(batch.number, None)

    def schedule_rows(self, batch: ReplayBatch, rows: Any, due_ms: int, *, counted: bool) -> None:
        """Schedule a replay of rows of a batch, as a batch of their own."""
        columns, tup_ids = take_rows(batch.columns, rows), take(batch.tup_ids, rows)
        waiting = ReplayBatch(columns, tup_ids, batch.stream, batch.direct_task, batch.attempt)
        waiting.due_ms, waiting.counted = due_ms, counted
        # Recorded before they are forgotten: another thread that asks for them finds them at any time.
        self.record_batch(waiting)
        self.forget_rows(batch, rows)
        heapq.heappush(self._due_batches, (due_ms, waiting.number))

    def schedule_lost_rows(self, open_rows: Mapping[int, Any], due_ms: int) -> None:
        """Schedule rows that are open here and not among those that the runtime tracks: id of a batch -> its rows."""
        for number, batch in list(self.batches.items()):
            if batch.due_ms is None:
                is_lost = batch.is_kept.copy()
                is_lost[open_rows.get(number, [])] = False
                if is_lost.any():
                    self.schedule_rows(batch, np.flatnonzero(is_lost), due_ms, counted=False)

    def pop_due_batch(self, now_ms: int) -> ReplayBatch | None:
        """Return a batch that is due and count it as open again; None if none is due."""
        if not self._due_batches or self._due_batches[0][0] > now_ms:
            return None
        batch = self.batches[heapq.heappop(self._due_batches)[1]]
        batch.attempt += batch.counted
        batch.due_ms = None
        return batch

    def take_back(self, batch: ReplayBatch) -> list[tuple[Hashable, ReplayEntry]]:
        """Keep the rows of an open batch as tuples from now on; return their ids and entries."""
        rows = batch.kept()
        self.entries.update(rows)
        del self.batches[batch.number]  # as in `schedule_rows`
        return rows

    def entries_of(self, tup_ids: Collection[Hashable]) -> list[tuple[Hashable, ReplayEntry]]:
        """Return the entries of these tuples, and of rows of batches with these ids. Any thread may call it."""
        found: list[tuple[Hashable, ReplayEntry]] = []
        while True:
            numbers = list(self.batches)
            for batch in list(self.batches.values()):
                rows = np.flatnonzero(batch.is_kept)
                ids = zip(rows.tolist(), take(batch.tup_ids, rows).to_pylist(), strict=True)
                found += [(tup_id, batch.entry(row)) for row, tup_id in ids if tup_id in tup_ids]
            if list(self.batches) == numbers:  # else rows may have gone from one batch to another
                break
            found.clear()
        for tup_id in tup_ids:
            # A tuple goes from the entries to `ending`, and back if `dead_letter` raises.
            for table in (self.entries, self.ending, self.entries):
                if (entry := table.get(tup_id)) is not None:
                    found.append((tup_id, entry))
                    break
        return found

    def holds(self, tup_id: Hashable) -> bool:
        """Return whether a tuple or a row of a batch with this id is open or waits."""
        return tup_id in self.entries or (bool(self.batches) and bool(self.entries_of({tup_id})))

    def record(
        self, tup_id: Hashable, values: Sequence[Any], stream: str | None, direct_task: int | None
    ) -> ReplayEntry | None:
        """Record an emission, or the replay of a tuple that waits for one; return the entry before, if any."""
        before = self.entries.get(tup_id)
        entry = ReplayEntry(values, stream, direct_task)
        if before is not None:
            entry.attempt = before.attempt + (before.due_ms is not None and before.counted)
        self.entries[tup_id] = entry
        return before

    def restore(self, tup_id: Hashable, before: ReplayEntry | None) -> None:
        """Undo `record` for an emission that was refused."""
        if before is None:
            del self.entries[tup_id]
        else:
            self.entries[tup_id] = before

    def resume(
        self, tup_id: Hashable, values: Sequence[Any], stream: str | None, direct_task: int | None, attempt: int
    ) -> None:
        """Take over a tuple from elsewhere: this attempt of it is open."""
        self.entries[tup_id] = ReplayEntry(values, stream, direct_task, attempt)

    def attempt_of(self, tup_id: Hashable) -> int:
        """Return the number of a tuple's open attempt; 1 if it is unknown."""
        entry = self.entries.get(tup_id)
        return 1 if entry is None else entry.attempt

    def schedule(self, tup_id: Hashable, due_ms: int, *, counted: bool) -> None:
        """Schedule a replay at due_ms; `counted` tells whether it is a further attempt."""
        entry = self.entries[tup_id]
        entry.due_ms, entry.counted = due_ms, counted
        heapq.heappush(self._heap, (due_ms, next(self._sequence), tup_id))

    def schedule_lost(self, open_ids: Collection[Hashable], due_ms: int) -> None:
        """Schedule the tuples that are open here and not among those that the runtime tracks."""
        for tup_id, entry in self.entries.items():
            if entry.due_ms is None and tup_id not in open_ids:
                self.schedule(tup_id, due_ms, counted=False)

    def revive(self, tup_id: Hashable, entry: ReplayEntry, due_ms: int) -> bool:
        """Take back a tuple that was given up, as if it were new; return False if its id is in use again."""
        if tup_id in self.entries:
            return False
        self.entries[tup_id] = ReplayEntry(entry.values, entry.stream, entry.direct_task, attempt=1)
        self.schedule(tup_id, due_ms, counted=False)
        return True

    def forget(self, tup_id: Hashable) -> ReplayEntry | None:
        """Remove a tuple; return its entry, if any."""
        return self.entries.pop(tup_id, None)

    def next_due_ms(self) -> int | None:
        """Return when the next replay is due; None if nothing waits."""
        dues = [due for due in (self._next_tuple_ms(), self._next_batch_ms()) if due is not None]
        return min(dues, default=None)

    def _next_batch_ms(self) -> int | None:
        return self._due_batches[0][0] if self._due_batches else None

    def _next_tuple_ms(self) -> int | None:
        heap = self._heap
        while heap:
            due_ms, _, tup_id = heap[0]
            entry = self.entries.get(tup_id)
            if entry is not None and entry.due_ms == due_ms:
                return due_ms
            heapq.heappop(heap)
        return None

    def pop_due(self, now_ms: int) -> Hashable | None:
        """Return the id of a tuple that is due and count it as open again; None if none is due."""
        due_ms = self._next_tuple_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        tup_id = heapq.heappop(self._heap)[2]
        entry = self.entries[tup_id]
        entry.attempt += entry.counted
        entry.due_ms = None
        return tup_id
