"""The open trees of the spouts: the oldest, those of a message id, and how many are older than a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice, takewhile
from typing import Final, TypeVar

from acker._flow import PendingTuple
from acker.local.executors.spout import SpoutTask
from acker.local.open_batches import OpenBatch, OpenRow
from acker.local.wiring import ExecutorSet
from acker.observe.failures import is_named, shown_id

# How many old trees are counted for each task of a spout, and how many trees of one id are found.
OLD_MAX = 10_000
FOUND_MAX = 100

# Of how many trees the messages are known.
_NAMES_MAX: Final = 100

# Other threads emit while a table is read; a further try soon meets a quiet moment.
_TRIES = 100

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class UnfinishedTree:
    """A tree whose outcome the spout does not know yet.

    Attributes
    ----------
    component, task : str, int
        The spout.
    tup_id : hashable
    root_id : int or None
        None: it waits for its next attempt.
    emitted_ns : int
        By the runtime's clock; of one that waits, when its next attempt is due.
    attempt : int
    """

    component: str
    task: int
    tup_id: Hashable
    root_id: int | None
    emitted_ns: int
    attempt: int


def oldest_trees(executors: ExecutorSet, most: int) -> list[UnfinishedTree]:
    """Return the trees that are open longest, the oldest first. Any thread may call it."""
    found: list[UnfinishedTree] = []
    for task in executors.spout_tasks():
        rows = _read(lambda task=task: task.collector.open_trees(most))  # type: ignore[misc]
        found += [_tree(task, row) for row in rows or ()]
    return nsmallest(most, found, key=lambda tree: tree.emitted_ns)


def count_older(executors: ExecutorSet, before_ns: int) -> int:
    """Return how many open trees were emitted before a time; of each task at most `OLD_MAX`."""
    count = 0
    for task in executors.spout_tasks():

        def old(task: SpoutTask = task) -> int:
            ordered = islice(task.collector.pending.values(), OLD_MAX)
            batches = [batch for batch in task.collector.open_batches.values() if batch.emitted_ns <= before_ns]
            of_batches = sum(batch.open_count for batch in batches)
            return of_batches + sum(1 for _ in takewhile(lambda row: row.emitted_ns <= before_ns, ordered))

        count += _read(old) or 0
    return count


def find_trees(executors: ExecutorSet, text: str) -> list[UnfinishedTree]:
    """Return the trees whose message id or root id is this text, and those that wait for their next attempt."""
    found: list[UnfinishedTree] = []
    for task in executors.spout_tasks():
        # Copied first, since reading it row by row takes longer than the spout takes to change it.
        rows: list[PendingTuple | OpenRow] = list(task.collector.pending.copy().values())
        rows += [batch.row(row) for batch in _batches(task) for row in batch.open_rows().tolist()]
        found += [_tree(task, row) for row in rows if is_named(row.tup_id, text) or str(row.root_id) == text]
        found += _waiting(task, text)
    return found[:FOUND_MAX]


class MessageNames:
    """The messages of open trees in words. Any thread may ask; each tree is looked for once, since that copies all.

    Parameters
    ----------
    executors : callable
        Returns those that run, if any do.
    """

    def __init__(self, executors: Callable[[], ExecutorSet | None]) -> None:
        self._executors = executors
        self._found: dict[int, str | None] = {}
        self._finding = threading.Lock()

    def of(self, root_id: int) -> str | None:
        """Return the message of a tree, if its spout runs here."""
        with self._finding:
            if root_id not in self._found:
                executors = self._executors()
                trees = [] if executors is None else find_trees(executors, str(root_id))
                found = next((tree.tup_id for tree in trees if tree.root_id == root_id), None)
                while len(self._found) >= _NAMES_MAX:
                    del self._found[next(iter(self._found))]
                self._found[root_id] = None if found is None else f"message {shown_id(found)}"
            return self._found[root_id]


def _waiting(task: SpoutTask, text: str) -> Iterable[UnfinishedTree]:
    replays = task.replays
    batches = [] if replays is None else [row for batch in list(replays.batches.values()) for row in batch.kept()]
    for tup_id, entry in () if replays is None else [*replays.entries.copy().items(), *batches]:
        if entry.due_ms is not None and is_named(tup_id, text):
            collector = task.collector
            due_ns = entry.due_ms * 1_000_000
            yield UnfinishedTree(
                collector.component, collector.task, tup_id, None, due_ns, entry.attempt + entry.counted
            )


def _batches(task: SpoutTask) -> list[OpenBatch]:
    return _read(lambda: list(task.collector.open_batches.values())) or []


def _tree(task: SpoutTask, row: PendingTuple | OpenRow) -> UnfinishedTree:
    collector = task.collector
    attempt = row.attempt if isinstance(row, OpenRow) else task.attempt_of(row.tup_id)
    return UnfinishedTree(collector.component, collector.task, row.tup_id, row.root_id, row.emitted_ns, attempt)


def _read(read: Callable[[], Found]) -> Found | None:
    """Read what another thread may be changing; None if it never rests."""
    for _ in range(_TRIES):
        try:
            return read()
        except RuntimeError:
            continue
    return None
