"""The executors of a topology and their connections, made from its graph at the start and after each restart."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from acker._engine.acker import Acker
from acker._engine.ids import IdGenerator
from acker._engine.protocol import UINT64_MAX, divide_up
from acker._flow import Outlet, Route
from acker.errors import TopologyError
from acker.local.batch_collectors import ArrowBoltCollector
from acker.local.batch_routes import BATCH_BYTES
from acker.local.clock import Clock, Signal
from acker.local.collectors import AsyncBoltCollector, ExecutorParts, LocalBoltCollector, LocalSpoutCollector
from acker.local.event_times import EventTimes
from acker.local.executors.acker import AckerExecutor
from acker.local.executors.arrow import ArrowBoltExecutor, ArrowBoltTask
from acker.local.executors.asynchronous import AsyncBoltExecutor, AsyncBoltTask, AsyncSpoutExecutor, AsyncSpoutTask
from acker.local.executors.bolt import BoltExecutor, BoltTask, sample_interval
from acker.local.executors.spout import SpoutExecutor, SpoutTask
from acker.local.executors.state_gate import StateGate
from acker.local.executors.task import name_origin
from acker.local.hooks import Hook
from acker.local.queues import Outbox, TupleQueue
from acker.local.routing import make_route
from acker.local.tracing import Sampler
from acker.observe.failures import FailureLog
from acker.observe.reasons import ReasonKind
from acker.topology.arrow_bolt import ArrowBolt
from acker.topology.bolt import Bolt
from acker.topology.component import Component
from acker.topology.conf import resolve
from acker.topology.graph import Graph, Node, Subscription
from acker.topology.methods import has_async, missing_super_init
from acker.topology.spout import ReliableSpout, Spout
from acker.topology.state import KeyValueState
from acker.topology.stateful import StatefulBolt
from acker.topology.tuples import SYSTEM_COMPONENT, TICK_STREAM, TupleSource
from acker.topology.watermarks import has_event_time
from acker.topology.windowed import Watermark, WindowedBolt

_NS_PER_SEC = 1_000_000_000
_NS_PER_MS = 1_000_000

# Limit of the failed tuples whose attempts are counted for a spout that may never replay them.
_FAILS_MAX = 65_536


# The collector and the task of an executor of bolts; of other executors they are those of any bolt.
_TYPES: Final[dict[type[Any], tuple[Any, Any]]] = {
    AsyncBoltExecutor: (AsyncBoltCollector, AsyncBoltTask),
    ArrowBoltExecutor: (ArrowBoltCollector, ArrowBoltTask),
}


class TaskStates(Protocol):
    """The states of the tasks of stateful bolts."""

    def new_state(self, task: int) -> KeyValueState:
        """Return the state for a new instance of a task."""


@dataclass(frozen=True)
class RuntimeParts:
    """The parts of a runtime that stay the same over restarts."""

    graph: Graph
    conf: Mapping[str, Any]
    clock: Clock
    lifecycle_signal: Signal
    ackers: Sequence[AckerExecutor]
    hooks: Sequence[Hook]
    sampler: Sampler | None
    rng: random.Random
    seeded: bool
    states: TaskStates
    failures: FailureLog | None = None


class ExecutorSet:
    """The executors of spouts and bolts: by default all of a topology.

    A subclass that runs a part of a topology overrides `_tasks_here`, `_inbox_of`, `_ids_of`, `_make_event_times` and
    `_watermark_of`.

    Attributes
    ----------
    spouts : list of SpoutExecutor
    bolts : list of BoltExecutor
    event_times : EventTimes or None
        Those of a topology that has bolts with event time.
    bolts_are_here : bool
        Whether bolts run in these executors, and not elsewhere.
    """

    bolts_are_here: ClassVar[bool] = True

    def __init__(self, parts: RuntimeParts) -> None:
        self.spouts: list[SpoutExecutor] = []
        self.bolts: list[BoltExecutor] = []
        self._parts = parts
        self._batch_tasks: set[int] = set()
        # Task id -> the queue of its executor, and its index in the executor.
        self._inboxes: dict[int, tuple[TupleQueue, int]] = {}
        self._tasks: list[tuple[Node, SpoutExecutor | BoltExecutor, list[int]]] = []
        self._options = {node.name: resolve(parts.conf, node.conf) for node in parts.graph.nodes.values()}
        for node in parts.graph.nodes.values():
            if self._tasks_here(node):
                self._make_executors(node, self._options[node.name])
        for node, executor, tasks in self._tasks:
            for task in tasks:
                executor.tasks.append(self._make_task(node, executor, task))  # type: ignore[arg-type]
        spouts = {
            task.collector.task: (executor.inbox, index)
            for executor in self.spouts
            for index, task in enumerate(executor.tasks)
        }
        for acker in parts.ackers:
            acker.spouts = spouts
            acker.batch_tasks = self._batch_tasks
        self.event_times = self._make_event_times()

    def __iter__(self) -> Iterator[SpoutExecutor | BoltExecutor]:
        yield from self.bolts
        yield from self.spouts

    def spout_tasks(self) -> Iterator[SpoutTask]:
        """Yield the tasks of all spouts."""
        for executor in self.spouts:
            yield from executor.tasks

    def bolt_tasks(self) -> Iterator[BoltTask]:
        """Yield the tasks of all bolts."""
        for executor in self.bolts:
            yield from executor.tasks

    def inherit(self, previous: ExecutorSet) -> None:
        """Take over the counts, replays and open trees of the executors before a restart.

        Trees are open if their spout did not return from user code, or their acker was too slow. The acker may have
        lost them, so they are tracked again before they fail.
        """
        for executor, old in zip(self, previous, strict=True):
            executor.busy_ns = old.busy_ns
        for bolt, old_bolt in zip(self.bolt_tasks(), previous.bolt_tasks(), strict=True):
            bolt.inherit(old_bolt)
        for spout, old_spout in zip(self.spout_tasks(), previous.spout_tasks(), strict=True):
            spout.inherit(old_spout)
            spout.collector.track_again()
            spout.collector.fail_all(ReasonKind.RESTART)
        for executor in self.spouts:
            executor.ack_sender.send()

    def _tasks_here(self, node: Node) -> Sequence[int]:
        """Return the tasks of a component that this set runs."""
        return node.tasks

    def _inbox_of(self, target: int, subscription: Subscription) -> tuple[TupleQueue, int]:  # noqa: ARG002
        """Return the queue of a task that reads a subscription, and the task's index in it."""
        return self._inboxes[target]

    def _ids_of(self, node: Node, task: int) -> IdGenerator:  # noqa: ARG002
        """Return the generator of a task's ids."""
        return IdGenerator(self._parts.rng.getrandbits(64) if self._parts.seeded else None)

    def _make_event_times(self) -> EventTimes | None:
        """Return what the watermarks of bolts with event time are made from; None if there are none."""
        bolts: dict[str, list[BoltExecutor]] = {}
        for node, executor, _ in self._tasks:
            if has_event_time(node.component):
                assert isinstance(executor, BoltExecutor)
                executor.has_event_time = True
                bolts.setdefault(node.name, []).append(executor)
        return EventTimes(self._parts.graph, self.spouts, bolts, self._parts.clock) if bolts else None

    def _watermark_of(self, node: Node, task: int) -> Watermark:  # noqa: ARG002
        """Return the watermark of a task with event time."""
        assert self.event_times is not None
        return self.event_times.watermark_of(node.name)

    def _make_executors(self, node: Node, options: Mapping[str, Any]) -> None:
        parts = self._parts
        capacity = options["topology.executor.receive.buffer.size"]
        here = self._tasks_here(node)
        for number in range(min(node.executors, len(here))):
            tasks = list(here)[number :: node.executors]
            arguments = (f"{node.name}[{'-'.join(map(str, tasks))}]", parts.clock, parts.lifecycle_signal)
            common = {"capacity": capacity, "ackers": [acker.inbox for acker in parts.ackers]}
            executor: SpoutExecutor | BoltExecutor
            if node.kind == "spout":
                poll_ns = int(options["topology.sleep.spout.wait.strategy.time.ms"] * _NS_PER_MS)
                on_loop = has_async(node.component, "next_tuple", "ack", "fail", "keep_alive")
                kind = AsyncSpoutExecutor if on_loop else SpoutExecutor
                executor = kind(*arguments, poll_ns=poll_ns, **common)
                self.spouts.append(executor)
            else:
                if issubclass(node.component, ArrowBolt):
                    limits = {"batch_rows": options["topology.arrow.batch.rows"], "batch_bytes": options[BATCH_BYTES]}
                    executor = ArrowBoltExecutor(*arguments, **limits, **common)
                elif has_async(node.component, "process"):
                    at_once = options["topology.async.max.concurrency"]
                    executor = AsyncBoltExecutor(*arguments, at_once=at_once, **common)
                else:
                    executor = BoltExecutor(*arguments, **common)
                if issubclass(node.component, StatefulBolt):
                    executor.state_gate = StateGate()
                self.bolts.append(executor)
                for index, task in enumerate(tasks):
                    self._inboxes[task] = (executor.inbox, index)
            self._tasks.append((node, executor, tasks))

    def _make_task(self, node: Node, executor: SpoutExecutor | BoltExecutor, task: int) -> SpoutTask | BoltTask:
        parts, options = self._parts, self._options[node.name]
        outbox = executor.outbox
        shared = ExecutorParts(parts.clock, outbox, executor.ack_sender, parts.hooks, parts.sampler, parts.failures)
        ids = self._ids_of(node, task)
        outlets: dict[int, Outlet] = {}
        arguments = (node.name, task, self._routes(node, task, outbox, outlets), outlets.values(), ids, shared)
        if node.kind == "spout":
            unbounded = issubclass(node.component, ReliableSpout)
            collector = LocalSpoutCollector(
                *arguments, fails_max=None if unbounded else _FAILS_MAX, now_ns=parts.clock.now_ns
            )
            kind = AsyncSpoutTask if isinstance(executor, AsyncSpoutExecutor) else SpoutTask
            collector.takes_batches = kind is SpoutTask
            collector.batch_tasks = self._batch_tasks
            bind = functools.partial(self._bind, node, task, collector, None)
            spout = self._make_component(node)
            assert isinstance(spout, Spout)
            spout._on_dead_letter = collector.give_up
            made = kind(spout, bind, collector, options["topology.max.spout.pending"])
            if isinstance(made, AsyncSpoutTask) and isinstance(executor, AsyncSpoutExecutor):
                made.executor, made.loop = executor, executor.loop
            return made
        return self._make_bolt(node, executor, task, arguments)

    def _make_bolt(
        self, node: Node, executor: SpoutExecutor | BoltExecutor, task: int, arguments: tuple[Any, ...]
    ) -> BoltTask:
        parts, options = self._parts, self._options[node.name]
        component = self._make_component(node)
        assert isinstance(component, Bolt)
        collector_type, task_type = _TYPES.get(type(executor), (LocalBoltCollector, BoltTask))
        collector: LocalBoltCollector = collector_type(
            *arguments,
            auto_anchor=component.auto_anchor,
            sample_every=sample_interval(options["topology.stats.sample.rate"]),
            now_ns=parts.clock.now_ns,
        )
        state = parts.states.new_state(task) if isinstance(component, StatefulBolt) else None
        tick_secs = component.tick_secs(options)
        if issubclass(task_type, ArrowBoltTask):
            task_type = functools.partial(task_type, types=self._types_of)
        made: BoltTask = task_type(
            component,
            functools.partial(self._bind, node, task, collector, state),
            collector,
            clock=parts.clock,
            tick=TupleSource(SYSTEM_COMPONENT, TICK_STREAM, -1, ["interval"]),
            tick_ns=None if tick_secs is None else round(tick_secs * 1e9),
            state=state,
        )
        return made

    def _types_of(self, component: str, stream: str) -> dict[str, Any]:
        """Return the types that a stream declares, by field."""
        return dict(self._parts.graph.nodes[component].streams[stream].types)

    def _make_component(self, node: Node) -> Component:
        try:
            component = node.component()
        except Exception as error:
            error.add_note(f"{self._where(node)}: raised by {node.component.__name__}()")
            raise
        wrong = missing_super_init(component)
        if wrong is not None:
            raise TopologyError(f"{self._where(node)}: {wrong}")
        return component

    def _where(self, node: Node) -> str:
        return f"topology {self._parts.graph.name}, component {node.name!r}"

    def _routes(self, node: Node, task: int, outbox: Outbox, outlets: dict[int, Outlet]) -> dict[str | None, Route]:
        parts = self._parts
        graph = parts.graph

        def outlet_of(target: int, subscription: Subscription) -> Outlet:
            if target in outlets:  # One for all streams, so that tuples between two tasks keep their order.
                return outlets[target]
            queue, index = self._inbox_of(target, subscription)
            # Within a loop no executor waits for room, since each would wait for the other. The limit of open tuples of
            # the spouts bounds what is in a loop.
            waits = (subscription.source, subscription.consumer) not in graph.loops
            outlets[target] = outbox.outlet(queue, index, target, waits=waits)
            return outlets[target]

        routes: dict[str | None, Route] = {}
        for name, stream in node.streams.items():
            source = TupleSource(node.name, name, task, stream.fields)
            routes[name] = make_route(
                graph, source, stream, outlet_of, parts.rng, self._options[node.name][BATCH_BYTES]
            )
        if "default" in routes:
            routes[None] = routes["default"]
        return routes

    def _bind(self, node: Node, task: int, collector: Any, state: KeyValueState | None, component: Component) -> None:
        context = self._parts.graph.context(task)
        options = self._options[node.name]
        component._bind(collector, context, options)
        calls: list[tuple[str, tuple[object, ...]]] = [("initialize", (options, context))]
        if state is not None:
            assert isinstance(component, StatefulBolt)
            if isinstance(component, WindowedBolt) and has_event_time(node.component):
                component._watermark = self._watermark_of(node, task)
            component._bind_state(state)
            calls.append(("init_state", (state,)))
        collector.prepare_hooks(options, context)
        self._initialize(node, collector, component, calls)

    def _initialize(
        self, node: Node, collector: Any, component: Component, calls: Sequence[tuple[str, tuple[object, ...]]]
    ) -> None:
        for method, arguments in calls:
            try:
                returned = getattr(component, method)(*arguments)
            except Exception as error:
                name_origin(error, self._parts.graph.name, node.name, method, collector.task)
                raise
            if returned is not None:
                collector.refuse_unrun(method, returned)
                if method == "init_state" and isinstance(returned, Mapping) and returned is not arguments[0]:
                    raise TopologyError(
                        f"{node.name}: init_state returned a {type(returned).__name__}, which nobody keeps; change the "
                        "state in place: state.update(...)"
                    )


def make_acker(
    number: int, options: Mapping[str, Any], clock: Clock, lifecycle_signal: Signal, seed: int | None
) -> AckerExecutor:
    """Make the executor of one acker, from the options of the topology."""
    buckets = options["topology.acker.buckets"]
    high_water = options["topology.acker.high_water"]
    acker_seed = None if seed is None else seed & UINT64_MAX  # so that trees time out in the same order
    timeout_ns = round(options["topology.message.timeout.secs"] * _NS_PER_SEC)
    return AckerExecutor(
        f"__acker[{number}]",
        lambda: Acker(buckets=buckets, high_water=high_water, seed=acker_seed),
        clock=clock,
        lifecycle_signal=lifecycle_signal,
        capacity=options["topology.executor.receive.buffer.size"],
        period_ns=max(1, divide_up(timeout_ns, buckets - 1)),
        generations=buckets,
    )
