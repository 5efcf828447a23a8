"""Spout executors, which deliver outcomes first, then emit as many tuples as may be open."""

from __future__ import annotations

import inspect
import logging
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol

from acker.local.collectors import LocalSpoutCollector
from acker.local.executors.acker import OutcomeQueue
from acker.local.executors.base import ComponentExecutor, Mode
from acker.local.executors.task import ComponentTask
from acker.local.open_batches import BatchOutcome, OutcomeColumns, TreeOutcome
from acker.local.queues import Queue
from acker.observe.reasons import Reason
from acker.topology.anchors import Int64s
from acker.topology.replays import ReplayTable
from acker.topology.spout import ReliableSpout, Spout

_NS_PER_MS = 1_000_000

# A spout's keep_alive is promised within a second, and a thread may be late.
_ALIVE_NS = 500_000_000

logger = logging.getLogger("acker.local")


class TreeWatcher(Protocol):
    """Follows the trees of spouts; see `acker.local.event_times`."""

    def end_trees(self, task: SpoutTask, outcomes: Iterable[TreeOutcome]) -> None:
        """Take note of trees that have ended, before their spout hears of it."""

    def wake(self) -> None:
        """Wake whoever waits for the end of trees, now that the spout has heard of it."""


class OtherOutcomes(Protocol):
    """Outcomes for a spout that come from no acker of this process; see `acker.spark.topologies.outcome_feed`.

    Attributes
    ----------
    are_of_rows : bool
        Whether somebody else reads the spout's tuples, as rows.
    """

    are_of_rows: bool

    def deliver(self, *, log_errors: bool) -> None:
        """Deliver those that have come to the spout; log what it raises, if asked to."""

    def is_quiet(self) -> bool:
        """Return whether all were delivered."""


