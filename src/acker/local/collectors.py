"""Collectors: the emit, ack and fail methods of a task, which make tuple ids and send messages to the ackers.

The work for each tuple is native (`acker._flow`); this module has the rarer work: errors, counters, hooks, traces,
outcomes. Ids and ack vals are those of Storm (`BoltOutputCollectorImpl`): each delivery takes a new tuple id for each
tuple that it is anchored to and xors it into that tuple's ack val, and belongs to the trees of all its anchors. When
the input is acked, one message for each tree goes to an acker: the input's id xor its ack val.
"""

from __future__ import annotations

import asyncio
import logging
import reprlib
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from acker._engine.ids import IdGenerator
from acker._engine.protocol import Outcome
from acker._flow import AckSender, BoltEmitter, Emitter, Outlet, PendingTuple, Route, SpoutEmitter, output_ids
from acker.errors import ArgumentTypeError, RuntimeStateError, TopologyError, TupleStateError
from acker.local.batch_routes import ALL_ROWS, BatchRoute, TaskRows, emits_to
from acker.local.clock import Clock
from acker.local.hooks import Hook, check_hook
from acker.local.inputs import inputs_of, set_inputs
from acker.local.open_batches import BatchOutcome, OpenBatch, OpenRow, OutcomeColumns, TreeOutcome
from acker.local.queues import Outbox
from acker.local.tracing import Sampler
from acker.observe.failures import FailureLog
from acker.observe.latencies import LatencyRecorder
from acker.observe.reasons import Reason, ReasonKind, reason_line, reason_text
from acker.topology.anchors import Int64s
from acker.topology.arrow_columns import owned
from acker.topology.methods import refuse_unrun
from acker.topology.replays import ReplayBatch, ReplayEntry
from acker.topology.spout import AFTER_EMISSION, ReliableSpout, Spout
from acker.topology.tuple_batch import TupleBatch
from acker.topology.tuples import Tuple, row_of

# More tuples than a task will emit between two restarts.
_MESSAGE_IDS_A_LIFE = 2**40

_NS_PER_MS = 1_000_000

_NO_ROWS = np.empty(0, np.int64)

logger = logging.getLogger("acker.local")


@dataclass(frozen=True)
class ExecutorParts:
    """The parts of a runtime that all collectors of one executor share."""

    clock: Clock
    outbox: Outbox
    ack_sender: AckSender
    hooks: Sequence[Hook] = ()
    sampler: Sampler | None = None
    failures: FailureLog | None = None


