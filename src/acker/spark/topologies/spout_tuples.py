"""The tuples of the spouts on the driver: what the journal says of them, before and after a crash."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from acker.errors import CheckpointError
from acker.local.executors.spout import SpoutTask
from acker.spark.topologies.journal import BatchCommit, BatchPlan, JournalEntry, JournalRows, TupleKey
from acker.spark.topologies.outcome_feed import OutcomeFeed
from acker.spark.topologies.spark_executor import DriverExecutors
from acker.spark.topologies.taken_trees import TakenTrees
from acker.topology.arrow_columns import take


class SpoutTuples:
    """Knows which tuples of the spouts are in the journal and have not ended.

    Parameters
    ----------
    executors : DriverExecutors
    """

    def __init__(self, executors: DriverExecutors) -> None:
        self.executors = executors
        self._tasks = {task.collector.task: task for task in executors.spout_tasks()}
        self._journaled: set[TupleKey] = set()
        # The tuples that were acked, and how many steps their spout's executor had done when it was seen to know.
        self._acked: dict[TupleKey, int | None] = {}

    def restore(self, commit: BatchCommit, plans: Iterable[BatchPlan], before: Iterable[BatchPlan]) -> None:
        """Give spouts what an earlier run has left: tuples that wait for an attempt, and outcomes that may be news.

        Raises
        ------
        CheckpointError
            A spout takes no tuples from the journal.

        Parameters
        ----------
        commit : BatchCommit
            The last one.
        plans, before : iterable of BatchPlan
            The micro-batches that will be done again, and those that were committed, as far as they are known.
        """
        planned = {entry.key: entry for plan in plans for entry in plan.entries.values()}
        for entry in planned.values():
            self._feed(entry).expect(entry.tup_id, entry.values, is_awaited=True)
        for entry in commit.entries:
            self._journaled.add(entry.key)
            if entry.key not in planned:
                self._restore(entry)
        known = {entry.key: entry.values for plan in before for entry in plan.entries.values()}
        for number, tup_id in commit.acked:
            values = known.get((number, tup_id))
            entry = JournalEntry(number, tup_id, values or ())
            self._acked[entry.key] = None
            self._feed(entry).expect(tup_id, values, is_awaited=True)
            self._feed(entry).put(entry, None, counts=False)

    def _restore(self, entry: JournalEntry) -> None:
        task = self._tasks[entry.task]
        if entry.reason is not None:
            self._feed(entry).expect(entry.tup_id, entry.values, is_awaited=True)
            self._feed(entry).put(entry, entry.reason, counts=False)
        elif task.replays is not None:
            self._feed(entry).expect(entry.tup_id, entry.values, is_awaited=False)
            task.replays.resume(entry.tup_id, entry.values, entry.stream, entry.direct_task, entry.attempt)
            is_counted = entry.due is not None
            task.collector.resume_attempts(entry.tup_id, entry.attempt + is_counted)
            task.replays.schedule(entry.tup_id, task.collector.now_ms() + _wait_ms(entry), counted=is_counted)

    def _feed(self, entry: JournalEntry) -> OutcomeFeed:
        spout = self._tasks[entry.task].spout
        if not spout.journaled:
            raise CheckpointError(
                f"component {self._tasks[entry.task].collector.component!r}: the checkpoint has the open tuple"
                f" {entry.tup_id!r}, and {type(spout).__name__} takes no tuples from the journal; run the class that"
                " emitted it until the topology is drained, or begin with a new checkpoint"
            )
        return self.executors.feed(entry.task)

    def deliver(self, entry: JournalEntry, reason: Any, elapsed_ms: int = 0) -> None:
        """Deliver an outcome to a spout on the thread of the spout, before its `next_tuple` is called again."""
        self._feed(entry).put(entry, reason, elapsed_ms=elapsed_ms)

    def entries(self, trees: TakenTrees) -> tuple[dict[int, JournalEntry], list[JournalRows], frozenset[int]]:
        """Return what the spouts know of some trees: root id -> entry; rows of batches; and the borrowed root ids."""
        by_root = trees.tuples
        entries: dict[int, JournalEntry] = {}
        batches: list[JournalRows] = []
        borrowed: set[int] = set()
        for number, task in self._tasks.items():
            rows = _rows_in(number, task, trees)
            if not task.spout.journaled:
                roots = {each.root_id for each in list(task.collector.pending.values())}
                borrowed |= roots & by_root.keys()
                borrowed.update(root_id for each in rows for root_id in each.root_ids.tolist())
                continue
            batches += rows
            for pending in list(task.collector.pending.values()):
                tuples = by_root.get(pending.root_id)
                if tuples is not None:
                    first = tuples[0]
                    replay = None if task.replays is None else task.replays.entries.get(pending.tup_id)
                    direct_task, attempt = (None, 1) if replay is None else (replay.direct_task, replay.attempt)
                    entries[pending.root_id] = JournalEntry(
                        number, pending.tup_id, tuple(first.values), first.stream, direct_task, attempt
                    )
        return entries, batches, frozenset(borrowed)

    def report_journaled(self, keys: Iterable[TupleKey]) -> None:
        """Tell the spouts which of their tuples are on disk."""
        by_task: dict[int, list[Any]] = {}
        for number, tup_id in keys:
            by_task.setdefault(number, []).append(tup_id)
        for number, tup_ids in by_task.items():
            self._tasks[number].spout.on_journaled(tup_ids)

    def after_batch(
        self, planned: Iterable[TupleKey], acked: Iterable[TupleKey], failed: Sequence[JournalEntry]
    ) -> list[JournalEntry]:
        """Return what a commit keeps: the tuples that failed, and those that wait for another attempt.

        Parameters
        ----------
        planned, acked : iterable of (int, hashable)
            The tuples of the micro-batch.
        failed : iterable of JournalEntry
            Those that failed, and rows of a DataFrame that did.
        """
        ended = set(acked)
        told = {entry.key for entry in failed}
        self._journaled |= {*planned, *told}
        kept = [*failed, *self._waiting(ended | told)]
        self._journaled = {entry.key for entry in kept}  # the others were acked, or are dead letters
        return kept

    def acked_after_batch(self, acked: Iterable[TupleKey]) -> list[TupleKey]:
        """Return what a commit keeps of the tuples that were acked: those whose spout may not have returned from `ack`.

        That is so until the spout has the outcome, and its executor has ended the step in which it got it.
        """
        open_keys = {(number, tup_id) for number, task in self._tasks.items() for tup_id in task.collector.untold_ids()}
        for number, feed in self.executors.feeds.items():
            open_keys |= {(number, tup_id) for tup_id in feed.acks()}
        kept: dict[TupleKey, int | None] = {}
        for key, steps in self._acked.items():
            executor = self.executors.executor_of(key[0])
            has_ended = executor.step_since_ns is None or (steps is not None and executor.steps > steps)
            if key in open_keys:
                kept[key] = None
            elif executor.crash is not None or not has_ended:
                kept[key] = executor.steps if steps is None else steps
        self._acked = {**kept, **dict.fromkeys(acked, None)}
        return list(self._acked)

    def _waiting(self, known: set[TupleKey]) -> list[JournalEntry]:
        entries: dict[TupleKey, JournalEntry] = {}
        for number, task in self._tasks.items():
            feed = self.executors.feeds.get(number)
            for entry in () if feed is None else feed.failures():
                entries[entry.key] = entry
            wanted = {tup_id for task_number, tup_id in self._journaled - known if task_number == number}
            now, now_ms = time.time(), task.collector.now_ms()
            for tup_id, replay in () if task.replays is None else task.replays.entries_of(wanted):
                where = replay.stream, replay.direct_task
                waiting = JournalEntry(number, tup_id, tuple(replay.values), *where, replay.attempt)
                if replay.due_ms is not None:
                    wait_secs = (replay.due_ms - now_ms) / 1000
                    waiting = dataclasses.replace(waiting, due=now + wait_secs, wait_secs=wait_secs)
                entries.setdefault(waiting.key, waiting)
        return [entry for key, entry in entries.items() if key in self._journaled and key not in known]


def _rows_in(number: int, task: SpoutTask, trees: TakenTrees) -> list[JournalRows]:
    """Return the open rows of a spout task's batches that are among some trees."""
    found = []
    for batch in list(task.collector.open_batches.values()):
        rows = np.flatnonzero(batch.is_open & np.isin(batch.root_ids, trees.root_ids))
        if rows.size:
            replay = batch.replay
            where = (None, None) if replay is None else (replay.stream, replay.direct_task)
            found.append(JournalRows(number, batch.root_ids[rows], take(batch.tup_ids, rows), *where, batch.attempt))
    return found


def _wait_ms(entry: JournalEntry) -> int:
    """Return how long a tuple still waits, wherever the clock was set: no longer than it did when that was written."""
    if entry.due is None:
        return 0
    return round(max(0.0, min(entry.due - time.time(), entry.wait_secs)) * 1000)
