"""The executor that stands for all bolts on the driver: it gathers the spouts' tuples into micro-batches."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from acker._engine.ids import IdGenerator
from acker._flow import Outlet
from acker.local.collectors import ExecutorParts, LocalBoltCollector
from acker.local.executors.base import Mode
from acker.local.executors.bolt import BoltExecutor, BoltTask
from acker.local.executors.spout import SpoutExecutor, SpoutTask
from acker.local.queues import TupleQueue
from acker.local.wiring import ExecutorSet, RuntimeParts
from acker.observe.latencies import LATENCY_BOUNDS_NS, LatencyRecorder
from acker.spark.topologies.outcome_feed import OutcomeFeed
from acker.spark.topologies.tuple_blocks import Chunk
from acker.topology.graph import Node, Subscription
from acker.topology.spout import has_frame
from acker.topology.tuples import Tuple

# A micro-batch begins when so much time has passed since its first tuple: a job takes longer than that to start.
_LINGER_NS: Final = 200_000_000
# How often it is looked whether windows by event time may end although nothing comes.
_WATERMARK_NS: Final = 1_000_000_000


class BoltFigures(BoltTask):
    """A bolt task that runs on Spark, as the driver knows it: its figures, which the workers report."""

    def open(self) -> None:
        """Do nothing: the workers initialize the component."""

    def activate(self, active: bool) -> bool:  # noqa: ARG002
        """Do nothing."""
        return False

    def close(self) -> None:
        """Do nothing."""

    @property
    def held_count(self) -> int:
        """Nothing is held between two micro-batches."""
        return 0


class SummedLatencies(LatencyRecorder):
    """Adds up what the workers have recorded, and what is recorded here."""

    def __init__(self) -> None:
        super().__init__()
        counts, self._sum_ns = super().totals()
        self._counts = list(counts)

    def add_many(self, ns: int, count: int) -> None:
        """Add the same latency several times."""
        self._counts[bisect.bisect_left(LATENCY_BOUNDS_NS, ns)] += count
        self._sum_ns += ns * count

    def add_totals(self, counts: Sequence[int], sum_ns: int) -> None:
        """Add the totals of one task."""
        self._counts = [one + other for one, other in zip(self._counts, counts, strict=True)]
        self._sum_ns += sum_ns

    def totals(self) -> tuple[tuple[int, ...], int]:
        """Return the counts of the buckets, and the sum of the latencies in ns."""
        counts, sum_ns = super().totals()
        return tuple(one + other for one, other in zip(self._counts, counts, strict=True)), self._sum_ns + sum_ns


class SparkExecutor(BoltExecutor):
    """Gathers the tuples of all spouts for the bolts, which run on Spark.

    Attributes
    ----------
    run_batch : callable, optional
        Runs a micro-batch of what `take` returns; returns whether there was anything to do. Without it another thread
        calls `take`.
    batch_tuples : int
        A micro-batch begins at once when so many tuples wait.
    is_running, has_plans : bool
        Whether a micro-batch runs, and whether one that an earlier run has planned is still to be run.
    settling : LocalBoltCollector
        Acks and fails the tuples that `take` returned.
    may_end : callable
        Returns whether the run ends once no micro-batch runs.
    has_windows_due : callable, optional
        Returns whether windows by event time have ended, if nothing further comes. None: there are no such windows.
    """

    inside = "a micro-batch, whose Spark job is cancelled now,"
    tasks: list[BoltFigures]  # type: ignore[assignment]
    settling: LocalBoltCollector

    def __init__(self, *args: Any, batch_tuples: int, **options: Any) -> None:
        super().__init__(*args, capacity=batch_tuples, **options)
        self.batch_tuples = batch_tuples
        self.run_batch: Callable[[bool], bool] | None = None
        self.is_running = False
        self.has_plans = False
        self.may_end: Callable[[], bool] = lambda: False
        self.has_windows_due: Callable[[], bool] | None = None
        self._windows_at: int | None = None
        self._made_ns = self.clock.now_ns()
        self._tick_at: dict[str, int] = {}
        self._first_ns: int | None = None

    def take(self) -> tuple[list[Chunk], int]:
        """Return all tuples that wait, task by task, and their number; call `inbox.done` with it at the end."""
        chunks: list[Chunk] = []
        self._first_ns = None
        while (chunk := self.inbox.take()) is not None:
            chunks.append(chunk)
        return chunks, sum(len(tuples) for _, tuples in chunks)

    def settle(self, tuples: list[Tuple], reason: Any) -> None:
        """Ack tuples of one tree, or fail the tree."""
        for tup in tuples:
            tup._owner = self.settling
            if reason is None:
                self.settling.ack(tup)
            else:
                self.settling.fail(tup, reason)
                return

    def due_ticks(self) -> frozenset[str]:
        """Return the components whose tick is due; they are due again after their interval.

        At the end timers stop, as they do in one process: a run whose micro-batches take longer than the interval
        would not end otherwise.
        """
        if self.mode is not Mode.RUN or self.may_end():
            return frozenset()
        now = self.clock.now_ns()
        due = set()
        for task in self.tasks:
            name, tick_ns = task.collector.component, task._tick_ns
            if tick_ns is None or name in due:
                continue
            if now >= self._tick_at.setdefault(name, self._made_ns + tick_ns):
                due.add(name)
                self._tick_at[name] = now + tick_ns
        return frozenset(due)

    def deadline_ns(self) -> int | None:
        """Return when the next micro-batch begins, or a source with event time may be idle."""
        dues = [self._windows_at, None if self._first_ns is None else self._first_ns + _LINGER_NS]
        return min((due for due in dues if due is not None), default=None)

    def is_quiet(self) -> bool:
        """Return whether no tuple waits, no micro-batch runs, and no window is due."""
        if not super().is_quiet() or self.is_running or self.has_plans:
            return False
        if self.has_windows_due is not None and self.has_windows_due():
            self.signal.set()
            return False
        return True

    def _work(self, mode: Mode, limit: int) -> bool:  # noqa: ARG002  A micro-batch takes everything.
        if mode is Mode.SETTLE or self.run_batch is None:
            return False
        now = self.clock.now_ns()
        waits = self.inbox.size > 0
        if self.has_windows_due is not None:
            self._windows_at = now + _WATERMARK_NS if mode is Mode.RUN else None
            waits = waits or self.has_windows_due()
        if waits and self._first_ns is None:
            self._first_ns = now
        ends = mode in (Mode.DRAIN, Mode.DEACTIVATE)
        is_due = self._first_ns is not None and (
            ends or self.inbox.size >= self.batch_tuples or now >= self._first_ns + _LINGER_NS
        )
        return self.run_batch(is_due)

    @property
    def overrides_deactivate(self) -> bool:
        """No bolt is deactivated on the driver."""
        return False


class DriverExecutors(ExecutorSet):
    """The executors of the spouts, and one that stands for all bolts.

    Attributes
    ----------
    spark : SparkExecutor
    feeds : dict of int to OutcomeFeed
        Spout task -> its feed, if it has one.
    spouts_by_task : dict of int to (SpoutExecutor, SpoutTask)
    """

    spark: SparkExecutor

    def __init__(self, parts: RuntimeParts, batch_tuples: int) -> None:
        self._batch_tuples = batch_tuples
        ackers = [acker.inbox for acker in parts.ackers]
        self.spark = SparkExecutor(
            "spark", parts.clock, parts.lifecycle_signal, batch_tuples=batch_tuples, ackers=ackers
        )
        super().__init__(parts)
        self.bolts = [self.spark]
        self.spark.settling = self._collector("spark", 0)
        self.feeds: dict[int, OutcomeFeed] = {}
        self.spouts_by_task = {
            task.collector.task: (executor, task) for executor in self.spouts for task in executor.tasks
        }
        for number, (_, task) in self.spouts_by_task.items():
            if has_frame(type(task.spout)):
                task.collector.latency = SummedLatencies()
                self.feed(number)

    def feed(self, number: int) -> OutcomeFeed:
        """Return the feed of a spout task."""
        if number not in self.feeds:
            self.feeds[number] = OutcomeFeed(*self.spouts_by_task[number])
        return self.feeds[number]

    def executor_of(self, number: int) -> SpoutExecutor:
        """Return the executor of a spout task."""
        return self.spouts_by_task[number][0]

    def figures(self) -> dict[int, BoltFigures | SpoutTask]:
        """Return the tasks by their ids."""
        tasks: list[BoltFigures | SpoutTask] = [*self.spark.tasks, *self.spout_tasks()]
        return {task.collector.task: task for task in tasks}

    def count(self, counters_of_tasks: Iterable[Mapping[str, Any]]) -> None:
        """Add the counters of the workers to the figures on the driver."""
        figures = self.figures()
        for counters in counters_of_tasks:
            task: Any = figures[counters["task"]]
            collector: Any = task.collector
            if isinstance(task, BoltFigures):
                collector.executed += counters["executed"]
                collector.acked += counters["acked"]
                collector.failed += counters["failed"]
            for stream, emitted in counters["emitted"].items():
                collector.routes[stream].emitted += emitted
            for outlet, sent in zip(collector.outlets, counters["sent"], strict=True):
                outlet.sent += sent
            for name, count in counters["user"].items():
                collector.count(name, count)
            if isinstance(task, BoltFigures):
                collector.latency.add_totals(*counters["latency"])

    def count_rows(self, acked: Mapping[int, int], elapsed_ns: int) -> None:
        """Count the latency of the rows of DataFrames that were acked, by spout task.

        No row has a time of its own: workers read them all in the micro-batch, which lasted this long.
        """
        for number, count in acked.items():
            latency = self.spouts_by_task[number][1].collector.latency
            assert isinstance(latency, SummedLatencies)
            latency.add_many(elapsed_ns, count)

    def _make_event_times(self) -> None:
        """Return nothing: event time moves between micro-batches."""

    def _make_executors(self, node: Node, options: Mapping[str, Any]) -> None:
        if node.kind == "spout":
            super()._make_executors(node, options)
        else:
            self._tasks.append((node, self.spark, list(node.tasks)))

    def _inbox_of(self, target: int, subscription: Subscription) -> tuple[TupleQueue, int]:  # noqa: ARG002
        return self.spark.inbox, target

    def _make_bolt(
        self,
        node: Node,
        executor: SpoutExecutor | BoltExecutor,  # noqa: ARG002
        task: int,  # noqa: ARG002
        arguments: tuple[Any, ...],
    ) -> BoltTask:
        collector = LocalBoltCollector(
            *arguments, auto_anchor=True, sample_every=sys.maxsize, now_ns=self._parts.clock.now_ns
        )
        collector.latency = SummedLatencies()
        component: Any = self._make_component(node)
        tick_secs = component.tick_secs(self._options[node.name])
        tick: Any = None
        return BoltFigures(
            component,
            lambda _: None,
            collector,
            clock=self._parts.clock,
            tick=tick,
            tick_ns=None if tick_secs is None else round(tick_secs * 1e9),
        )

    def _collector(self, component: str, task: int) -> LocalBoltCollector:
        spark = self.spark
        shared = ExecutorParts(self._parts.clock, spark.outbox, spark.ack_sender)
        outlets: dict[int, Outlet] = {}
        return LocalBoltCollector(
            component,
            task,
            {},
            outlets.values(),
            IdGenerator(),
            shared,
            auto_anchor=True,
            sample_every=sys.maxsize,
            now_ns=self._parts.clock.now_ns,
        )