class SpoutTask(ComponentTask):
    """One task of a spout: the component, its collector, and the limit of open tuples.

    Parameters
    ----------
    spout : Spout
    bind : callable
        Takes the component, connects it to the collector and initializes it.
    pending_max : int or None
        Limit of open tracked tuples.

    Attributes
    ----------
    other_outcomes : OtherOutcomes or None
    """

    collector: LocalSpoutCollector

    def __init__(
        self, spout: Spout, bind: Callable[[Spout], None], collector: LocalSpoutCollector, pending_max: int | None
    ) -> None:
        super().__init__(spout, bind)
        self.spout = spout
        self.collector = collector
        self.other_outcomes: OtherOutcomes | None = None
        self._pending_max = sys.maxsize if pending_max is None else pending_max
        self._reliable = spout if isinstance(spout, ReliableSpout) else None
        self._fail_takes_reason = takes_reason(self.spout.fail)
        kind = type(self.spout)
        # Whether it hears of rows in batches alone, also of those that travel as tuples.
        self._acks_in_batches = kind.ack_batch is not Spout.ack_batch and kind.ack in (Spout.ack, ReliableSpout.ack)
        self._fails_in_batches = kind.fail_batch is not Spout.fail_batch and kind.fail in (
            Spout.fail,
            ReliableSpout.fail,
        )

    @property
    def replays(self) -> ReplayTable | None:
        """The tuples that a ReliableSpout has open, or emits again; None for another spout."""
        return None if self._reliable is None else self._reliable._replays

    def attempt_of(self, tup_id: Hashable) -> int:
        """Return the number of the open attempt of a tuple, from 1."""
        replays = self.replays
        return self.collector.attempt_of(tup_id) if replays is None else replays.attempt_of(tup_id)

    @property
    def finished(self) -> bool:
        """Whether the spout has no more tuples, and every outcome was delivered."""
        return self.spout.finished and self.is_quiet()

    def is_quiet(self) -> bool:
        """Return whether nothing is open and every outcome was delivered."""
        if self.other_outcomes is not None and not self.other_outcomes.is_quiet():
            return False
        who = self.collector
        return not (who.undelivered or who.pending_count or who.untracked_ids or who.batch_outcomes)

    def may_emit(self) -> bool:
        """Return whether the spout has more tuples, and fewer open than it may have."""
        return not self._is_full() and (not self.spout._finished or self.next_replay_ns() is not None)

    def _is_full(self) -> bool:
        return self.collector.pending_count >= self._pending_max

    @property
    def pending_max(self) -> int:
        """The limit of open tracked tuples; 0: there is none."""
        return 0 if self._pending_max == sys.maxsize else self._pending_max

    def next_replay_ns(self) -> int | None:
        """Return when the next replay is due; None if none is."""
        if self._reliable is None:
            return None
        due_ms = self._reliable._next_due_ms
        return None if due_ms is None else due_ms * _NS_PER_MS

    def emit_up_to(self, limit: int) -> int:
        """Emit replays that are due, then call `next_tuple`, each at most `limit` times; return how many emitted."""
        collector = self.collector
        got = 0
        if self._reliable is not None:
            # One at a time, since each may reach the limit of what may be open.
            while got < limit and not self._is_full() and self._reliable._replay_due(collector.now_ms(), limit=1):
                got += 1
        return got if self.has_rows else got + self._call_next_tuple(limit)

    @property
    def has_rows(self) -> bool:
        """Whether somebody else reads the spout's tuples, as rows, so that `next_tuple` is not called."""
        return self.other_outcomes is not None and self.other_outcomes.are_of_rows

    def _call_next_tuple(self, limit: int) -> int:
        return self.collector.call_next_tuple(self.spout, self._ack_method(), limit, self._pending_max)

    @property
    def has_keep_alive(self) -> bool:
        """Whether the component overrides `keep_alive`."""
        return getattr(self.spout.keep_alive, "__func__", None) is not Spout.keep_alive

    def keep_alive(self) -> None:
        """Call the component's `keep_alive`."""
        self.call("keep_alive")

    def arrived_outcomes(self) -> list[TreeOutcome]:
        """Return the outcomes that arrived and that the spout did not get yet. Any thread may call it."""
        return self.collector.arrived_outcomes()

    def deliver_outcomes(self, outcomes: list[TreeOutcome] | OutcomeColumns, *, log_errors: bool) -> None:
        """Deliver the outcomes of trees to the component.

        An exception of `ack` or `fail` escapes, and the next call continues behind it; with `log_errors` it is logged.
        """
        if self.other_outcomes is not None:
            self.other_outcomes.deliver(log_errors=log_errors)
        ack, on_error = self._ack_method(), self._log_error if log_errors else None
        if isinstance(outcomes, OutcomeColumns):
            outcomes = self.collector.arrive(outcomes)
        self._deliver_batches(on_error)
        self.collector.deliver_outcomes(outcomes, ack, self.fail, on_error)
        self.collector.ack_untracked(ack, on_error)  # Emitted by another thread, with no acker to track it.

    def _deliver_batches(self, on_error: Callable[[Hashable], None] | None) -> None:
        """Deliver the outcomes of rows of batches; those behind an exception are delivered by the next call."""
        collector = self.collector
        waiting = collector.batch_outcomes
        while waiting:
            outcome = waiting.popleft()
            rows, reasons = collector.settle_rows(outcome)
            tup_ids = outcome.batch.ids_of(rows)
            by_row = self._hears_by_row(reasons)
            at_once, told = 1 if by_row else max(1, rows.size), 0
            try:
                while told < rows.size:
                    if by_row:
                        self._tell_row(tup_ids[told].as_py(), None if reasons is None else reasons[told])
                    else:
                        self._tell_batch(tup_ids, reasons)
                    told += at_once
            except BaseException:
                collector.ack_errors += at_once if reasons is None else 0
                rest = slice(told + at_once, None)
                if rows[rest].size:
                    waiting.appendleft(outcome.rest(rows[rest], None if reasons is None else reasons[rest]))
                if on_error is None:
                    raise
                on_error(tup_ids[told].as_py())
            finally:
                self._end_rows(outcome, rows[:told], None if reasons is None else reasons[:told])

    def _end_rows(self, outcome: BatchOutcome, rows: Int64s, reasons: list[Reason] | None) -> None:
        if outcome.batch.replay is not None and rows.size:
            self.spout._end_rows(outcome.batch.replay, rows, reasons)
        if reasons is None:
            self.collector.acked += rows.size

    def _hears_by_row(self, reasons: list[Reason] | None) -> bool:
        """Return whether the spout hears of each row: it overrides the method for rows, and not that for batches."""
        kind = type(self.spout)
        if reasons is None:
            return kind.ack_batch is Spout.ack_batch and kind.ack not in (Spout.ack, ReliableSpout.ack)
        return kind.fail_batch is Spout.fail_batch and kind.fail not in (Spout.fail, ReliableSpout.fail)

    def _tell_batch(self, tup_ids: Any, reasons: list[Reason] | None) -> None:
        if reasons is None:
            self.call("ack_batch", tup_ids)
        else:
            self.call("fail_batch", tup_ids, reasons)

    def _tell_row(self, tup_id: Hashable, reason: Reason | None) -> None:
        self.spout._in_batch = True
        try:
            if reason is None:
                self.call("ack", tup_id)
            else:
                self.fail(tup_id, reason)
        finally:
            self.spout._in_batch = False

    def _log_error(self, tup_id: Hashable) -> None:
        who = self.collector
        logger.exception("%s: task %d raised for %r while it stops", who.component, who.task, tup_id)

    def _ack_method(self) -> Callable[[Any], Any]:
        """Return what is called with the id of an acked tuple."""
        return self.ack if self._acks_in_batches else self.spout.ack

    def ack(self, tup_id: Hashable) -> None:
        """Tell the component that a tuple was acked."""
        self.call("ack", tup_id)
        if self._acks_in_batches:
            self.call("ack_batch", _column_of(tup_id))

    def fail(self, tup_id: Hashable, reason: Reason) -> None:
        """Tell the component that a tuple has failed."""
        if self._fail_takes_reason:
            self.call("fail", tup_id, reason)
        else:
            self.call("fail", tup_id)
        if self._fails_in_batches:
            self.call("fail_batch", _column_of(tup_id), [reason])

    def inherit(self, previous: SpoutTask) -> None:
        """Take over counts, and what a reliable spout has to replay, from the task that ran before a restart."""
        self.collector.inherit(previous.collector)
        mine, theirs = self._reliable, previous._reliable
        if mine is not None and theirs is not None:
            # Swapped, so that a predecessor that is still inside user code does not write into this one's.
            mine._replays, theirs._replays = theirs._replays, mine._replays
            # Trees whose `ack` or `fail` raised have ended, but the source does not know: they are replayed.
            open_ids = {open_.tup_id for open_ in self.collector.pending.values()}
            mine._replays.schedule_lost(open_ids, self.collector.now_ms())
            open_rows = {
                batch.replay.number: batch.open_rows()
                for batch in self.collector.open_batches.values()
                if batch.replay is not None
            }
            mine._replays.schedule_lost_rows(open_rows, self.collector.now_ms())


