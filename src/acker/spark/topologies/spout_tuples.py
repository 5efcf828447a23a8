"""The tuples of the spouts on the driver: what the journal says of them, before and after a crash."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from acker.errors import CheckpointError
from acker.spark.topologies.journal import JournalEntry
from acker.spark.topologies.spark_executor import DriverExecutors
from acker.spark.topologies.tuple_blocks import Chunk
from acker.topology.spout import ReliableSpout
from acker.topology.tuples import Tuple


class SpoutTuples:
    """Knows which tuples of the spouts are in the journal and have not ended.

    Parameters
    ----------
    executors : DriverExecutors
    """

    def __init__(self, executors: DriverExecutors) -> None:
        self.executors = executors
        self._tasks = {task.collector.task: task for task in executors.spout_tasks()}
        self._journaled: set[tuple[int, Any]] = set()

    def restore(self, entries: Iterable[JournalEntry]) -> None:
        """Give spouts the tuples that failed before the start: those that wait, and those whose failure is news.

        Raises
        ------
        CheckpointError
            The topology has no such spout, or it takes no tuples from the journal.
        """
        for entry in entries:
            self._journaled.add(entry.key)
            spout = self._task(entry).spout
            if entry.reason is not None:
                self.tell_later(entry, entry.reason)
            elif isinstance(spout, ReliableSpout):
                spout._replays.record(entry.tup_id, entry.values, entry.stream, entry.direct_task)
                spout._replays.entries[entry.tup_id].attempt = entry.attempt
                wait_ms = 0 if entry.due is None else max(0, round((entry.due - time.time()) * 1000))
                due_ms = self._task(entry).collector.now_ms() + wait_ms
                spout._replays.schedule(entry.tup_id, due_ms, counted=entry.due is not None)

    def check(self, entries: Iterable[JournalEntry]) -> None:
        """Check that the topology has the spouts of some tuples; see `restore`."""
        for entry in entries:
            self._task(entry)

    def _task(self, entry: JournalEntry) -> Any:
        task = self._tasks.get(entry.task)
        if task is None:
            raise CheckpointError(
                f"task {entry.task}: the checkpoint has the tuple {entry.tup_id!r} of a spout that is not in this"
                " topology; begin with a new checkpoint"
            )
        if not task.spout.journaled:
            raise CheckpointError(
                f"component {task.collector.component!r}: the checkpoint has the open tuple {entry.tup_id!r}, and"
                f" {type(task.spout).__name__} takes no tuples from the journal; run the class that emitted it until"
                " the topology is drained, or begin with a new checkpoint"
            )
        return task

    def tell_later(self, entry: JournalEntry, reason: Any) -> None:
        """Tell a spout an outcome on its own thread, before it is asked for further tuples."""
        self.executors.feed(self._task(entry)).put(entry, reason)

    def entries(self, chunks: Sequence[Chunk]) -> tuple[dict[int, JournalEntry], frozenset[int]]:
        """Return what the spouts know of the trees of some tuples: root id -> entry; and the borrowed root ids."""
        found: dict[int, Tuple] = {}
        for _, tuples in chunks:
            for tup in tuples:
                for root_id in tup._ids or ():
                    found.setdefault(root_id, tup)
        entries: dict[int, JournalEntry] = {}
        borrowed: set[int] = set()
        for number, task in self._tasks.items():
            if not task.spout.journaled:
                borrowed.update(each.root_id for each in list(task.collector.pending.values()))
                continue
            attempts = task.spout if isinstance(task.spout, ReliableSpout) else None
            for pending in list(task.collector.pending.values()):
                tup_of = found.get(pending.root_id)
                if tup_of is not None:
                    attempt = 1 if attempts is None else attempts._attempt(pending.tup_id)
                    values = tuple(tup_of.values)
                    entries[pending.root_id] = JournalEntry(
                        number, pending.tup_id, values, tup_of.stream, attempt=attempt
                    )
        return entries, frozenset(borrowed & found.keys())

    def tell_journaled(self, entries: Iterable[JournalEntry]) -> None:
        """Tell the spouts which of their tuples are on disk."""
        by_task: dict[int, list[Any]] = {}
        for entry in entries:
            by_task.setdefault(entry.task, []).append(entry.tup_id)
        for number, tup_ids in by_task.items():
            self._tasks[number].spout.on_journaled(tup_ids)

    def after_batch(
        self, planned: Iterable[JournalEntry], acked: Iterable[JournalEntry], failed: Sequence[JournalEntry]
    ) -> list[JournalEntry]:
        """Return what a commit keeps: the tuples that failed, and those that wait for another attempt.

        Parameters
        ----------
        planned, acked, failed : iterable of JournalEntry
            The tuples of the micro-batch. Rows of a DataFrame are in `failed` only.
        """
        ended = {entry.key for entry in acked}
        told = {entry.key for entry in failed}
        self._journaled |= {entry.key for entry in planned} | told
        kept = [*failed, *self._waiting(ended | told)]
        self._journaled = {entry.key for entry in kept}  # the others were acked, or are dead letters
        return kept

    def _waiting(self, known: Collection[tuple[int, Any]]) -> list[JournalEntry]:
        entries: dict[tuple[int, Any], JournalEntry] = {}
        for number, task in self._tasks.items():
            feed = self.executors.feeds.get(number)
            for entry in () if feed is None else feed.waiting():
                entries[entry.key] = entry
            if not isinstance(task.spout, ReliableSpout):
                continue
            now, now_ms = time.time(), task.collector.now_ms()
            for tup_id, replay in task.spout._replays.entries.copy().items():
                due = None if replay.due_ms is None else now + (replay.due_ms - now_ms) / 1000
                where = replay.stream, replay.direct_task
                waiting = JournalEntry(number, tup_id, tuple(replay.values), *where, replay.attempt, None, due)
                entries.setdefault(waiting.key, waiting)
        return [entry for key, entry in entries.items() if key in self._journaled and key not in known]
