"""The executor that stands for all bolts on the driver: it gathers the spouts' tuples into micro-batches."""

from __future__ import annotations

import bisect
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from acker._engine.ids import IdGenerator
from acker._flow import Outlet
from acker.local.clock import Signal
from acker.local.collectors import ExecutorParts, LocalBoltCollector
from acker.local.executors.base import Mode
from acker.local.executors.bolt import BoltExecutor, BoltTask
from acker.local.executors.spout import SpoutExecutor, SpoutTask
from acker.local.queues import Queue, TupleQueue
from acker.local.wiring import ExecutorSet, RuntimeParts
from acker.observe.latencies import LATENCY_BOUNDS_NS, LatencyRecorder
from acker.spark.topologies.outcome_feed import OutcomeFeed
from acker.spark.topologies.tuple_blocks import MixedChunk, bytes_of
from acker.topology.graph import Node, Subscription
from acker.topology.spout import has_frame
from acker.topology.tuple_batch import TupleBatch
from acker.topology.tuples import Tuple

# A micro-batch begins when so much time has passed since its first tuple: a job takes longer than that to start.
_LINGER_NS: Final = 200_000_000
# How often it is looked whether windows by event time may end although nothing comes.
_WATERMARK_NS: Final = 1_000_000_000


class Taken(NamedTuple):
    """The tuples that a micro-batch has taken from the queue.

    Attributes
    ----------
    chunks : list of MixedChunk
    tuples, size_bytes : int
    largest : (str, int) or None
        The component that emitted the largest tuple, and its size.
    """

    chunks: list[MixedChunk]
    tuples: int = 0
    size_bytes: int = 0
    largest: tuple[str, int] | None = None


class WeighedQueue(Queue[MixedChunk]):
    """The queue of all bolts: it is full by the number of its tuples, or by their bytes.

    Parameters
    ----------
    capacity : int
    signal : Signal
    bytes_max : int
        The bytes of one micro-batch. There is room for two: one that runs and one that waits.

    Attributes
    ----------
    waiting_bytes : int
        Of the tuples that no micro-batch has taken.
    """

    __slots__ = ("_bytes_max", "_held_bytes", "_sizes", "waiting_bytes")

    def __init__(self, capacity: int, signal: Signal, bytes_max: int) -> None:
        super().__init__(capacity, signal)
        self._bytes_max = bytes_max
        self._sizes: deque[list[int]] = deque()
        self._held_bytes = self.waiting_bytes = 0

    def put(self, chunk: MixedChunk, items: int) -> None:
        """Add a chunk, even if there is no room."""
        sizes = _sizes_of(chunk[1])
        with self._lock:
            self._sizes.append(sizes)
            self._held_bytes += sum(sizes)
            self.waiting_bytes += sum(sizes)
            super().put(chunk, items)

    def has_room(self, producer: Signal) -> bool:
        """Return whether a producer may take new work; if not, its signal is set once there is room."""
        with self._lock:
            if self._held_bytes < 2 * self._bytes_max:
                return super().has_room(producer)
            if producer not in self._waiting:
                self._waiting.append(producer)
            return False

    def take_batch(self, *, is_whole: bool = False) -> Taken:
        """Take the oldest tuples that make up a micro-batch: all of a tree, and at least one tree; or all tuples."""
        with self._lock:
            chunks, sizes = list(self._chunks), list(self._sizes)
            self._chunks.clear()
            self._sizes.clear()
            if self.waiting_bytes > self._bytes_max and not is_whole:
                chunks, sizes, left = _split(chunks, sizes, self._bytes_max)
                for chunk, of_chunk in left:
                    self._chunks.append(chunk)
                    self._sizes.append(of_chunk)
            size_bytes = sum(map(sum, sizes))
            self.waiting_bytes -= size_bytes
        largest = max(map(_largest, [rows for _, rows in chunks], sizes), default=None)
        count = sum(len(rows) for _, rows in chunks)
        return Taken(chunks, count, size_bytes, None if largest is None else (largest[1], largest[0]))

    def done_batch(self, taken: Taken) -> None:
        """Make room for what a micro-batch has processed."""
        with self._lock:
            self._held_bytes -= taken.size_bytes
            super().done(taken.tuples)

    def clear(self) -> int:
        """Drop everything; return the number of tuples."""
        with self._lock:
            self._sizes.clear()
            self._held_bytes = self.waiting_bytes = 0
            return super().clear()


