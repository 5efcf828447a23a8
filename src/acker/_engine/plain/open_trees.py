"""The table of open trees as a dict: the trees of one shard that stay open across micro-batches.

Its memory stays empty, so no other process can attach to the table: a shard that moves to another process is rebuilt
from its log.
"""

from __future__ import annotations

from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from acker._engine.codes import FAILED, RESET, TRACKED, UNTRACKED, UNTRACKED_FAILED, UNTRACKED_RESET
from acker._engine.plain.checks import ENTRIES, PARTIALS, check_rows
from acker._engine.plain.cohorts import check_cohorts, cohort_of
from acker._engine.protocol import INT64_MAX, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    _Int64 = npt.NDArray[np.int64]
    _Int32 = npt.NDArray[np.int32]
    _Int8 = npt.NDArray[np.int8]
    _UInt8 = npt.NDArray[np.uint8]
    _UInt32 = npt.NDArray[np.uint32]
    # root id, message id, task id, outcome, elapsed ms
    _Completions = tuple[_Int64, _Int64, _Int32, _Int8, _Int64]
    # root id, value, message id, start, since, task id
    _EntryColumns = tuple[_Int64, _Int64, _Int64, _Int64, _Int64, _Int32]

_UNLOGGED: Final = 0  # the chunk of an entry that the log does not know
# In the order of acker._engine.open_trees.TreeCounts.
_COUNTS: Final = (
    *("tracked", "acked", "failed", "timed_out", "rejected"),
    *("duplicates", "unknown", "orphans", "dropped", "resets", "empty"),
)
_MEMORY_BYTES: Final = 4096
_TOKEN_BYTES: Final = 16


def open_trees_bytes(capacity: int) -> int:
    """Return the size of one page, whatever the capacity: the table stores nothing in its memory."""
    del capacity
    return _MEMORY_BYTES


class _PartialsRow(NamedTuple):
    """One row of partials."""

    root_id: int
    value: int
    flags: int
    track_value: int
    task_id: int
    message_id: int
    event_ms: int


class _Rules(NamedTuple):
    """The rules for one micro-batch."""

    time_ms: int
    high_water: int | None
    every_message_refreshes: bool
    cohorts: tuple[int, int]

    def takes(self, tree: _OpenTree, event_ms: int) -> bool:
        """Return whether a message of some time belongs to a tree."""
        cohort, buckets = cohort_of(event_ms, self.cohorts), self.cohorts[1]
        last, first = (cohort_of(ms, self.cohorts) for ms in (tree.since_ms, tree.start_ms))
        return first - buckets < cohort < last + buckets

    def beyond(self, held: int, times: int) -> bool:
        return self.high_water is not None and held > times * self.high_water


class _OpenTree:
    """What is known of one tree."""

    __slots__ = ("chunk", "message_id", "position", "root_id", "since_ms", "start_ms", "task_id", "value")

    def __init__(self, root_id: int, value: int, time_ms: int) -> None:
        self.root_id = root_id
        self.value = value
        self.message_id = 0
        self.start_ms = self.since_ms = time_ms
        self.task_id = UNTRACKED
        self.chunk = _UNLOGGED
        self.position = -1

    def set_track(self, row: _PartialsRow) -> None:
        self.value ^= row.track_value
        self.task_id = row.task_id
        self.message_id = row.message_id