def takes_reason(fail: Callable[..., Any]) -> bool:
    """Return whether a spout's `fail` takes the reason too, and not only the tuple id as in streamparse."""
    parameters = inspect.signature(fail).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = sum(parameter.kind in kinds for parameter in parameters)
    return positional >= 2 or any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)


class SpoutExecutor(ComponentExecutor):
    """The executor of some tasks of one spout.

    Parameters
    ----------
    poll_ns : int
        How long to wait before a spout that emitted nothing is asked again.

    Attributes
    ----------
    tree_watcher : TreeWatcher or None
        Hears of the end of trees, if a bolt of the topology has event time.
    idle_until : int or None
        When a spout that emitted nothing is asked again, by the clock.
    """

    def __init__(self, *args: Any, poll_ns: int, capacity: int, **options: Any) -> None:
        super().__init__(*args, capacity=capacity, **options)
        self.tasks: list[SpoutTask] = []
        # Not bounded by its capacity: the ackers never wait, and there are no more outcomes than open trees.
        self.inbox: OutcomeQueue = Queue(capacity, self.signal)
        self.track_again = False
        self.tree_watcher: TreeWatcher | None = None
        self._requests: deque[Callable[[], object]] = deque()
        self.outbox.keep_alive = self._keep_alive
        self._poll_ns = poll_ns
        self.idle_until: int | None = None

    def request(self, call: Callable[[], object]) -> None:
        """Have a function called between two calls of the spouts. Any thread may call it."""
        self._requests.append(call)
        self.signal.set()

    def deadline_ns(self) -> int | None:
        """Return when a replay or a `keep_alive` is due."""
        return min((due for due in (self._alive_ns(), self._replay_ns()) if due is not None), default=None)

    def _alive_ns(self) -> int | None:
        return None if self.crash is not None else self.outbox.keep_alive_at or None

    def _replay_ns(self) -> int | None:
        if self.mode is not Mode.RUN:
            return None
        dues = [due for task in self.tasks if (due := task.next_replay_ns()) is not None and task.may_emit()]
        return min(dues, default=None)

    def rest(self) -> None:
        """Wait for outcomes or room; a spout that had no tuple is asked again after `poll_ns`."""
        due = self._alive_ns()
        if not self.blocked:
            dues = (self.deadline_ns(), self.idle_until)
            due = min((each for each in dues if each is not None), default=None)
        self.clock.wait(self.signal, due)

    def _keep_alive(self) -> None:
        """Call every task's `keep_alive`, in any mode; an exception crashes the executor unless it is halted."""
        if self.abandoned:  # Its successor holds the connections by now.
            self.outbox.keep_alive_at = 0
            return
        self.outbox.keep_alive_at = self.clock.now_ns() + _ALIVE_NS
        for task in self.tasks:
            try:
                task.keep_alive()
            except BaseException:
                if self.seen not in (Mode.HALT, Mode.SETTLE):
                    raise
                who = task.collector
                logger.exception("%s: task %d raised in keep_alive while it stops", who.component, who.task)

    def finish(self, mode: Mode) -> bool:
        """Report that OPEN or CLOSE is done."""
        wanted = mode is Mode.OPEN and any(task.has_keep_alive for task in self.tasks)
        self.outbox.keep_alive_at = self.clock.now_ns() + _ALIVE_NS if wanted else 0
        return super().finish(mode)

    def is_quiet(self) -> bool:
        """Return whether the buffers and the queue of outcomes are empty."""
        return super().is_quiet() and self.inbox.size == 0 and not self.outbox.dirty

    def is_waiting(self) -> bool:
        """Return whether a tree is open, or an outcome was not delivered."""
        return not all(task.is_quiet() for task in self.tasks)

    def is_settled(self) -> bool:
        """Return whether the outcome of every tree that the lifecycle failed was delivered."""
        return self.inbox.size == 0 and all(task.collector.is_settled() for task in self.tasks)

    def drop(self) -> None:
        """Drop the buffers."""
        self.discard()

    def _work(self, mode: Mode, limit: int) -> bool:
        self.idle_until = None
        try:
            worked = self._deliver_outcomes(log_errors=mode is Mode.SETTLE)
        finally:
            self.flush()  # Spouts written for pystorm emit again in `fail`.
        if self.track_again:
            self.track_again = False
            for task in self.tasks:
                task.collector.track_again()
                if mode is Mode.SETTLE:
                    task.collector.fail_again()
            self.ack_sender.send()
        while self._requests:
            self._requests.popleft()()
        if mode is Mode.SETTLE:
            return worked
        for task in self.tasks:
            task.activate(mode is Mode.RUN)
        if mode is Mode.RUN and self._emit(limit):
            worked = True
        return worked

    def _deliver_outcomes(self, *, log_errors: bool) -> bool:
        delivered = False
        for task in self.tasks:
            task.deliver_outcomes([], log_errors=log_errors)
        while (chunk := self.inbox.take()) is not None:
            index, outcomes = chunk
            if self.tree_watcher is not None:
                self.tree_watcher.end_trees(self.tasks[index], outcomes)
            try:
                self.tasks[index].deliver_outcomes(outcomes, log_errors=log_errors)
            finally:
                self.inbox.done(len(outcomes))
            delivered = True
        if delivered and self.tree_watcher is not None:
            self.tree_watcher.wake()
        return delivered

    def _emit(self, limit: int) -> bool:
        if not self.has_room():
            return False
        got = 0
        try:
            for task in self.tasks:
                got += task.emit_up_to(limit)
        finally:
            self.flush()
        if not got and any(task.may_emit() and not task.spout._finished and not task.has_rows for task in self.tasks):
            self.idle_until = self.clock.now_ns() + self._poll_ns
        return got > 0


def _column_of(tup_id: Hashable) -> Any:
    import pyarrow as pa

    return pa.array([tup_id])
