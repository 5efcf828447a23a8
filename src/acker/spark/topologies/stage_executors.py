"""The executors of one stage in one Spark task: those of the local runtime, with queues that lead to other stages."""

from __future__ import annotations

import functools
import hashlib
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from acker._engine.ids import IdGenerator
from acker._flow import AckBatch
from acker.local.clock import Flag, SystemClock
from acker.local.executors.asynchronous import AsyncBoltExecutor
from acker.local.executors.base import ComponentExecutor, Mode
from acker.local.executors.bolt import BoltExecutor, BoltTask
from acker.local.executors.spout import SpoutExecutor
from acker.local.queues import Queue, TupleQueue
from acker.local.wiring import ExecutorSet, RuntimeParts, TaskStates
from acker.observe.calls import stack_of_coroutine
from acker.spark.task_watch import CodePlace
from acker.spark.topologies.event_times import BatchWatermark
from acker.spark.topologies.kept_bolts import Contents, KeptBolts, contents_of
from acker.spark.topologies.micro_batch_plan import MicroBatchPlan
from acker.topology.bolt import Bolt
from acker.topology.component import Component
from acker.topology.conf import resolve
from acker.topology.graph import Node, Subscription
from acker.topology.watermarks import has_event_time

_NEVER_NS: Final = sys.maxsize


@dataclass(frozen=True)
class StagePartition:
    """One stage in one partition.

    Attributes
    ----------
    plan : MicroBatchPlan
    stage : int
    number : int
        The number of the partition.
    spout : str or None
        The spout whose DataFrame is read here.
    """

    plan: MicroBatchPlan
    stage: int
    number: int
    spout: str | None = None

    def derive_seed(self, component: str, task: int) -> int:
        """Return the seed of a task's ids; a Spark task that runs again has the same."""
        text = f"{component}\0{task}\0{self.stage}\0{self.number}\0{self.spout}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=self.plan.seed).digest(), "little")


class MicroBatchClock(SystemClock):
    """A clock whose time of day begins with that of the micro-batch, on each machine and in each evaluation."""

    def __init__(self, time_ns: int) -> None:
        self.epoch_ns = time_ns - self.now_ns()


class AckInbox:
    """Gathers the messages to the acker; stands where a local runtime has an acker executor."""

    def __init__(self) -> None:
        self.inbox: Queue[AckBatch] = Queue(sys.maxsize, Flag())
        self.spouts: Mapping[int, Any] = {}


