"""The spouts and bolts of a simulation: they follow their plan, and record all that they do."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from acker.topology import ArrowBolt, BatchingBolt, Bolt, Reason, ReasonKind, ReliableSpout, Spout, Tuple
from tests.torture.simulation.plan import HOPS_MAX, KEYS, BoltPlan, Plan, SpoutPlan
from tests.torture.simulation.record import RunRecord

# What a tuple carries.
FIELDS = ["serial", "key", "hops"]

# With threads: held by the one that uses the world and its record.
LOCK: Final = threading.RLock()


# How many tuples the bolts of a run emit at most.
EMITS_LEFT: Final = 120


class InjectedError(Exception):
    """What components of a simulation raise on purpose."""


@dataclass
class World:
    """What the components of one simulation share.

    Attributes
    ----------
    rng : random.Random
        Decides all that they do. One thread steps them all, so one generator makes one run of a seed.
    crashes_left : int
        How many exceptions may still escape.
    emits_left : int
        How many tuples bolts may still emit: wide topologies with loops would take long otherwise.
    readers : dict
        (component, stream) -> task ids of the bolts that read a direct stream.
    numbers : dict
        Task of a spout -> how many tuples it has emitted, which a restart does not change.
    finals : dict
        (spout, tuple id) -> how it ended for good.
    retries : Counter
        Tuple id -> how often a RetryingSpout has heard that it failed.
    say : callable or None
        Told what happens, in words.
    is_ending : callable
        Whether the topology drains or has stopped.
    wrap : callable
        Changes a component's class before it is used.
    pass_ms : callable
        Lets a millisecond of the clock pass.
    """

    plan: Plan
    record: RunRecord
    rng: random.Random
    crashes_left: int
    emits_left: int = EMITS_LEFT
    readers: dict[tuple[str, str], Sequence[int]] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    finals: dict[tuple[str, Hashable], str] = field(default_factory=dict)
    retries: Counter[Hashable] = field(default_factory=Counter)
    say: Callable[[str], None] | None = None
    is_ending: Callable[[], bool] = lambda: False
    wrap: Callable[[type[Any]], type[Any]] = lambda component: component
    pass_ms: Callable[[], object] = lambda: None

    def take_time(self) -> None:
        """Let a call take some time, if the plan says so."""
        most = self.plan.faults.takes_ms
        for _ in range(self.rng.randint(0, most) if most else 0):
            self.pass_ms()

    def chance(self, share: float) -> bool:
        """Return True that often."""
        return share > 0 and self.rng.random() < share

    def crash(self, share: float) -> None:
        """Raise what escapes, that often, as long as crashes are left."""
        if self.crashes_left > 0 and self.chance(share):
            self.crashes_left -= 1
            self.record.crashed = True
            self.tell("an exception is about to escape")
            raise InjectedError("escaped on purpose")

    def tell(self, text: str) -> None:
        """Tell what happens, if anybody listens."""
        if self.say is not None:
            self.say(text)

    def draw_route(self, plan: SpoutPlan | BoltPlan) -> tuple[str, int | None]:
        """Return one of a component's streams, and the task to send a tuple of it to: None unless it is direct."""
        stream = self.rng.choice(plan.streams)
        readers = self.readers.get((plan.name, stream), ())
        target = self.rng.choice(readers) if readers else None
        # A direct stream that nobody reads has no task to send to.
        return ("default" if stream == "direct" and target is None else stream), target

    def final(self, spout: str, tup_id: Hashable, how: str) -> None:
        """Note the end of a tuple that is not going to be replayed."""
        if (spout, tup_id) in self.finals:
            self.record.violations.append(f"{spout} {tup_id!r}: {how} after {self.finals[spout, tup_id]}")
        self.finals[spout, tup_id] = how