class _Changes:
    """The results of a call: completions, changed positions, roots that left the log, and counts."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int, int, int, int]] = []
        self.changed: list[int] = []
        self.gone: list[tuple[int, int]] = []
        self.counts = dict.fromkeys(_COUNTS, 0)

    def report(self, entry: _OpenTree, outcome: Outcome, now_ms: int) -> None:
        """Record that a tree ended; counters have the names of outcomes."""
        elapsed = min(max(now_ms - entry.start_ms, 0), INT64_MAX)
        self.counts[outcome.name.lower()] += 1
        self.done.append((entry.root_id, entry.message_id, entry.task_id, int(outcome), elapsed))

    def completions(self) -> _Completions:
        root_id, message_id, task_id, outcome, elapsed_ms = _columns(self.done, 5)
        return root_id, message_id, task_id.astype(np.int32), outcome.astype(np.int8), elapsed_ms


class OpenTreesTable:
    """The table of an `acker._engine.open_trees.OpenTrees`, with the calls and results of the compiled one."""

    def __init__(self, memory: Any, capacity: int | None = None, seed: int = 0) -> None:
        if capacity is None:
            raise ValueError("the memory holds no table")
        self._memory = memory
        self.capacity, self.seed = capacity, seed
        self.open = 0
        self._token = bytes(_TOKEN_BYTES)
        # One entry a root; with event times several, in the order in which they were made.
        self._by_root: dict[int, list[_OpenTree]] = {}
        self._size = 0
        self._by_position: list[_OpenTree | None] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return self._size

    @property
    def token(self) -> bytes:
        """16 bytes of the holder's; zeros at first."""
        return self._token

    @token.setter
    def token(self, token: bytes) -> None:
        if len(token) != _TOKEN_BYTES:
            raise ValueError(f"token: expected {_TOKEN_BYTES} bytes, got {len(token)}")
        self._token = bytes(token)

    def contains(self, root_id: int) -> bool:
        """Return whether a root is held."""
        return root_id in self._by_root

    def merge(
        self,
        root_id: _Int64,
        value: _Int64,
        flags: _UInt8,
        track_value: _Int64,
        task_id: _Int32,
        message_id: _Int64,
        event_ms: _Int64 | None,
        time_ms: int,
        high_water: int | None,
        every_message_refreshes: bool,
        cohorts: tuple[int, int] | None,
    ) -> tuple[_Completions, _UInt32, _Int64, tuple[int, ...]]:
        """Apply partials; return completions, positions that changed, what left the log, and the counts.

        Without `cohorts` all messages have one time; with them each has its event time, by which the partials of a root
        are sorted.
        """
        check_rows(*PARTIALS, root_id, value, flags, track_value, task_id, message_id)
        if high_water is not None and high_water < 0:
            raise ValueError(f"high_water: expected 0 or more, got {high_water}")
        if cohorts is not None:
            check_cohorts(cohorts)
        rules, changes = _Rules(time_ms, high_water, every_message_refreshes, cohorts or (0, 2)), _Changes()
        times = np.zeros(len(root_id), np.int64) if cohorts is None or event_ms is None else event_ms
        columns = (root_id, value, flags, track_value, task_id, message_id, times)
        rows = map(_PartialsRow, *(column.tolist() for column in columns))
        if cohorts is not None:
            for _, rows_of_root in groupby(rows, key=lambda row: row.root_id):
                _TimedMerge(self, rules, changes).run(list(rows_of_root))
        else:
            for row in rows:
                entries = self._by_root.get(row.root_id)
                if entries is None:
                    self._merge_unknown(row, rules, changes)
                else:
                    self._merge_known(row, entries[0], rules, changes)
        gone = np.array(changes.gone, np.int64).reshape(-1, 2).T.copy()
        return changes.completions(), np.array(changes.changed, np.uint32), gone, tuple(changes.counts.values())

    def room_for(
        self,
        root_id: _Int64,
        value: _Int64,
        flags: _UInt8,
        track_value: _Int64,
        cohorts: tuple[int, int] | None,
    ) -> int:
        """Return how many entries a merge of such partials makes at most, as far as the capacity depends on it."""
        if len(self) + len(root_id) <= self.capacity:
            return len(root_id)
        finished = (flags & TRACKED != 0) & (value == track_value)
        if cohorts is not None:
            return min(len(root_id), int(np.count_nonzero(~finished)) + 1)
        return sum(root not in self._by_root for root in root_id[~finished].tolist())

    def _merge_unknown(self, row: _PartialsRow, rules: _Rules, changes: _Changes) -> None:
        counts = changes.counts
        if row.flags == RESET and row.value == 0:
            counts["unknown"] += 1
            return
        counts["resets"] += (row.flags & RESET) != 0
        tracked, failed = (row.flags & TRACKED) != 0, (row.flags & FAILED) != 0
        entry = _OpenTree(row.root_id, row.value, rules.time_ms)
        if tracked:
            entry.set_track(row)
            # All of it is here, so there is nothing to hold, whatever the limit.
            if entry.value == 0:
                counts["tracked"] += 1
                counts["empty"] += not failed and row.track_value == 0
                changes.report(entry, Outcome.ACKED, rules.time_ms)
                return
        # The TRACK is taken as the last of its messages: the others meet the limits first.
        others = not tracked or failed or row.value != 0
        if others and rules.beyond(len(self), 4):
            counts["dropped"] += 1
            entry.value ^= row.value
            others = failed = False
        if tracked and rules.beyond(self.open, 2):
            changes.report(entry, Outcome.REJECTED, rules.time_ms)
            entry = _OpenTree(row.root_id, row.value, rules.time_ms)
            tracked = False
        elif tracked:
            counts["tracked"] += 1
            if failed or entry.value == 0:
                changes.report(entry, Outcome.FAILED if failed else Outcome.ACKED, rules.time_ms)
                return
        if not tracked:
            if not others:
                return
            entry.task_id = UNTRACKED_FAILED if failed else UNTRACKED
        self._insert(entry)
        changes.changed.append(entry.position)

    def _merge_known(self, row: _PartialsRow, entry: _OpenTree, rules: _Rules, changes: _Changes) -> None:
        counts = changes.counts
        changed = row.value != 0 or (row.flags & (FAILED | RESET)) != 0
        refreshed = (row.flags & (FAILED | RESET)) != 0 or (rules.every_message_refreshes and row.value != 0)
        failed = (row.flags & FAILED) != 0 or entry.task_id == UNTRACKED_FAILED
        counts["resets"] += (row.flags & RESET) != 0
        entry.value ^= row.value
        if row.flags & TRACKED:
            if entry.task_id >= 0:
                counts["duplicates"] += 1
            elif rules.beyond(self.open, 2):
                refused = _OpenTree(row.root_id, entry.value, rules.time_ms)
                refused.set_track(row)
                changes.report(refused, Outcome.REJECTED, rules.time_ms)
            else:
                entry.set_track(row)
                counts["tracked"] += 1
                self.open += 1
                changed = True
                refreshed = refreshed or rules.every_message_refreshes
        if entry.task_id < 0 and failed:
            entry.task_id = UNTRACKED_FAILED
        if refreshed:
            entry.since_ms = rules.time_ms
        if entry.task_id >= 0 and (entry.value == 0 or failed):
            changes.report(entry, Outcome.ACKED if entry.value == 0 else Outcome.FAILED, rules.time_ms)
            if entry.chunk != _UNLOGGED:
                changes.gone.append((row.root_id, entry.start_ms))
            self._remove(entry)
        elif changed:
            changes.changed.append(entry.position)

    def expire(self, before_ms: int, now_ms: int) -> tuple[_Completions, int, tuple[int, ...]]:
        """Remove what was placed before a moment; return completions, the start of the oldest left, and the counts."""
        changes, oldest_ms = _Changes(), now_ms
        for entry in list(self._in_order()):
            if entry.since_ms >= before_ms:
                oldest_ms = min(oldest_ms, entry.start_ms)
                continue
            if entry.task_id >= 0:
                changes.report(entry, Outcome.TIMED_OUT, now_ms)
            else:
                is_reset = entry.task_id == UNTRACKED_RESET and entry.value == 0
                changes.counts["unknown" if is_reset else "orphans"] += 1
            self._remove(entry)
        return changes.completions(), oldest_ms, tuple(changes.counts.values())

    def take(self, position: _UInt32, chunk: int) -> _EntryColumns:
        """Return the columns of some entries, and note their chunk of the log."""
        check_rows("root_id", "u4", position)
        places = position.tolist()
        if any(place >= len(self._by_position) or self._by_position[place] is None for place in places):
            raise ValueError("position: expected positions of entries")
        rows = []
        for entry in (self._by_position[place] for place in places):
            assert entry is not None, "it was looked at"
            entry.chunk = chunk
            rows.append((entry.root_id, entry.value, entry.message_id, entry.start_ms, entry.since_ms, entry.task_id))
        root_id, value, message_id, start_ms, since_ms, task_id = _columns(rows, 6)
        return root_id, value, message_id, start_ms, since_ms, task_id.astype(np.int32)

    def logged_before(self, chunk: int, most: int) -> _UInt32:
        """Return the positions of at most `most` logged entries whose chunk is before this one."""
        if most < 0:
            raise ValueError(f"most: expected 0 or more, got {most}")
        found = (entry.position for entry in self._in_order() if _UNLOGGED < entry.chunk < chunk)
        return np.array(list(islice(found, most)), np.uint32)

    def put(
        self,
        root_id: _Int64,
        value: _Int64,
        message_id: _Int64,
        start_ms: _Int64,
        since_ms: _Int64,
        task_id: _Int32,
        chunk: int,
    ) -> None:
        """Insert entries, or overwrite those with the same root and start."""
        columns = (root_id, value, message_id, start_ms, since_ms, task_id)
        check_rows(*ENTRIES, *columns)
        if ((task_id < UNTRACKED_FAILED) & (task_id != UNTRACKED_RESET)).any():
            raise ValueError(f"task_id: expected {UNTRACKED_FAILED} or more, got {np.min(task_id)}")
        for root, its_value, message, start, since, task in zip(*(column.tolist() for column in columns), strict=True):
            entry = self._find(root, start)
            if entry is None:
                entry = _OpenTree(root, 0, start)
                self._insert(entry)
            self.open += (task >= 0) - (entry.task_id >= 0)
            entry.value, entry.message_id, entry.task_id = its_value, message, task
            entry.start_ms, entry.since_ms, entry.chunk = start, since, chunk

    def erase(self, root_id: _Int64, start_ms: _Int64) -> None:
        """Remove entries, each named by its root and start; unknown ones are ignored."""
        check_rows("root_id", "i8", root_id)
        for root, start in zip(root_id.tolist(), start_ms.tolist(), strict=True):
            entry = self._find(root, start)
            if entry is not None:
                self._remove(entry)

    def copy_to(self, other: OpenTreesTable) -> None:
        """Copy everything into an empty table. The entries themselves move, since this table is given up then."""
        if len(other) > 0 or other.capacity < len(self):
            raise ValueError(f"other: expected an empty table with room for {len(self)} entries")
        for entry in self._in_order():
            other._insert(entry)

    def check_invariants(self) -> bool:
        """Return whether the dict, the positions and the counts agree."""
        standing = list(self._in_order())
        return (
            len(standing) == self._size == sum(map(len, self._by_root.values()))
            and all(any(entry is each for each in self._by_root[entry.root_id]) for entry in standing)
            and all(self._by_position[entry.position] is entry for entry in standing)
            and sum(entry.task_id >= 0 for entry in standing) == self.open
            and len(self._free) + len(standing) == len(self._by_position)
        )

    def _in_order(self) -> Iterable[_OpenTree]:
        return (entry for entry in self._by_position if entry is not None)

    def _insert(self, entry: _OpenTree) -> None:
        if self._free:
            entry.position = self._free.pop()
            self._by_position[entry.position] = entry
        else:
            entry.position = len(self._by_position)
            self._by_position.append(entry)
        self._by_root.setdefault(entry.root_id, []).append(entry)
        self._size += 1
        self.open += entry.task_id >= 0

    def _find(self, root_id: int, start_ms: int) -> _OpenTree | None:
        return next((entry for entry in self._by_root.get(root_id, ()) if entry.start_ms == start_ms), None)

    def _remove(self, entry: _OpenTree) -> None:
        self.open -= entry.task_id >= 0
        self._size -= 1
        entries = self._by_root[entry.root_id]
        entries.remove(entry)
        if not entries:
            del self._by_root[entry.root_id]
        self._by_position[entry.position] = None
        self._free.append(entry.position)


