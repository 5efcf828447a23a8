"""The replay table of a reliable spout: its open tuples, and those that wait for a replay."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any


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


class ReplayTable:
    """The tuples of a reliable spout that are open or wait for their replay, by their ids.

    It outlives the spout: after a restart the runtime hands it to the new instance.

    Attributes
    ----------
    entries : dict
    """

    def __init__(self) -> None:
        self.entries: dict[Hashable, ReplayEntry] = {}
        # (due_ms, sequence number, tup_id). A row is stale unless its entry is still due then: acks leave rows behind.
        self._heap: list[tuple[int, int, Hashable]] = []
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self.entries)

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
        """Return when the next replay is due; None if no tuple waits."""
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
        due_ms = self.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        tup_id = heapq.heappop(self._heap)[2]
        entry = self.entries[tup_id]
        entry.attempt += entry.counted
        entry.due_ms = None
        return tup_id
