"""Spouts, the sources of tuples, and ReliableSpout, which replays failed ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from acker._flow import emit_of_spout
from acker.errors import TopologyError
from acker.observe.backoff import backoff
from acker.observe.reasons import Reason, ReasonKind, reason_text
from acker.topology.component import Component
from acker.topology.replays import ReplayBatch, ReplayEntry, ReplayTable
from acker.topology.specs import ComponentSpec
from acker.topology.tuples import row_of

__all__ = ["ReliableSpout", "Spout"]

# An attribute of what a hook raised: the tuple was emitted before that, so its outcome will come.
AFTER_EMISSION: Final = "_acker_after_emission"

# Reasons that do not count as a failed attempt: a restart or a stop is not the tuple's fault.
_NOT_COUNTED: Final = frozenset({ReasonKind.RESTART, ReasonKind.SHUTDOWN})


class Spout(Component):
    """A source of tuples. Override `next_tuple`; for tracked tuples also `ack` and `fail`.

    The methods of one task run on one thread, one at a time.

    Attributes
    ----------
    tup_id_column : str or None
        The column of `frame` with the tuples' ids; None: they are not tracked.
    journaled : bool
        Whether `acker.spark` runs its open tuples again from the journal after a crash. False: the spout's source
        delivers them again, so the journal does not.
    """

    tup_id_column: ClassVar[str | None] = None
    journaled: ClassVar[bool] = True
    # Whether a runtime without a journal on disk would lose its tuples.
    _needs_journal: ClassVar[bool] = False

    _finished: bool = False
    # Whether `ack` and `fail` are called for the rows of a batch, of which `_end_rows` takes care.
    _in_batch: bool = False
    # Called with the id, what the values are read from, and the reason of each tuple that is given up. A runtime sets
    # it, if somebody wants to know.
    _on_dead_letter: Callable[[Hashable, Any, Reason], None] | None = None

    @classmethod
    def spec(
        cls,
        name: str | None = None,
        par: int | Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        executors: int | None = None,
    ) -> ComponentSpec:
        """Return this spout's place in a topology.

        Parameters
        ----------
        name : str, optional
            The name of the component; by default that of the Topology's attribute that it is assigned to.
        par : int >= 1, or dict of str to int, optional
            Number of tasks; by default the class attribute `par`, 1. A dict gives it for each environment, as in
            streamparse; see `Topology.graph`.
        config : dict, optional
            Options of this component.
        executors : int, optional
            Number of threads that its tasks share, at most `par`; by default one for each task.
        """
        return ComponentSpec(cls, name=name, par=par, executors=executors, config=config)

    def next_tuple(self) -> Any:
        """Emit what is available now, and return without waiting. May be ``async def``."""
        raise NotImplementedError(f"{type(self).__name__} has no next_tuple()")

    def frame(self, spark: Any, conf: Mapping[str, Any]) -> Any:
        """Return the tuples as a DataFrame, which Spark reads in parallel; `acker.spark` then calls no `next_tuple`.

        A spout defines this or `next_tuple`, or both for both runtimes.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
        conf : mapping
            The options of the component. "topology.spark.streaming" tells whether a stream is wanted.

        Returns
        -------
        pyspark.sql.DataFrame
            It has the fields of the default stream and `tup_id_column`, by their names. The rows are the same each time
            they are read, and each tuple id is unique: a number that fits int64, or a value that has a stable hash.
        """
        raise NotImplementedError(f"{type(self).__name__} has no frame()")

    def ack(self, tup_id: Any) -> Any:
        """Handle the ack of a tuple: its tree is complete. May be ``async def``, also beside a plain next_tuple."""

    def fail(self, tup_id: Any, reason: Reason | None = None) -> Any:
        """Handle a tuple whose tree failed. May be ``async def``.

        A method that only takes `tup_id` is called without the reason, as in streamparse.

        Parameters
        ----------
        tup_id : hashable
        reason : Reason, optional
        """

    def emit_batch(
        self, columns: Any, tup_ids: Any = None, stream: str | None = None, direct_task: int | None = None
    ) -> None:
        """Emit rows; needs pyarrow. Bolts of any kind may read them.

        Parameters
        ----------
        columns : RecordBatch, Table, or dict of field to array-like
            The fields of the stream. If `outputs` gives no types, those of the first batch count.
        tup_ids : array-like, optional
            An id for each row, whose tree is tracked; the outcomes come by `ack_batch` and `fail_batch`. Null, or None:
            untracked.
        stream : str, optional
            "default" when left out.
        direct_task : int, optional
            The task that receives the rows; for direct streams only.

        Raises
        ------
        TopologyError
            A column is missing or has another type, or the numbers of rows differ. The text names component, stream
            and field.
        """
        self._collector.emit_batch(self, columns, tup_ids, stream, direct_task)

    def ack_batch(self, tup_ids: Any) -> Any:
        """Handle the ack of rows of a batch. Unless overridden, `ack` is called for each.

        Parameters
        ----------
        tup_ids : pyarrow.Array
        """

    def fail_batch(self, tup_ids: Any, reasons: Sequence[Reason]) -> Any:
        """Handle rows of a batch whose trees failed. Unless overridden, `fail` is called for each.

        Parameters
        ----------
        tup_ids : pyarrow.Array
        reasons : sequence of Reason
        """

    def _record_batch(self, columns: Any, tup_ids: Any, stream: str | None, direct_task: int | None) -> Any:
        """Remember a batch, and return what `_end_rows` gets; None if the spout replays nothing."""

    def _end_rows(self, batch: Any, rows: Any, reasons: Sequence[Reason] | None) -> None:
        """Forget rows that were acked; those with reasons have failed."""

    def on_journaled(self, tup_ids: Sequence[Hashable]) -> None:
        """Handle that the journal of `acker.spark` has these tuples on disk: a crash does not lose them any more.

        Unlike the other methods it is called by another thread. A tuple that is emitted again is reported again.

        Parameters
        ----------
        tup_ids : sequence of hashable
            Tracked tuples of this task.
        """

    def keep_alive(self) -> Any:
        """Keep alive what the spout holds open: send a heartbeat, renew a lease. Called at least every second.

        The runtime calls it by its clock, in every state from `initialize` to `close`: while too many trees are open
        for `next_tuple`, while consumers are slow, while the topology is paused, drains or waits for other components.
        The call comes between two calls of the spout's other methods, on the same thread; a method that blocks delays
        it. It may be ``async def``, and then runs while other coroutines of the spout wait. An exception has the same
        effect as one of `next_tuple`. Do not emit here.
        """

    def activate(self) -> None:
        """Prepare for calls of `next_tuple`, which begin or resume."""

    def deactivate(self) -> None:
        """Prepare for a pause: `next_tuple` will not be called until `activate`, if at all."""

    def finish(self) -> None:
        """Declare that no further tuple will come, so that ``until="drained"`` can end. Acks and fails still arrive."""
        self._finished = True

    @property
    def finished(self) -> bool:
        """Whether no further tuple will come."""
        return self._finished

    @property
    def _no_replay(self) -> str | None:
        """Why dead letters that are not tuples cannot be replayed from here, and where they lie; for the live page."""
        return None

    @property
    def _away(self) -> tuple[str, float, str] | None:
        """The source that cannot be reached: its name, since when by the monotonic clock, the last error; else None."""
        return None

    # Native, as `Bolt.emit` is.
    emit = emit_of_spout


def has_frame(component: type[Any]) -> bool:
    """Return whether a spout gives its tuples as a DataFrame."""
    return issubclass(component, Spout) and component.frame is not Spout.frame


class ReliableSpout(Spout):
    """A spout that emits failed tuples again, and hands a tuple that failed too often to `dead_letter`.

    A tuple that failed waits for `backoff_secs`, the next time twice as long, up to `backoff_secs_max`. Each emission
    is an attempt; when attempt number `attempts_max` fails, the tuple is a dead letter. Failures by RESTART and
    SHUTDOWN are replayed too, and do not count.

    A tuple emitted without tup_id is untracked. A subclass that overrides `ack` or `fail` has to call the method of
    this class.

    Attributes
    ----------
    attempts_max : int or None
        Number of attempts of a tuple; None: any number.
    backoff_secs : float
        Seconds between the first failure and its replay.
    backoff_secs_max : float
        The longest such wait.
    """

    attempts_max: int | None = 4
    backoff_secs: float = 1.0
    backoff_secs_max: float = 60.0

    _SET_BY_INIT: ClassVar[tuple[str, ...]] = ("_replays",)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if hasattr(cls, "max_fails"):
            raise TopologyError(
                f"{cls.__qualname__}: max_fails, as of pystorm, has no effect here; set attempts_max, which counts the"
                " first attempt too and so is one more"
            )

    def __init__(self) -> None:
        super().__init__()
        # A runtime may replace it, as after a restart.
        self._replays = ReplayTable()

    @property
    def finished(self) -> bool:
        """Whether no further tuple will come, nor a replay."""
        return self._finished and not self._replays

    @property
    def unacked_tuples(self) -> dict[Hashable, tuple[Sequence[Any], str | None, int | None, bool]]:
        """The tuples that are open or wait, as in pystorm: tup_id -> (values, stream, direct_task, False). A copy."""
        entries = self._all_entries()
        return {tup_id: (entry.values, entry.stream, entry.direct_task, False) for tup_id, entry in entries}

    @property
    def failed_tuples(self) -> dict[Hashable, int]:
        """How often each of these failed, if it did, as in pystorm. A copy."""
        fails = {tup_id: entry.fail_count for tup_id, entry in self._all_entries()}
        return {tup_id: count for tup_id, count in fails.items() if count}

    def _all_entries(self) -> list[tuple[Hashable, ReplayEntry]]:
        entries = list(self._replays.entries.copy().items())  # Another thread may emit meanwhile.
        return entries + [row for batch in list(self._replays.batches.values()) for row in batch.kept()]

    def emit(
        self,
        tup: Sequence[Any],
        tup_id: Any = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit a tuple; with a tup_id, remember it until it is acked. See `Spout.emit`."""
        if tup_id is None:
            return super().emit(tup, tup_id, stream, direct_task, need_task_ids)
        if self._collector.leaves_out(tup, tup_id):
            return [] if need_task_ids else None
        # A copy, since the spout may change its list before the replay. Anything that is no row is refused below.
        values = row_of(tup)
        try:
            # Before the emission, since the outcome may come before that returns.
            before = self._replays.record(tup_id, () if values is None else values, stream, direct_task)
        except TypeError:  # tup_id has no hash; emit raises the error that says so
            return super().emit(tup, tup_id, stream, direct_task, need_task_ids)
        try:
            return super().emit(tup if values is None else values, tup_id, stream, direct_task, need_task_ids)
        except Exception as error:
            if not vars(error).get(AFTER_EMISSION):
                self._replays.restore(tup_id, before)
            raise

    def ack(self, tup_id: Any) -> Any:
        """Forget a tuple."""
        if self._in_batch:
            return
        if self._replays.forget(tup_id) is None:
            self.logger.warning("ack of a tuple that is not open: %r", tup_id)

    def fail(self, tup_id: Any, reason: Reason | None = None) -> Any:
        """Schedule the replay of a tuple, or make it a dead letter.

        Parameters
        ----------
        tup_id : hashable
        reason : Reason, optional
            Its attempt is replaced by the number of this tuple's emissions.
        """
        if self._in_batch:
            return
        entry = self._replays.entries.get(tup_id)
        if entry is None or entry.due_ms is not None:
            self.logger.warning("fail of a tuple that is not open: %r", tup_id)
            return
        if reason is None:
            reason = Reason(ReasonKind.FAILED, exception=reason_text(None))
        if reason.attempt != entry.attempt:
            reason = dataclasses.replace(reason, attempt=entry.attempt)
        counted = reason.kind not in _NOT_COUNTED
        if counted and self._is_last(entry.attempt):
            self._end_replays(tup_id, reason)
            return
        self._replays.schedule(tup_id, self._next_attempt_ms(entry.attempt), counted=counted)

    def _is_last(self, attempt: int) -> bool:
        return self.attempts_max is not None and attempt >= self.attempts_max

    def _next_attempt_ms(self, attempt: int) -> int:
        now_ms: int = self._collector.now_ms()
        return now_ms + round(backoff(attempt, self.backoff_secs, self.backoff_secs_max) * 1000)

    def _record_batch(self, columns: Any, tup_ids: Any, stream: str | None, direct_task: int | None) -> ReplayBatch:
        """Remember a batch until all of its rows are acked."""
        return self._replays.record_batch(ReplayBatch(columns, tup_ids, stream, direct_task))

    def _end_rows(self, batch: ReplayBatch, rows: Any, reasons: Sequence[Reason] | None) -> None:
        """Forget rows that were acked; schedule the replay of those with reasons, or make them dead letters."""
        if reasons is None:
            self._replays.forget_rows(batch, rows)
            return
        counted = np.array([reason.kind not in _NOT_COUNTED for reason in reasons], bool)
        is_last = counted & self._is_last(batch.attempt)
        for kind in (True, False):
            found = rows[(counted == kind) & ~is_last]
            if found.size:
                self._replays.schedule_rows(batch, found, self._next_attempt_ms(batch.attempt), counted=kind)
        for place in np.flatnonzero(is_last).tolist():
            row = int(rows[place])
            reason = dataclasses.replace(reasons[place], attempt=batch.attempt)
            entry, tup_id = batch.entry(row), batch.tup_ids[row].as_py()
            self._replays.ending[tup_id] = entry
            self._replays.forget_rows(batch, row)
            self._end_entry(tup_id, entry, reason)

    def _end_replays(self, tup_id: Any, reason: Reason) -> None:
        entry = self._replays.ending[tup_id] = self._replays.entries[tup_id]
        del self._replays.entries[tup_id]
        self._end_entry(tup_id, entry, reason)

    def _end_entry(self, tup_id: Any, entry: ReplayEntry, reason: Reason) -> None:
        replays = self._replays  # A restart gives this spout another one, also while it is in dead_letter.
        try:
            self.dead_letter(tup_id, entry.values, reason)
        except BaseException:
            if tup_id not in replays.entries:  # else dead_letter has emitted it again
                # Nobody has kept it. Its last attempt comes again, and dead_letter after that.
                replays.entries[tup_id] = entry
                replays.schedule(tup_id, self._next_attempt_ms(entry.attempt), counted=False)
            raise
        finally:
            del replays.ending[tup_id]
        if self._on_dead_letter is not None:
            self._on_dead_letter(tup_id, entry, reason)
        self._collector.count("dead_letters")

    def dead_letter(self, tup_id: Any, values: Sequence[Any], reason: Reason) -> None:
        """Handle a tuple that failed too often. Logs it at ERROR; override to keep it somewhere.

        If it raises, the tuple is not given up: it is sent again, and this is called again when that fails.

        Parameters
        ----------
        tup_id : hashable
        values : sequence
            As emitted.
        reason : Reason
            Of the last failure.
        """
        self.logger.error("gave up tuple %r after %d attempts: %s; values %r", tup_id, reason.attempt, reason, values)

    def _replay_due(self, now_ms: int, limit: int | None = None) -> int:
        """Emit the tuples whose replay is due, at most `limit` of them; return how many."""
        replayed = 0
        while replayed != limit:
            tup_id = self._replays.pop_due(now_ms)
            if tup_id is None:
                break
            entry = self._replays.entries[tup_id]
            self._collector.emit_again(entry.values, tup_id, entry.stream, entry.direct_task)
            replayed += 1
        while replayed != limit and (batch := self._replays.pop_due_batch(now_ms)) is not None:
            self._collector.emit_batch_again(self, batch)
            replayed += 1
        return replayed

    @property
    def _next_due_ms(self) -> int | None:
        """When the next replay is due; None if no tuple waits."""
        return self._replays.next_due_ms()