class LocalCollector(Emitter):
    """The base of spout and bolt collectors.

    Parameters
    ----------
    component : str
    task : int
    routes : dict
        Stream -> its route; None means the default stream.
    outlets : collection of Outlet
        All outlets, for their counts.
    ids : IdGenerator
    parts : ExecutorParts

    Attributes
    ----------
    user : dict
        Counters of report_metric, by name.
    latency : LatencyRecorder
        Bolts: of `process`. Spouts: from emit to ack.
    """

    executed: int

    def __init__(
        self,
        component: str,
        task: int,
        routes: dict[str | None, Route],
        outlets: Collection[Outlet],
        ids: IdGenerator,
        parts: ExecutorParts,
        **options: Any,
    ) -> None:
        super().__init__(task, routes, parts.outbox, parts.ack_sender, ids, LatencyRecorder(), **options)
        self.component = component
        self.outlets = outlets
        self._clock = parts.clock
        self._epoch_ns: int = getattr(parts.clock, "epoch_ns", 0)
        self._hooks = list(parts.hooks)
        # The conf and context that hooks get when a task starts.
        self._hook_arguments: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
        self._sampler = parts.sampler
        self._failures = parts.failures
        self.has_observers = bool(parts.hooks) or parts.sampler is not None

    def now_ms(self) -> int:
        """Return the time of the runtime's clock in milliseconds."""
        return self._clock.now_ns() // _NS_PER_MS

    def wall_ms(self) -> int:
        """Return the time of day in milliseconds since 1970, UTC; a clock that does not know it begins there."""
        return (self._clock.now_ns() + self._epoch_ns) // _NS_PER_MS

    def prepare_hooks(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Call `prepare` of all hooks."""
        self._hook_arguments = conf, context
        for hook in self._hooks:
            hook.prepare(self.component, self.task, conf, context)

    def add_hook(self, hook: Hook) -> None:
        """Add a hook, and call its `prepare`."""
        check_hook(hook)
        self._hooks.append(hook)
        self.has_observers = True
        hook.prepare(self.component, self.task, *self._hook_arguments)

    def cleanup_hooks(self) -> None:
        """Call `cleanup` of all hooks; log what they raise."""
        for hook in self._hooks:
            try:
                hook.cleanup(self.component, self.task)
            except Exception:
                logger.exception("%s: task %d: a hook raised in cleanup", self.component, self.task)

    def inherit(self, previous: Any) -> None:
        """Continue the counts of the same task before a restart."""
        self.user = previous.user
        self.acked = previous.acked
        self.executed = previous.executed
        self.latency = previous.latency
        for outlet, old in zip(self.outlets, previous.outlets, strict=True):
            outlet.sent = old.sent
        for name, route in self.routes.items():
            if name is not None:
                route.emitted = previous.routes[name].emitted

    def _refuse_ended(self, what: str) -> NoReturn:
        raise RuntimeStateError(
            f"{self.component}: {what} from another thread: the topology has stopped or restarted since, and failed "
            "the tuples that were open. Start such threads in initialize() and end them in close()"
        )

    def route_for(self, stream: Any) -> Route:
        """Return the route of a stream; without one raise TopologyError."""
        route = self.routes.get(stream) if isinstance(stream, str | None) else None
        return self._unroutable((), stream) if route is None else route

    def direct_outlet(self, route: Route, direct_task: int | None) -> Outlet | None:
        """Return the outlet to the task that a direct emit names, if this is one; raise if it may not name it."""
        return self._direct(route, direct_task)[0] if direct_task is not None or route.is_direct else None

    def _unroutable(self, values: Any, stream: Any) -> NoReturn:
        route = self.routes.get(stream) if isinstance(stream, str | None) else None
        if route is None:
            known = ", ".join(repr(name) for name in self.routes if name is not None) or "none"
            raise TopologyError(
                f"{self.component}: emits to stream {stream or 'default'!r}, which it does not declare; "
                f"its streams are {known}"
            )
        where = f"{self.component}: emits to stream {route.source.stream!r}"
        fields = ", ".join(route.source.fields)
        if row_of(values) is None:
            raise TopologyError(
                f"{where} {reprlib.repr(values)}; expected a list or tuple of values, and no "
                f"{type(values).__name__}: write [{fields}]"
            )
        raise TopologyError(f"{where} {len(values)} values; expected {route.width}: {fields}")

    def refuse_unrun(self, method: str, returned: object) -> None:
        """Refuse what a method has returned and nobody runs, such as a coroutine."""
        refuse_unrun(f"{self.component}[{self.task}]", method, returned)

    _refuse_unrun = refuse_unrun  # by which the native half calls it

    def _direct(self, route: Route, direct_task: int | None) -> list[Outlet]:
        """Return the outlet to a task of a direct stream."""
        where = emits_to(route.source)
        if not route.is_direct:
            raise TopologyError(f"{where} with direct_task={direct_task!r}; declare it with Stream(..., direct=True)")
        if direct_task is None:
            raise TopologyError(f"{where}, which is direct, without direct_task")
        try:
            outlet = route.direct.get(direct_task)
        except TypeError:  # it has no hash
            outlet = None
        if outlet is None:
            raise TopologyError(
                f"{where} for task {direct_task!r}, which does not read it; the tasks that do are {list(route.direct)}"
            )
        return [outlet]

    def _on_emit(self, route: Route, values: tuple[object, ...], outlets: Sequence[Outlet]) -> None:
        tasks = [outlet.task for outlet in outlets]
        try:
            for hook in self._hooks:
                hook.emit(self.component, self.task, route.source.stream, values, tasks)
        except Exception as error:
            vars(error)[AFTER_EMISSION] = True
            raise

    def _on_delivery(self, task: int, ids: Mapping[int, int] | None) -> None:
        if self._sampler is not None and ids:
            self._sampler.record_emit(ids, task, self.component)


class LocalBoltCollector(LocalCollector, BoltEmitter):
    """Collector of one task of a bolt."""

    def inherit(self, previous: LocalBoltCollector) -> None:
        """Continue the counts of the same task before a restart."""
        super().inherit(previous)
        self.failed = previous.failed

    def _refuse_unanchored(self) -> NoReturn:
        raise TupleStateError(
            f"{self.component}: emits from another thread without anchors, so the tuple being processed is unknown; "
            "write anchors=[tup], or anchors=[] for none"
        )

    def _refuse(self, tup: object, what: str) -> NoReturn:
        if not isinstance(tup, Tuple):
            raise ArgumentTypeError(
                f"{self.component}: {tup!r} cannot be {what}: expected the tuple itself, got {type(tup).__name__}"
            )
        if tup._is_settled:
            raise TupleStateError(f"{self.component}: {tup!r} cannot be {what}: it was acked or failed before")
        raise TupleStateError(f"{self.component}: {tup!r} cannot be {what} here: it is not a tuple of this task")

    def _anchors_of(self, anchors: Iterable[Tuple]) -> tuple[Tuple, ...]:
        """Return anchors as a tuple; refuse a single Tuple, whose values would be taken for anchors."""
        if isinstance(anchors, Tuple) or not isinstance(anchors, Iterable):
            raise ArgumentTypeError(
                f"{self.component}: anchors: expected a list of tuples such as [tup], got {reprlib.repr(anchors)}"
            )
        return tuple(anchors)

    def _reason_of(self, reason: str | BaseException | Reason | None) -> Reason:
        if isinstance(reason, Reason):
            return reason
        text, line = reason_text(reason), reason_line(reason)
        return Reason(ReasonKind.FAILED, self.component, self.task, text, line=line)

    def _on_ack(self, tup: Tuple) -> None:
        if self._sampler is not None and tup._ids:
            self._sampler.record_settle(tup._ids, failed=False)
        for hook in self._hooks:
            hook.ack(self.component, self.task, tup)

    def _on_fail(self, tup: Tuple, reason: Reason) -> None:
        if self._sampler is not None and tup._ids:
            self._sampler.record_settle(tup._ids, failed=True)
        for hook in self._hooks:
            hook.fail(self.component, self.task, tup, reason)

    def _on_execute(self, tup: Tuple) -> None:
        for hook in self._hooks:
            hook.execute(self.component, self.task, tup)


class AsyncBoltCollector(LocalBoltCollector):
    """Collector of a task whose `process` is a coroutine: each running coroutine has its own inputs."""

    def __init__(self, *arguments: Any, auto_anchor: bool, **options: Any) -> None:
        super().__init__(*arguments, auto_anchor=False, **options)
        self._anchors = auto_anchor

    def begin(self, tup: Tuple) -> None:
        """Set the tuple that the running coroutine processes."""
        set_inputs(self, (tup,))

    def end(self, tup: Tuple, elapsed_ns: int) -> None:
        """Record that the coroutine of a tuple has ended, and how long it took."""
        self.latency.record(elapsed_ns)
        if self.has_observers:
            self._on_execute(tup)

    def emit(
        self,
        tup: Sequence[object],
        stream: str | None = None,
        anchors: Iterable[Tuple] | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Emit a tuple, anchored by default to the one that the coroutine processes."""
        if anchors is None and self._anchors:
            anchors = inputs_of(self)
            if anchors is None:
                # A thread without the coroutine's context, or a callback that such a thread put into the loop.
                if not self.on_executor_thread or asyncio._get_running_loop() is not None:
                    self._refuse_unanchored()
                anchors = ()
        return super().emit(tup, stream, anchors, direct_task, need_task_ids)


class LocalSpoutCollector(LocalCollector, SpoutEmitter):
    """Collector of one task of a spout, with the trees that are open. The acker alone decides when a tree ends.

    Attributes
    ----------
    open_batches : dict of int to OpenBatch
        The batches with open rows, by the message id of their first row, in ascending order.
    batch_outcomes : deque of BatchOutcome
        Those that the spout has not heard.
    known_ids : keys view
        The tuple ids for which `is_known` may return True.
    takes_batches : bool
        Whether batches travel as columns; set by whoever makes the tasks.
    batch_tasks : set of int
        The tasks to which the ackers send outcomes as columns; shared by all tasks.
    """

    def __init__(self, *arguments: Any, fails_max: int | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.outcomes = dict.fromkeys(ReasonKind, 0)
        self.open_batches: dict[int, OpenBatch] = {}
        self.batch_outcomes: deque[BatchOutcome] = deque()
        self.known_ids: KeysView[Hashable] = dict[Hashable, Any]().keys()
        self.takes_batches = False
        self.batch_tasks: set[int] = set()
        # A spout that never replays would fill `_fails`, so unless it is a ReliableSpout the oldest are dropped.
        self._fails_max = fails_max
        self._failed_below = 0
        self._failed_as: Reason | None = None

    def _unhashable(self, tup_id: object) -> NoReturn:
        raise ArgumentTypeError(
            f"{self.component}: tup_id: expected something hashable, got {reprlib.repr(tup_id)}; "
            "write a str, an int or a tuple of these"
        )

    def emit_batch(self, spout: Spout, columns: Any, tup_ids: Any, stream: str | None, direct_task: int | None) -> None:
        """Emit rows for a spout; as tuples where somebody wants to see each one."""
        route = self.route_for(stream)
        batches: BatchRoute = route.batches
        read = batches.read(columns)
        direct = self.direct_outlet(route, direct_task)
        ids = None if tup_ids is None else self._ids_of(tup_ids, read.num_rows)
        if not read.num_rows:
            return
        if (
            self._sends_rows_alone()
            or not self.on_executor_thread
            or (ids is not None and (ids.null_count or self._knows_any(ids)))
        ):
            values = batches.values_of_rows(read)
            for row, tup_id in zip(values, [None] * read.num_rows if ids is None else ids.to_pylist(), strict=True):
                spout.emit(row, tup_id, stream, direct_task)
            return
        parts = batches.split(read, direct)
        replay = None if ids is None else spout._record_batch(read, ids, stream, direct_task)
        self._send_batch(route, parts, read.num_rows, ids, replay)

    def emit_batch_again(self, spout: Spout, replay: ReplayBatch) -> None:
        """Emit a batch of a reliable spout whose replay is due."""
        stream, direct_task = replay.stream, replay.direct_task
        route = self.routes[stream]
        if self._sends_rows_alone():
            assert isinstance(spout, ReliableSpout)
            for tup_id, entry in spout._replays.take_back(replay):
                self.emit_again(entry.values, tup_id, stream, direct_task)
            return
        parts = route.batches.split(replay.columns, self.direct_outlet(route, direct_task))
        self._send_batch(route, parts, replay.columns.num_rows, replay.tup_ids, replay)

    def _sends_rows_alone(self) -> bool:
        """Whether rows travel as tuples: batches cannot, or somebody wants to see each tuple."""
        watched = bool(self._hooks) or self._sampler is not None
        return not self.takes_batches or watched or self.followed is not None

    def _knows_any(self, ids: Any) -> bool:
        """Whether some of what a spout emits may be known from an earlier run; see `is_known`."""
        return bool(self.known_ids) and not self.known_ids.isdisjoint(ids.to_pylist())

    def _ids_of(self, tup_ids: Any, rows: int) -> Any:
        import pyarrow as pa

        try:
            ids = tup_ids if isinstance(tup_ids, pa.Array | pa.ChunkedArray) else pa.array(owned(tup_ids))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise TopologyError(f"{self.component}: tup_ids: {error}") from None
        if isinstance(ids, pa.ChunkedArray):
            ids = pa.concat_arrays(ids.chunks) if ids.num_chunks else pa.array([], ids.type)
        if len(ids) != rows:
            raise TopologyError(f"{self.component}: tup_ids: {len(ids)} ids for {rows} rows")
        if pa.types.is_nested(ids.type):
            raise ArgumentTypeError(f"{self.component}: tup_ids: a column of {ids.type} holds no ids; flatten it")
        return ids

    def _send_batch(
        self, route: Route, parts: Sequence[TaskRows], rows: int, ids: Any, replay: ReplayBatch | None
    ) -> None:
        """Send the rows to their tasks, and track those with ids."""
        tracks = ids is not None and len(self.ack_sender) > 0
        root_ids = self.take_ids(rows) if tracks else None
        values = np.zeros(rows, np.int64)
        first = self.message_id
        if root_ids is not None:
            # It is open before anything is sent: other threads may take the rows, or bring an outcome, at once.
            self.message_id += rows
            self.open_batches[first] = OpenBatch(first, ids, root_ids, values, self._clock.now_ns(), replay)
            self.pending_rows += rows
            self.batch_tasks.add(self.task)
        self.send_rows(route, parts, values, root_ids)
        self.count("batches")
        if root_ids is not None:
            self.ack_sender.track_rows(root_ids, values, self.task, np.arange(first, first + rows))
        elif ids is not None:
            none = np.zeros(rows, np.int64)
            self.batch_outcomes.append(
                BatchOutcome(OpenBatch(-1, ids, none, none, self._clock.now_ns(), replay), np.arange(rows))
            )

    def send_rows(self, route: Route, parts: Sequence[TaskRows], values: Int64s, root_ids: Int64s | None) -> None:
        """Send rows to their tasks, in trees of these root ids, if any; put the ack vals of TRACKs into `values`."""
        if root_ids is None:
            sent = [(part.outlet, TupleBatch(route.source, part.columns)) for part in parts]
        else:
            sent = self._in_trees(route, parts, values, root_ids)
        self.output.put_batches(sent)
        route.emitted += values.size
        self.emit_count += 1

    def _in_trees(
        self, route: Route, parts: Sequence[TaskRows], values: Int64s, root_ids: Int64s
    ) -> list[tuple[Outlet, TupleBatch]]:
        """Return rows in trees of these root ids. The tuple ids of a tree xor to its root id, which is not 0."""
        if len(parts) == 1 and isinstance(parts[0].rows, slice) and parts[0].rows == ALL_ROWS:
            values[:] = root_ids
            return [(parts[0].outlet, TupleBatch(route.source, parts[0].columns, root_ids, root_ids))]
        # A custom grouping may send a row to one task twice.
        places = [np.arange(values.size)[part.rows] for part in parts]
        left = root_ids.copy()
        ids = output_ids(left, np.concatenate([_NO_ROWS, *places]), self.take_ids)
        values[:] = root_ids ^ left
        sent, begin = [], 0
        for part, rows in zip(parts, places, strict=True):
            tuple_ids = ids[begin : begin + rows.size]
            sent.append((part.outlet, TupleBatch(route.source, part.columns, root_ids[rows], tuple_ids)))
            begin += rows.size
        return sent

    def untold_ids(self) -> Iterator[Hashable]:
        """Yield the tuple ids whose outcome the spout has not heard. Any thread may call it."""
        yield from [open_.tup_id for open_ in list(self.pending.values())]
        for batch in list(self.open_batches.values()):
            yield from batch.ids_of(batch.open_rows()).to_pylist()
        for outcome in list(self.batch_outcomes):
            yield from outcome.batch.ids_of(outcome.rows).to_pylist()

    @property
    def pending_count(self) -> int:
        """Number of open trees of tuples and of rows of batches. Any thread may read it."""
        return len(self.pending) + self.pending_rows

    def arrive(self, columns: OutcomeColumns) -> list[TreeOutcome]:
        """Take the outcomes of rows of batches, for `batch_outcomes`; return those of tuples."""
        only = self._only_batch(columns)
        if only is not None:
            if (columns.outcomes == Outcome.ACKED).all():
                self.batch_outcomes.append(BatchOutcome(only, columns.message_ids - only.first))
            else:
                self._arrive_at(only, columns, np.ones(len(columns), bool))
            return []
        firsts = np.fromiter(self.open_batches, np.int64, len(self.open_batches))
        place = np.searchsorted(firsts, columns.message_ids, "right") - 1
        batches = list(self.open_batches.values())
        ends = np.array([batch.first + len(batch) for batch in batches], np.int64)
        is_row = (place >= 0) & (columns.message_ids < ends[place]) if batches else np.zeros(len(columns), bool)
        for number in np.flatnonzero(np.bincount(place[is_row], minlength=1)).tolist():
            self._arrive_at(batches[number], columns, is_row & (place == number))
        if is_row.all():
            return []
        return [outcome for outcome, taken in zip(columns, is_row.tolist(), strict=True) if not taken]

    def _only_batch(self, columns: OutcomeColumns) -> OpenBatch | None:
        """Return the batch of all outcomes, if they are of one."""
        least, most = int(np.min(columns.message_ids)), int(np.max(columns.message_ids))
        batches = self.open_batches.values()
        return next((batch for batch in batches if batch.first <= least and most < batch.first + len(batch)), None)

    def _arrive_at(self, batch: OpenBatch, columns: OutcomeColumns, mine: Any) -> None:
        """Take the outcomes of rows of one batch."""
        acked = columns.outcomes == Outcome.ACKED
        good, bad = np.flatnonzero(mine & acked), np.flatnonzero(mine & ~acked)
        if good.size:
            self.batch_outcomes.append(BatchOutcome(batch, columns.message_ids[good] - batch.first))
        if bad.size:
            reasons = None if columns.reasons is None else [columns.reasons[each] for each in bad.tolist()]
            rows = columns.message_ids[bad] - batch.first
            self.batch_outcomes.append(BatchOutcome(batch, rows, columns.outcomes[bad], reasons))

    def settle_rows(self, outcome: BatchOutcome) -> tuple[Int64s, list[Reason] | None]:
        """Take note of the end of the trees of rows; return those that were open, and why they failed if they did."""
        if outcome.settled:
            told: Any = outcome.reasons
            return outcome.rows, None if told is None else list(told)
        batch = outcome.batch
        elapsed_ns = self._clock.now_ns() - batch.emitted_ns
        if outcome.outcomes is None:
            rows = batch.close_open(outcome.rows)
        else:
            is_open = batch.are_open(outcome.rows)
            rows = outcome.rows[is_open]
            batch.close(rows)
        self.late += int(outcome.rows.size - rows.size)
        if batch.first >= 0:
            self.pending_rows -= rows.size
            if not batch.open_count:
                self.open_batches.pop(batch.first, None)
        if outcome.outcomes is None:
            if batch.first >= 0 and rows.size:
                self.latency.record(elapsed_ns, rows.size)
            if self._fails or self.has_observers:
                for row in rows.tolist():
                    self._on_acked(batch.row(row), elapsed_ns)
            return rows, None
        codes = outcome.outcomes[is_open].tolist()
        given = outcome.reasons or [None] * outcome.rows.size
        mine = [reason for reason, is_mine in zip(given, is_open.tolist(), strict=True) if is_mine]
        named = zip(rows.tolist(), codes, mine, strict=True)
        return rows, [self._why(batch.row(row), code, reason) for row, code, reason in named]

    def track_again(self) -> None:
        """Send the TRACK of every open tree again, for an acker that may have lost them.

        An acker that still has a tree ignores its second TRACK. One that lost it times the tree out, if other messages
        of the tree are lost too.
        """
        for message_id, open_ in self.pending.copy().items():  # Other threads may emit meanwhile.
            self.ack_sender.track(open_.root_id, open_.value, self.task, message_id)
        for batch in list(self.open_batches.values()):
            rows = batch.open_rows()
            self.ack_sender.track_rows(batch.root_ids[rows], batch.values[rows], self.task, batch.first + rows)

    def fail_all(self, kind: ReasonKind) -> None:
        """Fail every tree that is open now through its acker."""
        self._failed_below = self.message_id
        self._failed_as = Reason(kind, self.component, self.task)
        self.ack_sender.fail(self.open_root_ids(), self._failed_as)

    def fail_again(self) -> None:
        """Fail what `fail_all` failed and is still open once more, for an acker that has lost its trees since.

        Call it after `track_again`. An acker that already holds more than it should drops a FAIL that comes before its
        TRACK, and while a runtime ends no tree times out.
        """
        below = self._failed_below
        roots = [open_.root_id for number, open_ in self.pending.copy().items() if number < below]
        for number, batch in list(self.open_batches.items()):
            if number < below:
                roots += batch.open_roots()
        self.ack_sender.fail(roots, self._failed_as)

    def follow_untracked(self) -> None:
        """Track what is emitted without a tuple id too, so that `open_from` knows of it; the spout hears no outcome.

        Without an acker nothing can be tracked.
        """
        if len(self.ack_sender):
            self.followed = {}

    def open_from(self) -> tuple[int, int] | None:
        """Return the message ids of the oldest open tree and of the next one; the same if none is open.

        None if that changed just now. Any thread may call it.
        """
        following = self.message_id  # first: what is emitted meanwhile counts as open
        try:
            return min(next(iter(trees), following) for trees in (self.pending, self.followed or {})), following
        except RuntimeError:
            return None

    def root_of(self, message_id: int) -> int | None:
        """Return the root id of an open tree."""
        open_ = self.pending.get(message_id)
        if open_ is None and self.followed is not None:
            open_ = self.followed.get(message_id)
        if open_ is not None:
            return open_.root_id
        batches = list(self.open_batches.values())
        batch = next((each for each in batches if each.first <= message_id < each.first + len(each)), None)
        return None if batch is None else int(batch.root_ids[message_id - batch.first])

    def open_root_ids(self) -> list[int]:
        """Return the root ids of all open trees. Any thread may call it."""
        roots = [open_.root_id for trees in (self.pending, self.followed or {}) for open_ in list(trees.values())]
        return roots + [root_id for batch in list(self.open_batches.values()) for root_id in batch.open_roots()]

    def open_trees(self, most: int) -> list[PendingTuple | OpenRow]:
        """Return the trees that are open longest, at most so many. Any thread may call it; RuntimeError: try again."""
        found: list[PendingTuple | OpenRow] = list(islice(self.pending.values(), most))
        for batch in islice(list(self.open_batches.values()), most):
            found += [batch.row(row) for row in batch.open_rows()[:most].tolist()]
        return sorted(found, key=lambda open_: open_.emitted_ns)[:most]

    def _on_followed_end(self, open_: PendingTuple) -> None:
        if self._sampler is not None:
            self._sampler.traces.forget(open_.root_id)

    def _on_acked(self, open_: PendingTuple | OpenRow, elapsed_ns: int) -> None:
        self._fails.pop(open_.tup_id, None)
        if self._sampler is not None:
            self._sampler.record_end(open_.root_id, self.component, open_.tup_id, None)
        for hook in self._hooks:
            hook.spout_ack(self.component, self.task, open_.tup_id, elapsed_ns // _NS_PER_MS)

    def _why(self, open_: PendingTuple | OpenRow, outcome: int, reason: Reason | None) -> Reason:
        """Count a tree that was not acked; return the reason, with the number of the attempt."""
        elapsed_ms = (self._clock.now_ns() - open_.emitted_ns) // _NS_PER_MS
        return self.note_failure(open_.tup_id, _reason_of(outcome, reason), elapsed_ms, open_.root_id)

    def note_failure(
        self, tup_id: Hashable, reason: Reason, elapsed_ms: int, root_id: int | None = None, *, counts: bool = True
    ) -> Reason:
        """Count a failed attempt, and tell whoever watches; return the reason, with the number of the attempt.

        It may have been counted before, by a run of which a checkpoint has the rest.
        """
        attempt = self._fails.pop(tup_id, 0) + 1
        self._fails[tup_id] = attempt
        if self._fails_max is not None and len(self._fails) > self._fails_max:
            del self._fails[next(iter(self._fails))]
        reason = replace(reason, attempt=attempt)
        self.outcomes[reason.kind] += counts
        if self._sampler is not None and root_id is not None:
            self._sampler.record_end(root_id, self.component, tup_id, reason)
        if self._failures is not None:
            self._failures.record(self.component, self.task, tup_id, reason, elapsed_ms, root_id)
        for hook in self._hooks:
            hook.spout_fail(self.component, self.task, tup_id, reason)
        return reason

    def resume_attempts(self, tup_id: Hashable, attempt: int) -> None:
        """Continue the attempts of a tuple, of which this one is open and those before it failed."""
        self._fails.pop(tup_id, None)
        if attempt > 1:
            self._fails[tup_id] = attempt - 1

    def attempt_of(self, tup_id: Hashable) -> int:
        """Return the number of the open emission of a tuple, from 1."""
        return self._fails.get(tup_id, 0) + 1

    def give_up(self, tup_id: Hashable, entry: Any, reason: Reason) -> None:
        """Forget the attempts of a tuple that became a dead letter, and show it to whoever looks at the topology."""
        self._fails.pop(tup_id, None)
        if self._failures is not None:
            # Its spout can replay what was in its replay table, and not what a broker keeps.
            replayed = entry if isinstance(entry, ReplayEntry) else None
            values = entry.value if replayed is None else replayed.values
            self._failures.record_dead_letter(self.component, self.task, tup_id, values, reason, replayed)

    def is_settled(self) -> bool:
        """Return whether the outcome of every tree that `fail_all` failed was delivered."""
        try:
            oldest = min(next(iter(trees), self._failed_below) for trees in (self.pending, self.open_batches))
        except RuntimeError:  # The executor changed it just now; the lifecycle will ask again.
            return False
        return not self.undelivered and not self.batch_outcomes and oldest >= self._failed_below

    def inherit(self, previous: LocalSpoutCollector) -> None:
        """Continue the counts of the same task before a restart."""
        super().inherit(previous)
        self.outcomes = previous.outcomes
        self.ack_errors = previous.ack_errors
        self.late = previous.late
        self._fails = previous._fails
        self.pending.update(previous.pending)
        self.open_batches.update(previous.open_batches)
        if self.open_batches:
            self.batch_tasks.add(self.task)  # so that the acker sends their outcomes as columns
        self.pending_rows = previous.pending_rows
        self.batch_outcomes.extend(outcome for outcome in previous.batch_outcomes if outcome.settled)
        # Message ids that an abandoned predecessor may still use have to differ from this one's.
        self.message_id = previous.message_id + _MESSAGE_IDS_A_LIFE

    def oldest_age_ms(self) -> int | None:
        """Return the age of the oldest open tree, or None. Any thread may call it."""
        try:
            oldest = [open_.emitted_ns for trees in (self.pending, self.open_batches) for open_ in _first_of(trees)]
        except RuntimeError:  # The executor changed it just now; the next call will see it.
            return None
        return (self._clock.now_ns() - min(oldest)) // _NS_PER_MS if oldest else None


def _first_of(trees: Mapping[int, Any]) -> list[Any]:
    return list(islice(trees.values(), 1))


def _reason_of(outcome: int, reason: Reason | None) -> Reason:
    if outcome == Outcome.TIMED_OUT:
        return Reason(ReasonKind.TIMED_OUT)
    if outcome == Outcome.REJECTED:
        return Reason(ReasonKind.REJECTED, "__acker", exception="the acker is at its high-water mark")
    return Reason(ReasonKind.FAILED) if reason is None else reason