class NumberingCollector:
    """A spout's collector that writes a serial number into each tuple, also into a replayed one."""

    def __init__(self, collector: Any, spout: str, world: World) -> None:
        self._collector = collector
        self._spout = spout
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collector, name)

    def emit(
        self,
        values: Sequence[Any],
        tup_id: Hashable = None,
        stream: str | None = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> list[int]:
        record = self._world.record
        with LOCK:  # A replay comes from no method of the spout, and its consumer may process it before it is noted.
            serial = record.next_serial()
            tasks: list[int] = self._collector.emit([serial, *values[1:]], tup_id, stream, direct_task, True)
            record.add_spout_emit(self._spout, self._collector.task, serial, tup_id, tasks)
            record.check_route(self._spout, stream or "default", values[1], direct_task, tasks)
            self._world.tell(f"{self._spout} emits #{serial} {tup_id!r} to {tasks}")
        return tasks

    emit_again = emit


class SimulatedSpout(Spout):
    """Emits so many tuples, some of them untracked, some at once, and then has no more. It replays nothing."""

    world: ClassVar[World]
    plan: ClassVar[SpoutPlan]
    numbering: ClassVar[type[NumberingCollector]] = NumberingCollector

    def _bind(self, collector: Any, context: Mapping[str, Any], conf: Mapping[str, Any] | None = None) -> None:
        super()._bind(self.numbering(collector, self.plan.name, self.world), context, conf)

    def next_tuple(self) -> None:
        """Emit none, one, or a burst."""
        world, plan = self.world, self.plan
        for _ in range(world.rng.randint(plan.eager, plan.burst)):
            number = world.numbers.get(self.task_id, 0)
            if number >= plan.tuples:
                self.finish()
                return
            world.numbers[self.task_id] = number + 1
            tracked = plan.kind != "untracked" and not world.chance(0.1)
            stream, target = world.draw_route(plan)
            values = [0, world.rng.randrange(KEYS), world.rng.randint(0, HOPS_MAX)]
            self.emit(values, tup_id=(self.task_id, number) if tracked else None, stream=stream, direct_task=target)
            world.take_time()
        world.crash(plan.raises)

    def ack(self, tup_id: Hashable) -> None:
        """Have the outcome judged."""
        super().ack(tup_id)
        self.world.tell(f"{self.plan.name} {tup_id!r} is acked")
        self.world.record.add_outcome(self.plan.name, tup_id, None)
        self.world.final(self.plan.name, tup_id, "acked")
        self.world.crash(self.plan.raises)

    def fail(self, tup_id: Hashable, reason: Reason | None = None) -> None:
        """Have the outcome judged."""
        assert reason is not None
        self.world.tell(f"{self.plan.name} {tup_id!r} fails: {reason}")
        self.world.record.add_outcome(self.plan.name, tup_id, reason)
        self._give_up(tup_id, reason)
        self.world.crash(self.plan.raises)

    def _give_up(self, tup_id: Hashable, reason: Reason) -> None:
        self.world.final(self.plan.name, tup_id, reason.kind.name)


class SimulatedAsyncSpout(SimulatedSpout):
    """A SimulatedSpout that waits for what it emits."""

    async def next_tuple(self) -> None:  # type: ignore[override]  # The runtime waits for it.
        """Emit none, one, or a burst, now or later."""
        if self.world.chance(0.3):
            await asyncio.sleep(self.world.rng.uniform(0, 0.3) * self.world.record.timeout_ns / 1e9)
        super().next_tuple()


class RetryingSpout(SimulatedSpout):
    """A SimulatedSpout that emits what failed again at once, inside of `fail`, as spouts of pystorm do."""

    def _give_up(self, tup_id: Hashable, reason: Reason) -> None:
        retries = self.world.retries
        retries[tup_id] += 1
        # No spout gets the outcome of a tuple that is emitted while the topology ends.
        if retries[tup_id] > 2 or reason.kind is ReasonKind.SHUTDOWN or self.world.is_ending():
            super()._give_up(tup_id, reason)
        else:
            self.emit([0, self.world.rng.randrange(KEYS), 1], tup_id=tup_id)


class SimulatedReliableSpout(SimulatedSpout, ReliableSpout):
    """A SimulatedSpout that replays."""

    backoff_secs = 0.5
    attempts_max = 3

    def _give_up(self, tup_id: Hashable, reason: Reason) -> None:
        ReliableSpout.fail(self, tup_id, reason)

    def dead_letter(self, tup_id: Hashable, values: Sequence[Any], reason: Reason) -> None:
        """Note that this is the end of the tuple."""
        if reason.attempt != self.attempts_max:
            self.world.record.violations.append(f"{self.plan.name} {tup_id!r}: dead letter of attempt {reason.attempt}")
        self.world.final(self.plan.name, tup_id, "dead letter")


class RecordingBolt(Bolt):
    """The base of the bolts, which record each receive, emit, ack and fail before it happens."""

    world: ClassVar[World]
    plan: ClassVar[BoltPlan]

    def receive(self, tup: Tuple) -> None:
        self.world.tell(f"{self.plan.name}[{self.task_id}] processes #{tup['serial']}")
        self.world.record.add_receive(tup["serial"], self.task_id)
        self.world.take_time()

    def pass_on(self, tup: Tuple, anchors: Sequence[Tuple], explicit: Sequence[Tuple] | None) -> None:
        """Emit none, one or two tuples that derive from these anchors; `explicit` is the argument `anchors` of emit."""
        world, plan = self.world, self.plan
        for _ in range(world.rng.choice((0, 1, 1, 2)) if tup["hops"] > 0 else 0):
            if world.emits_left <= 0:
                return
            world.emits_left -= 1
            stream, target = world.draw_route(plan)
            alone = world.chance(plan.unanchored)
            serial, key = world.record.next_serial(), world.rng.randrange(KEYS)
            tasks = self.emit(
                [serial, key, tup["hops"] - 1],
                stream=stream,
                anchors=[] if alone else explicit,
                direct_task=target,
                need_task_ids=True,
            )
            assert tasks is not None
            parents = [] if alone else [anchor["serial"] for anchor in anchors]
            world.record.add_bolt_emit(self.task_id, serial, parents, tasks)
            world.record.check_route(plan.name, stream, key, target, tasks)
            world.tell(f"{plan.name}[{self.task_id}] emits #{serial} anchored to {parents} to {tasks}")
            world.take_time()

    def fail_by_chance(self, tups: Iterable[Tuple]) -> None:
        """Raise what fails the tuples, as often as planned."""
        if self.world.chance(self.plan.raises):
            self.note_fail(tups)
            raise InjectedError("raised on purpose")

    def note_ack(self, tups: Iterable[Tuple]) -> None:
        for tup in tups:
            self.world.record.add_ack(tup["serial"], self.task_id)

    def note_fail(self, tups: Iterable[Tuple]) -> None:
        for tup in tups:
            self.world.record.add_fail(tup["serial"], self.task_id)


class AutoBolt(RecordingBolt):
    """Leaves anchors and acks to the runtime."""

    def process(self, tup: Tuple) -> None:
        """Work, then fail_by_chance or be done."""
        self.receive(tup)
        self.pass_on(tup, [tup], None)
        self.fail_by_chance([tup])
        self.note_ack([tup])


class AsyncBolt(RecordingBolt):
    """An AutoBolt whose tuples wait for something, several at once."""

    async def process(self, tup: Tuple) -> None:
        """Work before the wait and after it, then fail_by_chance or be done."""
        world = self.world
        self.receive(tup)
        self.pass_on(tup, [tup], None)
        if world.chance(0.7):
            await asyncio.sleep(world.rng.uniform(0, 0.6) * world.record.timeout_ns / 1e9)
            self.pass_on(tup, [tup], None)
        self.fail_by_chance([tup])
        self.note_ack([tup])


class ManualBolt(RecordingBolt):
    """Anchors, acks and fails by itself. Some tuples it never settles, and some of what it raises nobody catches."""

    auto_anchor = auto_ack = auto_fail = False

    def process(self, tup: Tuple) -> None:
        """Work, then ack, fail, or forget about the tuple."""
        world, plan = self.world, self.plan
        self.receive(tup)
        # Storm's "self-anchored" emits: the same tuple twice among the anchors is as good as once.
        explicit = [tup, tup] if world.chance(0.2) else [tup]
        self.pass_on(tup, [tup], explicit)
        world.crash(plan.escapes)
        if world.chance(plan.holds):
            return
        if world.chance(plan.fails):
            self.note_fail([tup])
            self.fail(tup, "failed on purpose")
        else:
            self.note_ack([tup])
            self.ack(tup)


class AggregateBolt(RecordingBolt):
    """Emits tuples that are anchored to several, which is what makes DAGs, and settles those together."""

    auto_ack = False

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Begin with nothing."""
        self.together: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        """Wait for some more, then work for all of them."""
        self.receive(tup)
        if self.world.chance(self.plan.raises):
            self.note_fail([tup])
            raise InjectedError("raised on purpose")
        self.together.append(tup)
        if len(self.together) < self.plan.together:
            return
        tups, self.together = self.together, []
        self.pass_on(tup, tups, tups)
        self.note_ack(tups)
        for one in tups:
            self.ack(one)


class SimulatedBatchingBolt(RecordingBolt, BatchingBolt):
    """A BatchingBolt, a batch a key."""

    def group_key(self, tup: Tuple) -> object:
        """Return the tuple's key."""
        self.receive(tup)
        return tup["key"]

    def process_batch(self, key: object, tups: list[Tuple]) -> None:
        """Work, then fail_by_chance or be done."""
        self.pass_on(tups[0], tups, None)
        self.fail_by_chance(tups)
        self.note_ack(tups)


class KeeperBolt(RecordingBolt):
    """Holds each tuple for some ticks and asks for more time for it at each of them."""

    auto_ack = False

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Begin with nothing."""
        self.kept: list[list[Any]] = []

    def process(self, tup: Tuple) -> None:
        """Keep it."""
        self.receive(tup)
        self.pass_on(tup, [tup], None)
        self.fail_by_chance([tup])
        self.kept.append([tup, 3 * self.plan.together])

    def process_tick(self, tup: Tuple) -> None:
        """Ack what was held long enough, and ask for time for the rest."""
        for entry in list(self.kept):
            kept, ticks_left = entry
            if ticks_left == 0:
                self.kept.remove(entry)
                self.note_ack([kept])
                self.ack(kept)
            else:
                entry[1] -= 1
                self.world.record.add_reset(kept["serial"], self.task_id)
                self.reset_timeout(kept)


_LOCKED: Final = ("next_tuple", "ack", "fail", "process", "process_rows", "process_tick", "process_batch", "group_key")


def with_lock(component: type[Any]) -> type[Any]:
    """Return a component whose methods hold one lock: only one thread at a time may use the world and its record."""

    def hold(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any) -> Any:
            with LOCK:
                return method(*arguments)

        return call

    names = [name for name in _LOCKED if hasattr(component, name)]
    if issubclass(component, ArrowBolt):
        names.remove("process")  # which it must not override
    body = {name: hold(getattr(component, name)) for name in names}
    return type(component.__name__, (component,), body)
