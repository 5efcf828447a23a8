"""What a component calls: emit, ack, fail. Ids are made here and the ackers are told from here.

Each task has a collector of its own, used on the thread of its executor only. Ids and ack vals are kept as Storm keeps
them (`BoltOutputCollectorImpl`): each delivery takes a new tuple id for each tuple that it is anchored to, which enters
that tuple's ack val; the trees of the anchors are copied into the new tuple. One message a tree leaves when the input
is acked: its own id xor its ack val.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from acker.errors import ArgumentTypeError, TopologyError, TupleStateError
from acker.ids import IdGenerator
from acker.local.clock import Clock
from acker.local.hooks import Hook
from acker.local.letters import Post
from acker.local.metrics import LatencyRecorder
from acker.local.queues import Outbox, Outlet
from acker.local.routing import Choice, Route
from acker.local.sampling import Sampler
from acker.protocol import Outcome
from acker.topology.reasons import Reason, ReasonKind
from acker.topology.tuples import Tuple

# More than a task will emit between two restarts.
_MESSAGE_IDS_A_LIFE = 2**40

_NS_PER_MS = 1_000_000
_IDS_AT_ONCE = 2048

# Owner of a tuple that was acked or failed.
SETTLED = object()


@dataclass(frozen=True)
class Surroundings:
    """What a collector gets from the runtime and shares with the other tasks of its executor."""

    clock: Clock
    outbox: Outbox
    post: Post
    hooks: Sequence[Hook] = ()
    sampler: Sampler | None = None


def endless_ids(generator: IdGenerator) -> Callable[[], int]:
    """Return a function that gives one id a call, at the cost of stepping a list."""

    def ids() -> Iterator[int]:
        while True:
            yield from generator.take(_IDS_AT_ONCE).tolist()

    return ids().__next__


class Collector:
    """What spouts' and bolts' collectors share: routes, ids, counters.

    Attributes
    ----------
    user : dict
        Counters that the component keeps itself, by name.
    """

    def __init__(
        self,
        component: str,
        task: int,
        routes: dict[str | None, Route],
        outlets: Collection[Outlet],
        ids: IdGenerator,
        around: Surroundings,
    ) -> None:
        self.component = component
        self.task = task
        self.routes = routes
        self.outlets = outlets
        self.user: dict[str, int] = {}
        self.acked = 0
        self._next_id = endless_ids(ids)
        self._clock = around.clock
        self._outbox = around.outbox
        self._post = around.post
        self._hooks = around.hooks
        self._sampler = around.sampler

    def now_ms(self) -> int:
        """Return the time of the runtime's clock in milliseconds."""
        return self._clock.now_ns() // _NS_PER_MS

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter of the component's own."""
        self.user[name] = self.user.get(name, 0) + n

    def inherit(self, previous: Any) -> None:
        """Go on counting where the collector of the same task before a restart stopped."""
        self.user = previous.user
        self.acked = previous.acked
        for outlet, old in zip(self.outlets, previous.outlets, strict=True):
            outlet.sent = old.sent
        for name, route in self.routes.items():
            if name is not None:
                route.emitted = previous.routes[name].emitted

    def _unroutable(self, values: object, stream: str | None) -> NoReturn:
        route = self.routes.get(stream)
        if route is None:
            known = ", ".join(repr(name) for name in self.routes if name is not None) or "none"
            raise TopologyError(
                f"{self.component}: emits to stream {stream or 'default'!r}, which it does not declare; its streams are {known}"
            )
        if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
            raise TopologyError(
                f"{self.component}: emits {values!r} to stream {route.source.stream!r}; expected a list or tuple of values"
            )
        raise TopologyError(
            f"{self.component}: emits {len(values)} values to stream {route.source.stream!r}; "
            f"expected {route.width}: {', '.join(route.source.fields)}"
        )

    def _choose(self, route: Route, direct_task: int) -> Choice:
        """Choose a task of a direct stream."""
        where = f"{self.component}: emits to stream {route.source.stream!r}"
        if not route.is_direct:
            raise TopologyError(f"{where} with direct_task={direct_task!r}; declare it with Stream(..., direct=True)")
        outlet = route.direct.get(direct_task)
        if outlet is None:
            raise TopologyError(
                f"{where} for task {direct_task!r}, which does not read it; the tasks that do are {list(route.direct)}"
            )
        return (outlet,)

    def _watch_emit(self, route: Route, values: tuple[object, ...], outlets: Choice) -> None:
        tasks = [outlet.task for outlet in outlets]
        for hook in self._hooks:
            hook.emit(self.component, self.task, route.source.stream, values, tasks)