class _TimedMerge:
    """The merge of the messages of one root that have event times."""

    def __init__(self, table: OpenTreesTable, rules: _Rules, changes: _Changes) -> None:
        self._table, self._rules, self._changes = table, rules, changes
        self._changed: list[_OpenTree] = []
        self._begun: list[_OpenTree] = []

    def run(self, rows: list[_PartialsRow]) -> None:
        """Apply the rows, then the limits to what is new, and note what changed."""
        self._root = rows[0].root_id
        for row in rows:
            self._merge_row(row)
        while self._refuse_one():
            pass
        self._changes.changed += [entry.position for entry in self._entries() if entry in self._changed]

    def _entries(self) -> list[_OpenTree]:
        return list(self._table._by_root.get(self._root, ()))

    def _merge_row(self, row: _PartialsRow) -> None:
        rules, counts = self._rules, self._changes.counts
        cohort = cohort_of(row.event_ms, rules.cohorts)
        tracked, failed = (row.flags & TRACKED) != 0, (row.flags & FAILED) != 0
        refreshes = (row.flags & RESET) != 0 or (rules.every_message_refreshes and row.value != 0)
        counts["resets"] += (row.flags & RESET) != 0
        trees = [each for each in self._entries() if each.task_id >= 0 and rules.takes(each, row.event_ms)]
        if trees:
            counts["duplicates"] += tracked
            if row.value or failed or refreshes:
                tree = min(trees, key=lambda each: each.start_ms)
                tree.value ^= row.value
                tree.since_ms = max(tree.since_ms, row.event_ms) if refreshes else tree.since_ms
                self._changed.append(tree)
                self._settle(tree, failed, row.event_ms)
            return
        for waiting in self._entries():
            if waiting.task_id < 0 and cohort_of(waiting.start_ms, rules.cohorts) == cohort:
                break
        else:
            waiting = _OpenTree(row.root_id, 0, row.event_ms)
            self._table._insert(waiting)
        failed = failed or waiting.task_id == UNTRACKED_FAILED
        waiting.value ^= row.value
        self._changed.append(waiting)
        if tracked:
            self._begin(waiting, row, failed)
        elif failed:
            waiting.task_id = UNTRACKED_FAILED
        elif refreshes:
            waiting.task_id = UNTRACKED_RESET

    def _begin(self, tree: _OpenTree, row: _PartialsRow, failed: bool) -> None:
        tree.set_track(row)
        self._begun.append(tree)
        self._table.open += 1
        self._changes.counts["tracked"] += 1
        # What came before the TRACK is taken first, so that the tree is judged by all of it.
        while (earlier := self._next_waiting(tree)) is not None and earlier.start_ms <= tree.start_ms:
            failed = self._take(tree, earlier) or failed
        self._changes.counts["empty"] += not failed and tree.value == 0 and row.track_value == 0
        self._settle(tree, failed, row.event_ms)

    def _settle(self, tree: _OpenTree, failed: bool, event_ms: int) -> None:
        """End a tree, or add the entries that wait for it, cohort by cohort, until it ends."""
        while tree.value != 0 and not failed:
            waiting = self._next_waiting(tree)
            if waiting is None:
                return
            event_ms = max(event_ms, waiting.start_ms)
            failed = self._take(tree, waiting)
        self._changes.report(tree, Outcome.FAILED if tree.value else Outcome.ACKED, event_ms)
        self._forget(tree)

    def _next_waiting(self, tree: _OpenTree) -> _OpenTree | None:
        waiting = [each for each in self._entries() if each.task_id < 0 and self._rules.takes(tree, each.start_ms)]
        return min(waiting, key=lambda each: each.start_ms, default=None)

    def _take(self, tree: _OpenTree, waiting: _OpenTree) -> bool:
        """Add a waiting entry to its tree; return whether the tree fails by it."""
        tree.value ^= waiting.value
        if waiting.task_id == UNTRACKED_RESET or self._rules.every_message_refreshes:
            tree.since_ms = max(tree.since_ms, waiting.start_ms)
        self._forget(waiting)
        return waiting.task_id == UNTRACKED_FAILED

    def _forget(self, entry: _OpenTree) -> None:
        if entry.chunk != _UNLOGGED:
            self._changes.gone.append((entry.root_id, entry.start_ms))
        self._table._remove(entry)

    def _refuse_one(self) -> bool:
        """Remove the latest new entry that is beyond a limit; return whether there was one."""
        table, counts = self._table, self._changes.counts
        for entry in sorted(self._entries(), key=lambda each: -each.start_ms):
            if entry in self._begun and self._rules.beyond(table.open - 1, 2):
                counts["tracked"] -= 1
                self._changes.report(entry, Outcome.REJECTED, entry.start_ms)
            elif entry not in self._begun and entry.chunk == _UNLOGGED and self._rules.beyond(len(table) - 1, 4):
                counts["dropped"] += 1
            else:
                continue
            self._forget(entry)
            return True
        return False


def _columns(rows: list[Any], columns: int) -> list[_Int64]:
    """Return rows of integers as int64 columns."""
    return list(np.array(rows, np.int64).reshape(len(rows), columns).T.copy())
