"""Outcomes for spouts on the driver that no acker there knows: those of rows, and of tuples of an earlier run."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from acker.errors import CheckpointError
from acker.local.executors.spout import SpoutExecutor, SpoutTask
from acker.observe.reasons import Reason
from acker.spark.topologies.journal import JournalEntry
from acker.topology.spout import has_frame
from acker.topology.tuples import row_of


class OutcomeFeed:
    """Brings outcomes to a spout on the spout's own thread, and leaves out what it emits twice.

    These are the outcomes of a DataFrame's rows, and of tuples that an earlier run has journaled. Such a tuple has not
    ended for its source, which may give it once more: the spout's emission of the same id then counts as that tuple.
    If it was acked, the spout hears so again.

    Parameters
    ----------
    executor : SpoutExecutor
    task : SpoutTask

    Attributes
    ----------
    are_of_rows : bool
        Whether Spark reads the spout's tuples as a DataFrame.
    """

    def __init__(self, executor: SpoutExecutor, task: SpoutTask) -> None:
        self.are_of_rows = has_frame(type(task.spout))
        self._executor = executor
        self._task = task
        self._outcomes: deque[tuple[JournalEntry, Reason | None, bool, int]] = deque()
        # Of an earlier run: tuple id -> values, None if unknown; and the ids whose outcome the spout will hear.
        self._journaled: dict[Hashable, tuple[Any, ...] | None] = {}
        self._awaited: set[Hashable] = set()
        self._acked: set[Hashable] = set()
        task.other_outcomes = self

    # ---- outcomes ----------------------------------------------------------------------------------------------------

    def failures(self) -> list[JournalEntry]:
        """Return the failures that the spout was not told yet."""
        return [replace(entry, reason=reason) for entry, reason, *_ in list(self._outcomes) if reason is not None]

    def acks(self) -> set[Hashable]:
        """Return the ids whose ack the spout was not told yet."""
        return {entry.tup_id for entry, reason, *_ in list(self._outcomes) if reason is None}

    def put(self, entry: JournalEntry, reason: Reason | None, *, counts: bool = True, elapsed_ms: int = 0) -> None:
        """Add the outcome of an attempt; without a reason it was acked. It may have been counted in an earlier run."""
        self._outcomes.append((entry, reason, counts, elapsed_ms))
        self._executor.signal.set()

    def deliver(self, *, log_errors: bool) -> None:
        """Deliver the outcomes that have come to the spout; its executor calls this."""
        while self._outcomes:
            try:
                self._deliver_one(*self._outcomes[0])
            except BaseException:
                if not log_errors:
                    raise
                return  # It was logged before, and the checkpoint keeps what was not told.
            self._outcomes.popleft()

    def is_quiet(self) -> bool:
        """Return whether the spout has all outcomes."""
        return not self._outcomes

    def end_rows(self) -> None:
        """Let the spout finish on its own thread if its tuples are rows: no further one will come."""
        if self.are_of_rows:
            self._executor.request(self._finish)

    def _finish(self) -> None:
        if not self._task.spout._finished:
            self._task.spout.finish()

    def _deliver_one(self, entry: JournalEntry, reason: Reason | None, counts: bool, elapsed_ms: int) -> None:
        task, tup_id = self._task, entry.tup_id
        if task.replays is not None:
            task.replays.resume(tup_id, entry.values, entry.stream, entry.direct_task, entry.attempt)
        if reason is None:
            try:
                task.ack(tup_id)
            except BaseException:
                task.collector.ack_errors += 1
                raise
            task.collector.acked += counts
            self._acked.add(tup_id)
        else:
            # As for what the driver emits: the live page, hooks and the next attempt know of it.
            task.collector.resume_attempts(tup_id, entry.attempt)
            task.fail(tup_id, task.collector.note_failure(tup_id, reason, elapsed_ms, counts=counts))
        self._awaited.discard(tup_id)

    # ---- emissions ---------------------------------------------------------------------------------------------------

    def expect(self, tup_id: Hashable, values: tuple[Any, ...] | None, *, is_awaited: bool) -> None:
        """Leave out the spout's emission of a tuple that the journal has.

        Parameters
        ----------
        tup_id : hashable
        values : tuple or None
            None: unknown.
        is_awaited : bool
            Whether the spout will hear an outcome. Else it has the tuple among its replays.
        """
        self._journaled[tup_id] = values
        self._task.collector.is_known, self._task.collector.known_ids = self._has, self._journaled.keys()
        if is_awaited:
            self._awaited.add(tup_id)

    def _has(self, tup: Any, tup_id: Any) -> bool:
        """Return whether the journal has a tuple that has not ended for the spout."""
        try:
            if tup_id not in self._journaled:
                return False
        except TypeError:  # It has no hash: `emit` says so.
            return False
        values = self._journaled[tup_id]
        is_acked = tup_id in self._acked
        replays = self._task.replays
        is_open = tup_id in self._awaited or (replays is not None and replays.holds(tup_id))
        if not is_open and (not is_acked or values is None):
            del self._journaled[tup_id]  # It has failed for good, or nobody knows whether it is the same.
            return False
        row = row_of(tup)
        if values is not None and row is not None and not _are_same(values, row):
            raise CheckpointError(
                f"component {self._task.collector.component!r}: it emits {row!r} with the tuple id {tup_id!r}, by which"
                f" the checkpoint has {values!r} of an earlier run; with checkpoint=, an id stands for one tuple in all"
                " runs: take what the source says, or begin it with something that no other run has"
            )
        if is_acked and not is_open:
            self.put(JournalEntry(self._task.collector.task, tup_id, values or ()), None, counts=False)
        return True


def _are_same(values: tuple[Any, ...], row: tuple[Any, ...]) -> bool:
    return len(values) == len(row) and all(map(_is_same, values, row))


def _is_same(one: Any, other: Any) -> bool:
    try:
        if one is other or one == other:
            return True
    except ValueError:  # Arrays have no single answer.
        pass
    return pickle.dumps(one) == pickle.dumps(other)
