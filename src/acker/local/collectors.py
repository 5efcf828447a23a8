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
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from acker._engine.ids import IdGenerator
from acker._engine.protocol import Outcome
from acker._flow import AckSender, BoltEmitter, Emitter, Outlet, PendingTuple, Route, SpoutEmitter
from acker.errors import ArgumentTypeError, RuntimeStateError, TopologyError, TupleStateError
from acker.local.clock import Clock
from acker.local.hooks import Hook, check_hook
from acker.local.inputs import inputs_of, set_inputs
from acker.local.queues import Outbox
from acker.local.tracing import Sampler
from acker.observe.failures import FailureLog
from acker.observe.latencies import LatencyRecorder
from acker.observe.reasons import Reason, ReasonKind, reason_line, reason_text
from acker.topology.methods import refuse_unrun
from acker.topology.replays import ReplayEntry
from acker.topology.tuples import Tuple, row_of

# More tuples than a task will emit between two restarts.
_MESSAGE_IDS_A_LIFE = 2**40

_NS_PER_MS = 1_000_000

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
        where = f"{self.component}: emits to stream {route.source.stream!r}"
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
        for hook in self._hooks:
            hook.emit(self.component, self.task, route.source.stream, values, tasks)

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
    """Collector of one task of a spout, with the trees that are open. The acker alone decides when a tree ends."""

    def __init__(self, *arguments: Any, fails_max: int | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.outcomes = dict.fromkeys(ReasonKind, 0)
        # A spout that never replays would fill `_fails`, so unless it is a ReliableSpout the oldest are dropped.
        self._fails_max = fails_max
        self._failed_below = 0

    def _unhashable(self, tup_id: object) -> NoReturn:
        raise ArgumentTypeError(
            f"{self.component}: tup_id: expected something hashable, got {reprlib.repr(tup_id)}; "
            "write a str, an int or a tuple of these"
        )

    def track_again(self) -> None:
        """Send the TRACK of every open tree again, for an acker that may have lost them.

        An acker that still has a tree ignores its second TRACK. One that lost it times the tree out, if other messages
        of the tree are lost too.
        """
        for message_id, open_ in self.pending.copy().items():  # Other threads may emit meanwhile.
            self.ack_sender.track(open_.root_id, open_.value, self.task, message_id)

    def fail_all(self, kind: ReasonKind) -> None:
        """Fail every tree that is open now through its acker."""
        self._failed_below = self.message_id
        reason = Reason(kind, self.component, self.task)
        self.ack_sender.fail(self.open_root_ids(), reason)

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
        return None if open_ is None else open_.root_id

    def open_root_ids(self) -> list[int]:
        """Return the root ids of all open trees. Any thread may call it."""
        return [open_.root_id for trees in (self.pending, self.followed or {}) for open_ in list(trees.values())]

    def _on_followed_end(self, open_: PendingTuple) -> None:
        if self._sampler is not None:
            self._sampler.traces.forget(open_.root_id)

    def _on_acked(self, open_: PendingTuple, elapsed_ns: int) -> None:
        self._fails.pop(open_.tup_id, None)
        if self._sampler is not None:
            self._sampler.record_end(open_.root_id, self.component, open_.tup_id, None)
        for hook in self._hooks:
            hook.spout_ack(self.component, self.task, open_.tup_id, elapsed_ns // _NS_PER_MS)

    def _why(self, open_: PendingTuple, outcome: int, reason: Reason | None) -> Reason:
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
            oldest = next(iter(self.pending), self._failed_below)
        except RuntimeError:  # The executor changed it just now; the lifecycle will ask again.
            return False
        return not self.undelivered and oldest >= self._failed_below

    def inherit(self, previous: LocalSpoutCollector) -> None:
        """Continue the counts of the same task before a restart."""
        super().inherit(previous)
        self.outcomes = previous.outcomes
        self.ack_errors = previous.ack_errors
        self.late = previous.late
        self._fails = previous._fails
        self.pending.update(previous.pending)
        # Message ids that an abandoned predecessor may still use have to differ from this one's.
        self.message_id = previous.message_id + _MESSAGE_IDS_A_LIFE

    def oldest_age_ms(self) -> int | None:
        """Return the age of the oldest open tree, or None. Any thread may call it."""
        try:
            oldest = next(iter(self.pending.values()), None)
        except RuntimeError:  # The executor changed it just now; the next call will see it.
            return None
        return None if oldest is None else (self._clock.now_ns() - oldest.emitted_ns) // _NS_PER_MS


def _reason_of(outcome: int, reason: Reason | None) -> Reason:
    if outcome == Outcome.TIMED_OUT:
        return Reason(ReasonKind.TIMED_OUT)
    if outcome == Outcome.REJECTED:
        return Reason(ReasonKind.REJECTED, "__acker", exception="the acker is at its high-water mark")
    return Reason(ReasonKind.FAILED) if reason is None else reason