class BoltCollector(Collector):
    """Collector of one task of a bolt.

    Attributes
    ----------
    inputs : tuple of Tuple
        What is processed now, and what emitted tuples are anchored to.
    auto_anchor : bool
        Whether that is so where `emit` is not told its anchors.
    """

    inputs: tuple[Tuple, ...] = ()

    def __init__(self, *args: Any, auto_anchor: bool = True) -> None:
        super().__init__(*args)
        self.auto_anchor = auto_anchor
        self.failed = 0

    def emit(
        self,
        values: Sequence[object],
        stream: str | None = None,
        anchors: Sequence[Tuple] | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Send a tuple to whoever reads the stream."""
        route = self.routes.get(stream)
        if route is None or type(values) is str or len(values) != route.width:
            self._unroutable(values, stream)
        values = route.make_values(values)
        outlets = route.choose(values) if direct_task is None else self._choose(route, direct_task)
        if anchors is None:
            anchors = self.inputs if self.auto_anchor else ()
        for anchor in anchors:
            if anchor._owner is not self:
                self._refuse(anchor, "anchored to")
        make, source, outbox = route.make, route.source, self._outbox
        for outlet in outlets:
            ids: dict[int, int] | None = None
            for anchor in anchors:
                roots = anchor._ids
                if roots:
                    tuple_id = self._next_id()
                    anchor._ack_val ^= tuple_id
                    ids = dict.fromkeys(roots, tuple_id) if ids is None else _joined(ids, roots, tuple_id)
            buffer = outlet.buffer
            if not buffer:
                outbox.dirty.append(outlet)
            buffer.append(make(values, source, ids))
            if self._sampler is not None and ids:
                self._sampler.emitted(ids, outlet.task, self.component)
        route.emitted += 1
        if self._hooks:
            self._watch_emit(route, values, outlets)
        return [outlet.task for outlet in outlets] if need_task_ids else None

    def ack(self, tup: Tuple) -> None:
        """Say that a tuple and everything that this task had to do for it is done."""
        if tup._owner is not self:
            self._refuse(tup, "acked")
        tup._owner = SETTLED
        ids = tup._ids
        if ids:
            self._post.ok(ids, tup._ack_val)
            if self._sampler is not None:
                self._sampler.settled(ids, failed=False)
        self.acked += 1
        for hook in self._hooks:
            hook.ack(self.component, self.task, tup)

    def fail(self, tup: Tuple, reason: str | BaseException | Reason | None = None) -> None:
        """Say that a tuple cannot be processed; its trees fail."""
        if tup._owner is not self:
            self._refuse(tup, "failed")
        tup._owner = SETTLED
        if not isinstance(reason, Reason):
            reason = Reason(ReasonKind.FAILED, self.component, self.task, text_of(reason))
        ids = tup._ids
        if ids:
            self._post.fail(ids, reason)
            if self._sampler is not None:
                self._sampler.settled(ids, failed=True)
        self.failed += 1
        for hook in self._hooks:
            hook.fail(self.component, self.task, tup, reason)

    def reset_timeout(self, tup: Tuple) -> None:
        """Ask for the whole timeout again, for the trees of a tuple that takes long."""
        if tup._owner is not self:
            self._refuse(tup, "given more time")
        if tup._ids:
            self._post.reset_timeout(tup._ids)

    def inherit(self, previous: BoltCollector) -> None:
        """Go on counting where the collector of the same task before a restart stopped."""
        super().inherit(previous)
        self.failed = previous.failed

    def _refuse(self, tup: Tuple, what: str) -> NoReturn:
        if tup._owner is SETTLED:
            raise TupleStateError(f"{self.component}: {tup!r} cannot be {what}: it was acked or failed before")
        raise TupleStateError(f"{self.component}: {tup!r} cannot be {what} here: it is not a tuple of this task")


def _joined(ids: dict[int, int], roots: Iterable[int], tuple_id: int) -> dict[int, int]:
    """Let a tuple id enter more trees. A tree that it is in by two anchors sees the xor of both ids."""
    for root_id in roots:
        ids[root_id] = ids.get(root_id, 0) ^ tuple_id
    return ids


class AsyncBoltCollector(BoltCollector):
    """Collector of a task whose `process` is a coroutine: each of the coroutines that run at once has its own inputs."""

    def __init__(self, *args: Any, auto_anchor: bool = True) -> None:
        self._inputs: contextvars.ContextVar[tuple[Tuple, ...]] = contextvars.ContextVar("inputs", default=())
        super().__init__(*args, auto_anchor=auto_anchor)

    @property  # type: ignore[override]
    def inputs(self) -> tuple[Tuple, ...]:
        """What the running coroutine processes."""
        return self._inputs.get()

    @inputs.setter
    def inputs(self, inputs: tuple[Tuple, ...]) -> None:
        self._inputs.set(inputs)


class Open:
    """A tracked tuple of a spout whose tree is not finished."""

    __slots__ = ("emitted_ns", "root_id", "tup_id", "value")

    def __init__(self, tup_id: Hashable, root_id: int, value: int, emitted_ns: int) -> None:
        self.tup_id = tup_id
        self.root_id = root_id
        self.value = value
        self.emitted_ns = emitted_ns


class SpoutCollector(Collector):
    """Collector of one task of a spout, and its record of what is open.

    Attributes
    ----------
    pending : dict
        Message id -> `Open`, of tracked tuples whose outcome was not heard. The acker alone decides when one ends.
    at_once : list of hashable
        Tuple ids to ack when `next_tuple` returns: there is no acker.
    """

    def __init__(self, *args: Any, fails_max: int | None) -> None:
        super().__init__(*args)
        self.pending: dict[int, Open] = {}
        self.at_once: list[Hashable] = []
        self.outcomes = dict.fromkeys(ReasonKind, 0)
        self.late = 0
        self.emits = 0
        self.complete_latency = LatencyRecorder()
        self._message_id = 0
        # Tuple id -> how often its tree failed, until it is acked. A spout that never sends again what failed would fill
        # it, so without a ReliableSpout's promise the oldest are forgotten.
        self._fails: dict[Hashable, int] = {}
        self._fails_max = fails_max

    def emit(
        self,
        values: Sequence[object],
        tup_id: Hashable = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int] | None:
        """Send a tuple to whoever reads the stream; with a tuple id it is tracked."""
        route = self.routes.get(stream)
        if route is None or type(values) is str or len(values) != route.width:
            self._unroutable(values, stream)
        values = route.make_values(values)
        outlets = route.choose(values) if direct_task is None else self._choose(route, direct_task)
        if tup_id is None:
            self._deliver(route, values, outlets)
        else:
            try:
                hash(tup_id)
            except TypeError:
                raise ArgumentTypeError(
                    f"{self.component}: tup_id: expected something hashable, got {tup_id!r}"
                ) from None
            if self._post:
                self._track(route, values, outlets, tup_id)
            else:
                self._deliver(route, values, outlets)
                self.at_once.append(tup_id)
        self.emits += 1
        route.emitted += 1
        if self._hooks:
            self._watch_emit(route, values, outlets)
        return [outlet.task for outlet in outlets] if need_task_ids else None

    def _deliver(self, route: Route, values: tuple[object, ...], outlets: Choice) -> None:
        outbox = self._outbox
        for outlet in outlets:
            if not outlet.buffer:
                outbox.dirty.append(outlet)
            outlet.buffer.append(route.make(values, route.source, None))

    def _track(self, route: Route, values: tuple[object, ...], outlets: Choice, tup_id: Hashable) -> None:
        make, source, outbox, next_id = route.make, route.source, self._outbox, self._next_id
        root_id = next_id()
        value = 0
        for outlet in outlets:
            tuple_id = next_id()
            value ^= tuple_id
            buffer = outlet.buffer
            if not buffer:
                outbox.dirty.append(outlet)
            ids = {root_id: tuple_id}
            buffer.append(make(values, source, ids))
            if self._sampler is not None:
                self._sampler.emitted(ids, outlet.task, self.component)
        message_id = self._message_id
        self._message_id += 1
        self.pending[message_id] = Open(tup_id, root_id, value, self._clock.now_ns())
        self._post.track(root_id, value, self.task, message_id)

    def track_again(self) -> None:
        """Send the TRACK of everything that is open, for an acker that may have forgotten it.

        One that has not ignores a second TRACK. One that has will time the tree out, if messages of it are gone too.
        """
        for message_id, open_ in self.pending.items():
            self._post.track(open_.root_id, open_.value, self.task, message_id)

    def fail_all(self, kind: ReasonKind) -> None:
        """Fail every open tree through its acker."""
        reason = Reason(kind, self.component, self.task)
        self._post.fail([open_.root_id for open_ in self.pending.values()], reason)

    def settle(self, message_id: int, outcome: int, reason: Reason | None) -> tuple[Hashable, Reason | None] | None:
        """Take note of an outcome.

        Returns
        -------
        tuple of hashable and (Reason or None), or None
            The spout's own id, and why the tree is not acked, None where it is. None alone: nobody waits for it.
        """
        open_ = self.pending.pop(message_id, None)
        if open_ is None:
            self.late += 1
            return None
        tup_id, root_id = open_.tup_id, open_.root_id
        if outcome == Outcome.ACKED:
            elapsed_ns = self._clock.now_ns() - open_.emitted_ns
            self.complete_latency.record(elapsed_ns)
            self.acked += 1
            if self._fails:
                self._fails.pop(tup_id, None)
            if self._sampler is not None:
                self._sampler.ended(root_id, self.component, tup_id, None)
            for hook in self._hooks:
                hook.spout_ack(self.component, self.task, tup_id, elapsed_ns // _NS_PER_MS)
            return tup_id, None
        attempt = self._fails.pop(tup_id, 0) + 1
        self._fails[tup_id] = attempt
        if self._fails_max is not None and len(self._fails) > self._fails_max:
            del self._fails[next(iter(self._fails))]
        reason = _why(outcome, reason, attempt)
        if self._sampler is not None:
            self._sampler.ended(root_id, self.component, tup_id, reason)
        self.outcomes[reason.kind] += 1
        for hook in self._hooks:
            hook.spout_fail(self.component, self.task, tup_id, reason)
        return tup_id, reason

    def inherit(self, previous: SpoutCollector) -> None:
        """Go on counting where the collector of the same task before a restart stopped."""
        super().inherit(previous)
        self.outcomes = previous.outcomes
        self.late = previous.late
        self.complete_latency = previous.complete_latency
        self._fails = previous._fails
        self.pending = dict(previous.pending)
        # A predecessor that was abandoned may come back and emit: what becomes of that is not for this one to hear.
        self._message_id = previous._message_id + _MESSAGE_IDS_A_LIFE

    def oldest_age_ms(self) -> int | None:
        """Return for how long the oldest open tree has been open. Any thread may ask."""
        try:
            oldest = next(iter(self.pending.values()), None)
        except RuntimeError:  # The executor changed it at this moment; somebody will ask again.
            return None
        return None if oldest is None else (self._clock.now_ns() - oldest.emitted_ns) // _NS_PER_MS


def text_of(reason: str | BaseException | None) -> str | None:
    """Return a reason as text: of an exception its type and what it says."""
    if isinstance(reason, BaseException):
        text = str(reason)
        return f"{type(reason).__name__}: {text}" if text else type(reason).__name__
    return reason


def _why(outcome: int, reason: Reason | None, attempt: int) -> Reason:
    if outcome == Outcome.TIMED_OUT:
        return Reason(ReasonKind.TIMED_OUT, attempt=attempt)
    if outcome == Outcome.REJECTED:
        return Reason(ReasonKind.REJECTED, "__acker", exception="the acker is at its high-water mark", attempt=attempt)
    if reason is None:
        return Reason(ReasonKind.FAILED, attempt=attempt)
    return Reason(reason.kind, reason.component, reason.task, reason.exception, attempt)
