"""Acker executors, which ingest their whole queue as one batch and send the outcomes of trees to the spouts."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from acker._engine.acker import Acker
from acker._engine.completions import Completions
from acker._engine.protocol import Kind, Outcome, Stats
from acker._flow import AckBatch, columns_of
from acker.local.clock import Clock, Signal
from acker.local.executors.base import Executor, Mode
from acker.local.open_batches import OutcomeColumns, TreeOutcome
from acker.local.queues import Queue
from acker.observe.reasons import Reason

OutcomeQueue = Queue[tuple[int, list[TreeOutcome] | OutcomeColumns]]

_NS_PER_MS = 1_000_000
_BATCHES_AT_ONCE = 256

# Storm flushes what executors have gathered once in a millisecond too (topology.flush.tuple.freq.millis).
_LINGER_SECS = 0.001
_LARGE_MESSAGES = 64

logger = logging.getLogger("acker.local")


class AckerExecutor(Executor):
    """The executor of one acker, which alone knows the deadlines of its trees and decides their outcomes.

    Parameters
    ----------
    make_acker : callable
        Makes the native acker, which speaks protocol "storm".
    period_ns : int
        Time between rotations.
    generations : int
        Number of buckets of the acker; the reason of a failure is kept as long as the tree's entry.

    Attributes
    ----------
    spouts : mapping
        Task id -> (queue of the spout's executor, index of the task in it). Set by the runtime at each start.
    batch_tasks : set of int
        The spout tasks that get outcomes as columns. Set by the runtime at each start.
    on_restore : callable, optional
        Called when this acker may have lost trees.
    open_roots : callable, optional
        Returns the root ids of the trees that are open at the spouts. Set if nothing may time out.
    """

    def __init__(
        self,
        name: str,
        make_acker: Callable[[], Acker],
        *,
        clock: Clock,
        lifecycle_signal: Signal,
        capacity: int,
        period_ns: int,
        generations: int,
    ) -> None:
        super().__init__(name, clock, lifecycle_signal)
        self.acker = make_acker()
        self.inbox: Queue[AckBatch] = Queue(capacity, self.signal)
        self.spouts: Mapping[int, tuple[OutcomeQueue, int]] = {}
        self.batch_tasks: set[int] = set()
        self.messages = 0
        self.on_restore: Callable[[AckerExecutor], None] | None = None
        self.open_roots: Callable[[AckerExecutor], list[int]] | None = None
        self._make_acker = make_acker
        self._period_ns = period_ns
        self._rotate_at = clock.now_ns() + period_ns
        # Reasons of trees that failed and are still in the acker, since FAIL may come before TRACK; youngest first.
        self._reasons: list[dict[int, Reason]] = [{} for _ in range(generations)]

    def deadline_ns(self) -> int | None:
        """Return when the next rotation is due."""
        return self._rotate_at if self.mode in (Mode.RUN, Mode.PAUSE) else None

    def work(self) -> None:
        """Step until closed; after a large batch pause for the other threads, so that the next one is large too."""
        while self.done is not Mode.CLOSE:
            self.signal.clear()
            before = self.messages
            if not self.step():
                self.rest()
            elif self.messages - before >= _LARGE_MESSAGES:
                time.sleep(_LINGER_SECS)

    def _step(self, mode: Mode, limit: int) -> bool:  # noqa: ARG002  The whole queue is one batch.
        if mode is Mode.CLOSE:
            return self.done is not mode and self.finish(mode)
        worked = self._ingest()
        due = self.deadline_ns()
        if due is not None and self.clock.now_ns() >= due:
            self._rotate()
            worked = True
        return worked

    def _ingest(self) -> bool:
        batches: list[AckBatch] = []
        while len(batches) < _BATCHES_AT_ONCE:
            batch = self.inbox.take()
            if batch is None:
                break
            batches.append(batch)
            for root_id, reason in batch.fails():
                self._reasons[0].setdefault(root_id, reason)
        if not batches:
            return False
        items = sum(map(len, batches))
        try:
            self._report(self.acker.ingest(*columns_of(batches), now_ms=self.clock.now_ns() // _NS_PER_MS))
        finally:
            self.messages += items
            self.inbox.done(items)
        return True

    def _rotate(self) -> None:
        now = self.clock.now_ns()
        if self.open_roots is not None:
            # Nothing times out: open trees leave death row before it is emptied. Late messages of ended trees stay.
            roots = np.array(self.open_roots(self), np.int64)
            self._report(self.acker.ingest(Kind.RESET_TIMEOUT, roots, np.zeros_like(roots)))
        # A whole period after this rotation, however late it is: an entry that arrived just before gets its whole
        # timeout.
        self._rotate_at = now + self._period_ns
        self._report(self.acker.rotate(now_ms=now // _NS_PER_MS))
        self._reasons = [{}, *self._reasons[:-1]]

    def _report(self, done: Completions) -> None:
        if not len(done):
            return
        by_task: dict[int, list[TreeOutcome] | OutcomeColumns] = {}
        if self.batch_tasks:
            self._send(self._columns_by_task(done))
            return
        message_ids, codes = done.message_id.tolist(), done.outcome.tolist()
        reasons = self._reasons_of(done)
        first = int(done.task_id[0])
        if (done.task_id == first).all():
            by_task[first] = list(zip(message_ids, codes, reasons))  # noqa: B905  Reasons may be without end.
        else:
            lists: dict[int, list[TreeOutcome]] = {}
            for task_id, outcome in zip(done.task_id.tolist(), zip(message_ids, codes, reasons)):  # noqa: B905
                lists.setdefault(task_id, []).append(outcome)
            by_task.update(lists)
        self._send(by_task)

    def _columns_by_task(self, done: Completions) -> dict[int, list[TreeOutcome] | OutcomeColumns]:
        """Return the outcomes for each spout task: as columns for those that emit batches."""
        found: dict[int, list[TreeOutcome] | OutcomeColumns] = {}
        reasons = list(self._reasons_of(done)) if any(self._reasons) else None
        first = int(done.task_id[0])
        if (done.task_id == first).all():
            columns = OutcomeColumns(done.message_id, done.outcome, reasons)
            return {first: columns if first in self.batch_tasks else list(columns)}
        for task_id in np.unique(done.task_id).tolist():
            rows = np.flatnonzero(done.task_id == task_id)
            mine = None if reasons is None else [reasons[row] for row in rows.tolist()]
            columns = OutcomeColumns(done.message_id[rows], done.outcome[rows], mine)
            found[task_id] = columns if task_id in self.batch_tasks else list(columns)
        return found

    def _send(self, by_task: Mapping[int, list[TreeOutcome] | OutcomeColumns]) -> None:
        for task_id, outcomes in by_task.items():
            spout = self.spouts.get(task_id)
            if spout is None:
                logger.error("%s: %d outcomes for task %d, which is not a spout's", self.name, len(outcomes), task_id)
                continue
            queue, index = spout
            queue.put((index, outcomes), len(outcomes))

    def _reasons_of(self, done: Completions) -> Iterable[Reason | None]:
        """Return why trees failed, and drop the reasons."""
        if not any(self._reasons):
            return itertools.repeat(None)
        return [
            reason if outcome == Outcome.FAILED else None
            for reason, outcome in zip(map(self._reason_of, done.root_id.tolist()), done.outcome.tolist(), strict=True)
        ]

    def _reason_of(self, root_id: int) -> Reason | None:
        found = None
        for generation in self._reasons:
            found = generation.pop(root_id, None) or found
        return found

    def restore(self, blob: bytes) -> None:
        """Continue from an older snapshot of this acker, after the state in memory was lost.

        Spouts send the TRACKs of all open trees again, so that none is lost: a tree that the snapshot does not know, or
        that finished after it, times out and is replayed. Call it from the acker's thread, or from the scheduler.
        """
        self.acker = Acker.restore(blob)
        if self.on_restore is not None:
            self.on_restore(self)

    def revive(self) -> None:
        """Continue with an empty acker after a crash; spouts have to track their open trees again."""
        self.acker = self._make_acker()
        self.crash = None

    def stats(self) -> Stats:
        """Return the acker's counts."""
        return self.acker.stats()
