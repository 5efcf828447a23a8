"""The rules of the acker protocol in plain Python: what each message does to the trees.

The comments in angle brackets name the rules that a line implements; docs/protocol.md has their text. Speed is no
concern here, reading is.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice, repeat

from acker._engine.columns import Columns
from acker._engine.protocol import (
    COUNTERS,
    AckerOptions,
    Kind,
    Outcome,
    PendingTree,
    elapsed_ms,
    start_tick,
)
from acker._engine.snapshot import BLOCK_ENTRIES, FAILED, TRACKED, UNTRACKED, SnapshotEntries

# Plain integers: comparing with the members of an IntEnum, row by row, would make the baseline slower than it need be.
_TRACK, _ANCHOR, _OK, _FAIL, _RESET_TIMEOUT = (
    int(kind) for kind in (Kind.TRACK, Kind.ANCHOR, Kind.OK, Kind.FAIL, Kind.RESET_TIMEOUT)
)
_ACKED, _FAILED, _TIMED_OUT, _REJECTED, _ = map(int, Outcome)
_COUNTER_OF_OUTCOME = {int(outcome): outcome.name.lower() for outcome in Outcome}

# One finished tree: root id, message id, task id, outcome, elapsed ms.
Row = tuple[int, int, int, int, int]


class _TreeState:
    """The state of one tree."""

    __slots__ = ("ack_val", "failed", "message_id", "start", "task_id")

    def __init__(self, start: int) -> None:
        self.ack_val = 0
        self.failed = False
        self.message_id = 0
        self.task_id: int | None = None  # None until the TRACK
        self.start = start

    def end(self, root_id: int, outcome: int, now_ms: int) -> Row:
        """Return the completion of a tracked tree."""
        assert self.task_id is not None
        return root_id, self.message_id, self.task_id, outcome, elapsed_ms(self.start, now_ms)


_Bucket = dict[int, _TreeState]
_TREE_BYTES = sys.getsizeof(_TreeState(0))


class TreeTable:
    """The trees of one acker, in a dict a bucket, and the counts of what happened to them.

    Parameters
    ----------
    options : AckerOptions

    Attributes
    ----------
    buckets : deque of dict
        From the nursery to death row.
    counts : dict
        By the names in `COUNTERS`.
    open : int
        Trees that are tracked.
    """

    def __init__(self, options: AckerOptions) -> None:
        self._high_water = options.high_water
        self._every_message_refreshes = options.protocol == "storm-0.9"
        self._is_fsshelter = options.protocol == "fsshelter"
        self.buckets: deque[_Bucket] = deque({} for _ in range(options.buckets))
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.open = 0

    def __len__(self) -> int:
        return sum(map(len, self.buckets))

    def __contains__(self, root: object) -> bool:
        return any(root in bucket for bucket in self.buckets)

    @property
    def nbytes(self) -> int:
        """About the bytes that the trees take, without those of the integers in them."""
        return sum(sys.getsizeof(bucket) + len(bucket) * _TREE_BYTES for bucket in self.buckets)

    def apply(self, columns: Columns, now_ms: int) -> list[Row]:
        """Apply messages one by one; return the trees that they end."""
        apply = self._apply_fsshelter if self._is_fsshelter else self._apply_storm
        ended = []
        for kind, root, value, task, message in message_rows(columns):
            end = apply(kind, root, value, task, message, now_ms)
            if end is not None:
                ended.append(end)
        return ended

    def rotate(self, now_ms: int) -> list[Row]:
        """Empty death row, which becomes the nursery; return the tracked trees of it, which timed out."""
        death_row = self.buckets.pop()
        self.buckets.appendleft({})
        rows = []
        for root, tree in death_row.items():
            if tree.task_id is None:
                self.counts["orphans"] += 1
            else:
                rows.append(self._finish(root, tree, _TIMED_OUT, now_ms))
        return rows

    def oldest(self, most: int, now_ms: int | None) -> list[PendingTree]:
        """Return the trees that were begun first; every age is 0 where `now_ms` is None."""
        trees = (
            PendingTree(
                message_id=None if tree.task_id is None else tree.message_id,
                age_ms=0 if now_ms is None else elapsed_ms(tree.start, now_ms),
                state="tracked" if tree.task_id is not None else "failed" if tree.failed else "untracked",
                root_id=root,
                task_id=tree.task_id,
                ack_val=tree.ack_val,
                rotations_left=len(self.buckets) - age,
            )
            for age, bucket in enumerate(self.buckets)
            for root, tree in bucket.items()
        )
        return sorted(trees, key=lambda tree: (-tree.age_ms, tree.rotations_left, tree.root_id))[:most]

    def blocks(self) -> Iterator[SnapshotEntries]:
        """Yield the trees in blocks of a snapshot."""
        rows = (
            (
                root,
                tree.ack_val,
                tree.message_id,
                tree.task_id or 0,
                tree.start,
                TRACKED if tree.task_id is not None else FAILED if tree.failed else UNTRACKED,
                age,
            )
            for age, bucket in enumerate(self.buckets)
            for root, tree in bucket.items()
        )
        while block := list(islice(rows, BLOCK_ENTRIES)):
            yield SnapshotEntries.from_rows(block)

    def restore_block(self, entries: SnapshotEntries) -> None:
        """Take over the trees of one block of a snapshot."""
        columns = (column.tolist() for column in entries)
        for root, ack_val, message, task, start, state, age in zip(*columns, strict=True):
            tree = self.buckets[age][root] = _TreeState(start)
            tree.ack_val = ack_val
            tree.failed = state == FAILED
            if state == TRACKED:
                tree.task_id, tree.message_id = task, message
                self.open += 1

    def _apply_storm(self, kind: int, root: int, value: int, task: int, message: int, now_ms: int) -> Row | None:
        """Apply one message under protocol "storm" or "storm-0.9"; return the tree that it ends, if it ends one.

        Storm 2.x daemon/Acker.java, execute; Storm 0.9.7, Acking framework implementation.
        """
        bucket, tree = self._find(root)

        if kind == _RESET_TIMEOUT:  # <storm 1>
            self._reset_timeout(root, bucket, tree)
            return None
        if kind == _TRACK:
            if tree is not None and tree.task_id is not None:  # <storm 2>
                self.counts["duplicates"] += 1
                return None
            if self._is_full():  # <capacity, first rule>
                return self._reject(root, task, message)
        elif tree is None and self._is_crowded():  # <capacity, second rule>
            self.counts["dropped"] += 1
            return None

        is_new = tree is None
        if tree is None:  # <storm 3>, and <storm 8> when the tree is finished already
            bucket, tree = self.buckets[0], _TreeState(start_tick(now_ms))
            bucket[root] = tree
        elif kind == _FAIL or self._every_message_refreshes:  # <storm 6>, <storm-0.9>
            bucket = self._move_to_nursery(root, bucket, tree)

        if kind == _FAIL:  # <storm 6>
            tree.failed = True
        else:  # <storm 4>, <storm 5>
            tree.ack_val ^= value
        if kind == _TRACK:  # <storm 4>
            self._accept(tree, task, message)

        if tree.task_id is None:  # <storm 7>: it waits for its TRACK
            return None
        if tree.ack_val == 0:  # <storm 7>: 0 wins over failed
            outcome = _ACKED
            if is_new:  # <storm 4>: by its TRACK alone
                self.counts["empty"] += 1
        elif tree.failed:
            outcome = _FAILED
        else:
            return None
        del bucket[root]
        return self._finish(root, tree, outcome, now_ms)

    def _apply_fsshelter(self, kind: int, root: int, value: int, task: int, message: int, now_ms: int) -> Row | None:
        """Apply one message under protocol "fsshelter"; return the tree that it ends, if it ends one.

        FsShelter, Acker algorithm: TRACK first, and every ANCHOR before the OK of the tuple it came from.
        """
        bucket, tree = self._find(root)

        if kind == _TRACK:  # <fsshelter 1>
            if tree is not None:
                self.counts["duplicates"] += 1
                return None
            if self._is_full():  # <capacity, first rule>
                return self._reject(root, task, message)
            self.buckets[0][root] = tree = _TreeState(start_tick(now_ms))
            self._accept(tree, task, message)
            return None
        if kind == _RESET_TIMEOUT:  # <fsshelter 4>
            self._reset_timeout(root, bucket, tree)
            return None
        if tree is None:  # <fsshelter 5>
            self.counts["unknown"] += 1
            return None
        if kind == _FAIL:  # <fsshelter 4>
            outcome = _FAILED
        else:  # <fsshelter 2>, <fsshelter 3>
            tree.ack_val ^= value
            if kind == _ANCHOR or tree.ack_val != 0:
                return None
            outcome = _ACKED
        del bucket[root]
        return self._finish(root, tree, outcome, now_ms)

    def _find(self, root: int) -> tuple[_Bucket, _TreeState | None]:
        """Return the bucket that holds a root and its tree; of an unknown root, the nursery and None."""
        for bucket in self.buckets:
            tree = bucket.get(root)
            if tree is not None:
                return bucket, tree
        return self.buckets[0], None

    def _move_to_nursery(self, root: int, bucket: _Bucket, tree: _TreeState) -> _Bucket:
        nursery = self.buckets[0]
        del bucket[root]
        nursery[root] = tree
        return nursery

    def _reset_timeout(self, root: int, bucket: _Bucket, tree: _TreeState | None) -> None:
        if tree is None:
            self.counts["unknown"] += 1
            return
        self._move_to_nursery(root, bucket, tree)
        self.counts["resets"] += 1

    def _is_full(self) -> bool:
        return self._high_water is not None and self.open > 2 * self._high_water

    def _is_crowded(self) -> bool:
        return self._high_water is not None and len(self) > 4 * self._high_water

    def _accept(self, tree: _TreeState, task: int, message: int) -> None:
        tree.task_id, tree.message_id = task, message
        self.counts["tracked"] += 1
        self.open += 1

    def _reject(self, root: int, task: int, message: int) -> Row:
        self.counts["rejected"] += 1
        return root, message, task, _REJECTED, 0

    def _finish(self, root: int, tree: _TreeState, outcome: int, now_ms: int) -> Row:
        self.counts[_COUNTER_OF_OUTCOME[outcome]] += 1
        self.open -= 1
        return tree.end(root, outcome, now_ms)


def message_rows(columns: Columns) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the rows of a batch as integers: kind, root id, value, task id, message id."""
    tasks = repeat(0) if columns.task_id is None else columns.task_id.tolist()
    messages = repeat(0) if columns.message_id is None else columns.message_id.tolist()
    return zip(columns.kind.tolist(), columns.root_id.tolist(), columns.value.tolist(), tasks, messages, strict=False)