def _sizes_of(rows: list[Tuple] | TupleBatch) -> list[int]:
    """Return the bytes of each tuple; of rows as columns, which count as equally large, those of all."""
    if isinstance(rows, TupleBatch):
        return [max(1, -(-rows.columns.nbytes // len(rows))) * len(rows)]
    return [bytes_of(tup) for tup in rows]


def _largest(rows: list[Tuple] | TupleBatch, sizes: list[int]) -> tuple[int, str]:
    """Return the bytes of the largest tuple, and the component that emitted it."""
    if isinstance(rows, TupleBatch):
        return sizes[0] // len(rows), rows.source.component
    return max(sizes), rows[sizes.index(max(sizes))]._source.component


class _Cut:
    """Chooses what of some chunks makes up a micro-batch: what comes first and fits, and all else of these trees."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._roots: set[int] = set()
        self._taken_bytes = 0
        self._is_full = False

    def of(self, rows: list[Tuple] | TupleBatch, sizes: list[int]) -> npt.NDArray[np.bool_]:
        """Return which of the tuples or rows of the next chunk are taken."""
        if isinstance(rows, TupleBatch):
            return self._of_batch(rows, sizes[0])
        return np.array([self._takes(tup._ids or {}, size) for tup, size in zip(rows, sizes, strict=True)], bool)

    def _takes(self, roots: Mapping[int, int], size: int) -> bool:
        self._is_full = self._is_full or (self._taken_bytes > 0 and self._taken_bytes + size > self._bytes_max)
        if self._is_full and self._roots.isdisjoint(roots):
            return False
        self._roots.update(roots)
        self._taken_bytes += size
        return True

    def _of_batch(self, batch: TupleBatch, size: int) -> npt.NDArray[np.bool_]:
        count, root_ids = len(batch), batch.anchors().root_id
        fits = 0
        if not self._is_full:
            fits = min(count, max(0, self._bytes_max - self._taken_bytes) // (size // count))
            if not self._taken_bytes:
                fits = max(1, fits)
            self._is_full = fits < count
        is_taken = np.arange(count) < fits
        if root_ids.size:
            roots = np.concatenate([np.fromiter(self._roots, np.int64, len(self._roots)), root_ids[:fits]])
            is_taken |= np.isin(root_ids, roots)  # those of a spout belong to one tree each
            self._roots.update(root_ids[is_taken].tolist())
        self._taken_bytes += size // count * int(is_taken.sum())
        return is_taken


def _split(
    chunks: Sequence[MixedChunk], sizes: Sequence[list[int]], bytes_max: int
) -> tuple[list[MixedChunk], list[list[int]], list[tuple[MixedChunk, list[int]]]]:
    """Return the first tuples that fit, with all others of their trees; their sizes; and what is left."""
    cut = _Cut(bytes_max)
    first: list[MixedChunk] = []
    of_first: list[list[int]] = []
    left: list[tuple[MixedChunk, list[int]]] = []
    for (task, rows), of_chunk in zip(chunks, sizes, strict=True):
        is_taken = cut.of(rows, of_chunk)
        mine, of_mine = _part(rows, of_chunk, is_taken)
        others, of_others = _part(rows, of_chunk, ~is_taken)
        if len(mine):
            first.append((task, mine))
            of_first.append(of_mine)
        if len(others):
            left.append(((task, others), of_others))
    return first, of_first, left


def _part(
    rows: list[Tuple] | TupleBatch, sizes: list[int], is_part: npt.NDArray[np.bool_]
) -> tuple[list[Tuple] | TupleBatch, list[int]]:
    """Return some tuples or rows of a chunk, and their sizes."""
    if is_part.all():
        return rows, sizes
    if isinstance(rows, TupleBatch):
        part = rows.take(np.flatnonzero(is_part))
        return part, [sizes[0] // len(rows) * len(part)]
    chosen = is_part.tolist()
    return [tup for tup, each in zip(rows, chosen, strict=True) if each], [
        size for size, each in zip(sizes, chosen, strict=True) if each
    ]


class BoltFigures(BoltTask):
    """A bolt task that runs on Spark, as the driver knows it: its figures, which the workers report.

    Attributes
    ----------
    busy_ns : int
        How long it has worked in the micro-batches that have ended.
    """

    busy_ns = 0

    def inherit(self, previous: BoltTask) -> None:
        """Continue the figures of the task before a restart."""
        super().inherit(previous)
        assert isinstance(previous, BoltFigures)
        self.busy_ns = previous.busy_ns

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
    spouts : sequence of SpoutExecutor
        Those that send to it.
    run_batch : callable, optional
        Runs a micro-batch of what `take` returns; returns whether there was anything to do. Without it another thread
        calls `take`.
    batch_tuples, batch_bytes : int
        A micro-batch begins at once when this number of tuples waits, or this number of bytes of them.
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

    inbox: WeighedQueue

    def __init__(self, *args: Any, batch_tuples: int, batch_bytes: int, **options: Any) -> None:
        super().__init__(*args, capacity=batch_tuples, **options)
        self.batch_tuples, self.batch_bytes = batch_tuples, batch_bytes
        self.inbox = WeighedQueue(batch_tuples, self.signal, batch_bytes)
        self.spouts: Sequence[SpoutExecutor] = ()
        self.run_batch: Callable[[bool], bool] | None = None
        self.is_running = False
        self.has_plans = False
        self.may_end: Callable[[], bool] = lambda: False
        self.has_windows_due: Callable[[], bool] | None = None
        self._windows_at: int | None = None
        self._made_ns = self.clock.now_ns()
        self._tick_at: dict[str, int] = {}
        self._first_ns: int | None = None

    def busy_ns_of(self, task: BoltFigures, now_ns: int | None = None) -> int:  # noqa: ARG002
        """Return how long a bolt has worked: this executor's own time is that of jobs, in which all bolts run."""
        return task.busy_ns

    def take(self, *, is_whole: bool) -> Taken:
        """Return the tuples of a micro-batch, or all that wait; call `end` with them at its end."""
        self._first_ns = None
        with contextlib.ExitStack() as pauses:
            # A spout sends its tuples to one bolt after the other. Without a pause, a micro-batch could take a part of
            # a tree, whose effects would stay when the other part fails.
            for spout in self.spouts:
                pauses.enter_context(spout.pause_sending())
            return self.inbox.take_batch(is_whole=is_whole)

    def end(self, taken: Taken) -> None:
        """Make room for what a micro-batch has processed."""
        self.inbox.done_batch(taken)

    def settle(self, tuples: list[Tuple], reason: Any) -> None:
        """Ack tuples of one tree, or fail the tree."""
        for tup in tuples:
            tup._owner = self.settling
            if reason is None:
                self.settling.ack(tup)
            else:
                self.settling.fail(tup, reason)
                return

    def settle_rows(
        self, root_ids: npt.NDArray[np.int64], ack_vals: npt.NDArray[np.int64], reasons: Mapping[int, Any]
    ) -> None:
        """Ack the trees of rows of batches, or fail those with reasons.

        Parameters
        ----------
        root_ids, ack_vals : (n,) int64
            The trees, and the xor of the tuple ids in each.
        reasons : mapping of int to Reason
            By root id.
        """
        sender = self.settling.ack_sender
        failed = [root_id for root_id in root_ids.tolist() if root_id in reasons] if reasons else []
        is_good = ~np.isin(root_ids, failed)
        sender.ack_rows(root_ids[is_good], ack_vals[is_good])
        for root_id in failed:
            sender.fail([root_id], reasons[root_id])

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
            name, tick_ns = task.collector.component, task.tick_ns
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
            ends
            or self.inbox.size >= self.batch_tuples
            or self.inbox.waiting_bytes >= self.batch_bytes
            or now >= self._first_ns + _LINGER_NS
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
    bolts_are_here = False

    def __init__(self, parts: RuntimeParts, batch_tuples: int, batch_bytes: int) -> None:
        ackers = [acker.inbox for acker in parts.ackers]
        bounds = {"batch_tuples": batch_tuples, "batch_bytes": batch_bytes}
        self.spark = SparkExecutor("spark", parts.clock, parts.lifecycle_signal, ackers=ackers, **bounds)
        super().__init__(parts)
        self.bolts, self.spark.spouts = [self.spark], self.spouts
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
                task.busy_ns += counters["busy_ns"]
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