class StageExecutors(ExecutorSet):
    """The executors of the components of one stage that run in one partition.

    Parameters
    ----------
    partition : StagePartition
    states : TaskStates

    Attributes
    ----------
    outside : Queue
        Tuples for other stages: (task, tuples).
    acks : Queue
        Batches of messages to the acker.
    changed : dict of str to list of str
        Component -> attributes that it has changed, and that are lost with the micro-batch. Known after `close`.
    watermarks : list of BatchWatermark
        Those of the tasks with event time.
    """

    def __init__(self, partition: StagePartition, states: TaskStates) -> None:
        self.outside: TupleQueue = Queue(sys.maxsize, Flag())
        self.changed: dict[str, list[str]] = {}
        self.watermarks: list[BatchWatermark] = []
        self._kept: dict[int, Bolt] = {}
        self._making: Bolt | None = None
        self._before: dict[int, Contents] = {}
        self._inside: ComponentExecutor | None = None
        self._calls = 0
        self._partition = partition
        self._stages = partition.plan.stages
        acker = AckInbox()
        self.acks = acker.inbox
        rng = random.Random(partition.derive_seed("", 0))
        plan = partition.plan
        self._timeout_ms = 1_000 * resolve(plan.conf)["topology.message.timeout.secs"]
        ackers: Any = [acker] if plan.tracked else []
        clock = MicroBatchClock(plan.time_ns)
        super().__init__(RuntimeParts(plan.graph, plan.conf, clock, Flag(), ackers, (), None, rng, True, states))
        by_component: dict[str, list[BoltExecutor]] = {}
        for bolt in self.bolts:
            by_component.setdefault(bolt.tasks[0].collector.component, []).append(bolt)
        # Each after those that it reads.
        self.bolts = [executor for name in self._stages.order for executor in by_component.get(name, ())]

    def _tasks_here(self, node: Node) -> Sequence[int]:
        if self._stages.stage_of[node.name] != self._partition.stage:
            return ()
        if node.kind == "spout" and node.name != self._partition.spout:
            return ()
        if node.kind == "spout" or node.name in self._stages.beside:
            return [node.tasks[self._partition.number % len(node.tasks)]]
        return [task for task in node.tasks if task % self._partition.plan.partitions == self._partition.number]

    def _inbox_of(self, target: int, subscription: Subscription) -> tuple[TupleQueue, int]:
        node = self._parts.graph.nodes[subscription.consumer]
        if self._stages.stage_of[node.name] != self._partition.stage:
            return self.outside, target
        return self._inboxes[self._tasks_here(node)[0]]

    def _ids_of(self, node: Node, task: int) -> IdGenerator:
        return IdGenerator(self._partition.derive_seed(node.name, task))

    def _make_event_times(self) -> None:
        """Return nothing: event time moves between micro-batches."""

    def _watermark_of(self, node: Node, task: int) -> BatchWatermark:  # noqa: ARG002
        plan = self._partition.plan
        watermark = BatchWatermark(plan.graph, node.name, plan.ended.get(node.name))
        self.watermarks.append(watermark)
        return watermark

    def _make_bolt(
        self, node: Node, executor: SpoutExecutor | BoltExecutor, task: int, arguments: tuple[Any, ...]
    ) -> BoltTask:
        self._making = KeptBolts.take(self._partition.plan.run, task)
        if self._making is not None:
            self._kept[task] = self._making
        return super()._make_bolt(node, executor, task, arguments)

    def _make_component(self, node: Node) -> Component:
        making, self._making = self._making, None
        return super()._make_component(node) if making is None else making

    def _initialize(
        self, node: Node, collector: Any, component: Component, calls: Sequence[tuple[str, tuple[object, ...]]]
    ) -> None:
        if self._kept.get(collector.task) is not component:
            super()._initialize(node, collector, component, calls)

    def inbox_of_task(self, task: int) -> tuple[TupleQueue, int]:
        """Return the queue of a task of this stage; of a bolt that runs beside its inputs, that of the task here."""
        node = self._parts.graph.nodes[self._parts.graph.component_of(task)]
        here = self._tasks_here(node)
        return self._inboxes[task if task in here else here[0]]

    def enter(self, executor: BoltExecutor | SpoutExecutor, mode: Mode) -> None:
        """Let an executor begin a mode; raise what escapes from its component."""
        executor.set_mode(mode)
        self.step(executor)

    def step(self, executor: BoltExecutor | SpoutExecutor) -> bool:
        """Let an executor step once; raise what escapes from its component."""
        self._enter(executor)
        worked = executor.step()
        self._inside = None
        if executor.crash is not None:
            raise executor.crash
        return worked

    def open(self) -> None:
        """Initialize and activate the bolts. Ticks come from the driver, so no clock gives any."""
        for executor in self.bolts:
            self.enter(executor, Mode.OPEN)
            for task in executor.tasks:
                task.tick_at = None if task.tick_at is None else _NEVER_NS
                task.active = task.collector.task in self._kept
            self.enter(executor, Mode.RUN)
            for task in executor.tasks:
                self._before[task.collector.task] = contents_of(task.bolt)

    def tick(self, components: frozenset[str]) -> None:
        """Give the tasks of some components a tick tuple."""
        for executor in self.bolts:
            for task in executor.tasks:
                if task.collector.component in components and task.tick_at is not None:
                    self.call(executor, task.tick)
                    task.tick_at = _NEVER_NS

    def end_windows(self) -> None:
        """Process the windows by event time that the micro-batches before have ended."""
        for executor in self.bolts:
            for task in executor.tasks:
                if has_event_time(type(task.bolt)):
                    self.call(executor, task.end_windows)

    def call(self, executor: BoltExecutor | SpoutExecutor, function: Callable[[], object]) -> None:
        """Call a function on an executor's thread, and send what it emits."""
        self._enter(executor)
        before = executor.outbox.enter()
        try:
            function()
            executor.flush()
        finally:
            self._inside = None
            executor.outbox.leave(before)

    def _enter(self, executor: ComponentExecutor) -> None:
        self._calls += 1
        self._inside = executor

    def place(self) -> CodePlace | None:
        """Return the component whose code runs, and its tuple; for the watch over this task, on another thread."""
        executor = self._inside
        if executor is None:
            return None
        collectors: list[Any] = [task.collector for task in executor.tasks]
        done = sum(each.executed for each in collectors)
        oldest = executor.oldest_call() if isinstance(executor, AsyncBoltExecutor) else None
        if oldest is None:
            calls = [(each, getattr(each, "inputs", ())) for each in collectors]
            collector, inputs = next((call for call in calls if call[1]), (collectors[0], ()))
            tup, mark, stack = next(iter(inputs), None), (self._calls, done), None
        else:
            coroutine, task, tup = oldest
            collector, mark = task.collector, (id(coroutine), done)
            stack = functools.partial(stack_of_coroutine, coroutine.get_coro())
        return CodePlace(
            collector.component,
            mark,
            collector.task,
            None if tup is None else tup.component,
            None if tup is None else next(iter(tup._ids or ()), None),
            lambda: collector.latency.snapshot().quantile_ms(0.5),
            done,
            self._timeout_ms,
            stack,
        )

    def work(self) -> None:
        """Process what is in the queues."""
        worked = True
        while worked:
            worked = False
            for executor in self.bolts:
                while self.step(executor):
                    worked = True

    def drain(self) -> None:
        """Process everything: bolts are deactivated, those that hold tuples until a tick get one, coroutines end."""
        self.work()
        for executor in self.bolts:
            executor.set_mode(Mode.DEACTIVATE)
            while self._is_busy(executor):
                pass
            for task in executor.tasks:
                task.bolt._settle_held()
            # The tuples that it has released may be for executors behind it.
            self.work()

    def _is_busy(self, executor: BoltExecutor) -> bool:
        """Step once; without anything to do, wait for the coroutines that run."""
        executor.signal.clear()
        if self.step(executor):
            return True
        if not getattr(executor, "running", ()):
            return False
        self._enter(executor)
        executor.rest()
        self._inside = None
        return True

    def close(self) -> None:
        """Close the bolts, but for those that this worker keeps."""
        for executor in self.bolts:
            for task in executor.tasks:
                collector = task.collector
                if task.held_count or collector.has_observers:
                    continue
                before = self._before[collector.task]
                is_kept, changed = KeptBolts.keep(self._partition.plan.run, collector.task, task.bolt, before)
                task.opened = not is_kept
                if changed:
                    self.changed[collector.component] = changed
            self.enter(executor, Mode.CLOSE)
