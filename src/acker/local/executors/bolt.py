"""Bolt executors, which process tuples in their order of arrival, and ticks between them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from acker.local.clock import Clock
from acker.local.collectors import LocalBoltCollector
from acker.local.executors.base import ComponentExecutor, Mode
from acker.local.executors.state_gate import StateGate
from acker.local.executors.task import ComponentTask, name_origin
from acker.local.queues import Queue, TupleQueue
from acker.observe.reasons import Reason, ReasonKind
from acker.topology.bolt import Bolt
from acker.topology.state import KeyValueState
from acker.topology.tuple_batch import TupleBatch, rows_of
from acker.topology.tuples import Tuple, TupleSource
from acker.topology.windowed import WindowedBolt

# The first exceptions of a task, as many as this, are logged at ERROR; then the 16th, 32nd and so on.
_LOGGED_ALWAYS = 10

# How often a bolt that holds windows by event time looks whether its sources are idle.
_WATERMARK_NS = 1_000_000_000

logger = logging.getLogger("acker.local")


class BoltTask(ComponentTask):
    """One task of a bolt: the component, its collector, its ticks.

    Parameters
    ----------
    bolt : Bolt
    bind : callable
        Takes the component, connects it to the collector and initializes it.
    tick : TupleSource or None
        The source of tick tuples.
    tick_ns : int or None
        Time between ticks.
    state : KeyValueState, optional
        That of a StatefulBolt.
    """

    collector: LocalBoltCollector

    def __init__(
        self,
        bolt: Bolt,
        bind: Callable[[Bolt], None],
        collector: LocalBoltCollector,
        *,
        clock: Clock,
        tick: TupleSource,
        tick_ns: int | None,
        state: KeyValueState | None = None,
    ) -> None:
        super().__init__(bolt, bind)
        self.state = state
        self.bolt = bolt
        self.collector = collector
        self.tick_at = None if tick_ns is None else clock.now_ns() + tick_ns
        self._forgotten = 0
        self._error_count = 0
        self._clock = clock
        self._tick = tick
        self.tick_ns = tick_ns
        self._auto_ack = self.bolt.auto_ack and not self.bolt._settles_itself
        self._auto_fail = self.bolt.auto_fail

    @property
    def held_count(self) -> int:
        """Number of tuples that were executed and neither acked nor failed."""
        return self.collector.executed - self.collector.acked - self.collector.failed - self._forgotten

    def inherit(self, previous: BoltTask) -> None:
        """Continue the counts of the task before a restart; what that held is forgotten."""
        self.collector.inherit(previous.collector)
        self._forgotten = previous._forgotten + previous.held_count

    def tick_if_due(self) -> bool:
        """Hand the component a tick tuple if one is due; return whether it was."""
        if self.tick_at is None or self._clock.now_ns() < self.tick_at:
            return False
        self.tick()
        return True

    def tick(self) -> None:
        """Hand the component a tick tuple."""
        assert self.tick_ns is not None
        self.tick_at = self._clock.now_ns() + self.tick_ns
        collector = self.collector
        collector.inputs = ()
        tick = self._tick.tuple_type((self.tick_ns / 1e9,), self._tick)
        tick._owner = collector
        self.call("process_tick", tick)
        if tick._is_settled:  # pystorm's bolts ack ticks too, so that the ack counts.
            collector.executed += 1

    def holds_windows(self) -> bool:
        """Return whether there are tuples in windows by event time."""
        return isinstance(self.bolt, WindowedBolt) and self.bolt._holds_windows()

    def has_due_windows(self) -> bool:
        """Return whether windows by event time have ended that were not processed."""
        return isinstance(self.bolt, WindowedBolt) and self.bolt._has_due_windows()

    def end_windows(self) -> bool:
        """Process the windows by event time that have ended; return whether there were any."""
        if not self.has_due_windows():
            return False
        assert isinstance(self.bolt, WindowedBolt)
        self.collector.inputs = ()
        try:
            self.bolt._end_windows()
        except Exception as error:
            who = self.collector
            name_origin(error, self.bolt.topology_name, who.component, "process_window", who.task)
            raise
        return True

    def release(self) -> bool:
        """Tick a component that holds tuples, since timers have stopped; return whether it released some."""
        before = self.held_count
        if not before or self.tick_at is None:
            return False
        for _ in range(getattr(self.bolt, "ticks_between_batches", 1)):
            self.tick()
        return self.held_count < before

    def run(self, tuples: list[Tuple], begin: int, end: int) -> int:
        """Process tuples[begin:end]; return the index of the first one that was not."""
        return self.collector.run(tuples, begin, end, self.bolt, self._auto_ack, self._on_error)

    def _on_error(self, tup: Tuple, error: BaseException) -> None:
        """Fail a tuple for an exception of `process`; one that ends a program ends the topology too."""
        if self._auto_fail:
            self._fail(tup, error)
        if not self._auto_fail or isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error

    def _fail(self, tup: Tuple, error: BaseException) -> None:
        failed = self.collector.fail_unless_settled(tup, error)
        self.log_exception(f"{'failed' if failed else 'raised after it had acked or failed'} {tup!r}", error)

    def fail_misfits(self, misfits: list[tuple[Tuple, str]]) -> None:
        """Fail tuples whose values do not fit the other form of rows, each with its reason."""
        collector = self.collector
        for tup, text in misfits:
            tup._owner = collector
            collector.executed += 1
            collector.fail_unless_settled(tup, Reason(ReasonKind.FAILED, collector.component, collector.task, text))
        self.log_exception(
            f"failed {len(misfits):,} tuples, the first of them {misfits[0][0]!r}: {misfits[0][1]}", None
        )

    def log_exception(self, what: str, error: BaseException | None) -> None:
        """Log an exception of the component, and what it did to which tuples."""
        collector = self.collector
        self._error_count += 1
        # The spout gets the reason each time. Logging it for each tuple would slow everything down.
        is_logged = self._error_count <= _LOGGED_ALWAYS or self._error_count.bit_count() == 1
        self.bolt.logger.log(
            logging.ERROR if is_logged else logging.DEBUG,
            "%s: task %d %s%s",
            collector.component,
            collector.task,
            what,
            f" (exception {self._error_count:,} of this task)" if self._error_count > _LOGGED_ALWAYS else "",
            exc_info=error,
        )


class BoltExecutor(ComponentExecutor):
    """The executor of some tasks of one bolt.

    Attributes
    ----------
    state_gate : StateGate or None
        Passed by each step if the bolt is a StatefulBolt, so that snapshots are taken between steps.
    has_event_time : bool
        Whether the bolt has windows by event time, which end between two tuples.
    """

    has_event_time = False

    def __init__(self, *args: Any, capacity: int, **options: Any) -> None:
        super().__init__(*args, capacity=capacity, **options)
        self.tasks: list[BoltTask] = []
        self.inbox: TupleQueue = Queue(capacity, self.signal)
        self.state_gate: StateGate | None = None
        self._chunk: tuple[int, list[Tuple]] | None = None
        self._position = 0
        self._watermark_at = 0
        # At the end: whether a step has to follow, since the last one took tuples that a component may hold.
        self._has_to_release = False

    def _step(self, mode: Mode, limit: int) -> bool:
        if self.state_gate is None:
            return super()._step(mode, limit)
        with self.state_gate:
            return super()._step(mode, limit)

    def end_step(self) -> None:
        """End the step or the rest that goes on now; a thread that takes a snapshot calls it."""
        self.outbox.must_yield = True
        self.signal.set()

    def deadline_ns(self) -> int | None:
        """Return when the next tick is due."""
        if self.mode not in (Mode.RUN, Mode.PAUSE):
            return None
        dues = [task.tick_at for task in self.tasks if task.tick_at is not None]
        if self.has_event_time and any(task.holds_windows() for task in self.tasks):
            dues.append(self._watermark_at)
        return min(dues, default=None)

    def is_quiet(self) -> bool:
        """Return whether the buffers and the queue are empty, and all windows that have ended were processed."""
        if not super().is_quiet() or self.inbox.size > 0 or self.outbox.dirty or self._has_to_release:
            return False
        if self.has_event_time and any(task.has_due_windows() for task in self.tasks):
            self.signal.set()
            return False
        return True

    def _work(self, mode: Mode, limit: int) -> bool:
        if mode is Mode.SETTLE or not self.has_room():
            return False
        done, ticked, activated, ends = 0, False, False, mode in (Mode.DRAIN, Mode.DEACTIVATE)
        ended = False
        try:
            if self.has_event_time:
                ended = self._end_windows()
            activated = any([task.activate(self._is_active(task, mode)) for task in self.tasks])  # noqa: C419  Each of them.
            if not ends:
                ticked = any([task.tick_if_due() for task in self.tasks])  # noqa: C419  Each of them.
            done = self._process(mode, limit)
            if ends and not done:
                # The timers have stopped: a component that holds tuples until a tick would hold them for ever.
                ticked = any([task.release() for task in self.tasks])  # noqa: C419
            self._has_to_release = ends and done > 0
        finally:
            self.flush()
            # After the flush: tuples count until what they led to is in another queue.
            if done:
                self.inbox.done(done)
        return done > 0 or ticked or activated or ended

    def _end_windows(self) -> bool:
        self._watermark_at = self.clock.now_ns() + _WATERMARK_NS
        return any([task.end_windows() for task in self.tasks])  # noqa: C419  Each of them.

    @staticmethod
    def _is_active(task: BoltTask, mode: Mode) -> bool:
        return mode is Mode.RUN or (task.active and mode is not Mode.DEACTIVATE)

    def _process(self, mode: Mode, limit: int) -> int:
        done = 0
        while done < limit and self.mode is mode and not self.outbox.must_yield:
            if self._chunk is None:
                self._chunk, self._position = self._take_chunk(), 0
                if self._chunk is None:
                    break
            index, tuples = self._chunk
            begin = self._position
            self._position = self.tasks[index].run(tuples, begin, min(len(tuples), begin + limit - done))
            done += self._position - begin
            if self._position == len(tuples):
                self._chunk = None
        return done

    def _take_chunk(self) -> tuple[int, list[Tuple]] | None:
        """Return the oldest chunk, a batch as tuples."""
        while (chunk := self.inbox.take()) is not None:
            index, item = chunk
            if type(item) is not TupleBatch:
                return chunk
            tuples = item.tuples()
            if item.misfits:
                tuples = self._without_misfits(index, item)
            if tuples:
                return index, tuples
        return None

    def _without_misfits(self, index: int, batch: TupleBatch) -> list[Tuple]:
        """Fail the rows with a value that no object of Python can hold; return the others."""
        tuples, source = batch.tuples(), batch.source
        where = f"field of a row of {source.component!r}, stream {source.stream!r}"
        self.tasks[index].fail_misfits([(tuples[row], f"{where}: {text}") for row, text in batch.misfits.items()])
        self.flush()  # before they cease to count, as after a step
        self.inbox.done(len(batch.misfits))
        return [tup for row, tup in enumerate(tuples) if row not in batch.misfits]

    def in_work(self) -> Iterator[tuple[BoltTask, list[Tuple]]]:
        """Yield the rows of batches that are being processed. Any thread may call it."""
        yield from ()

    @property
    def overrides_deactivate(self) -> bool:
        """Whether its component overrides `deactivate`."""
        return any(type(task.bolt).deactivate is not Bolt.deactivate for task in self.tasks)

    def waiting(self) -> Iterator[tuple[BoltTask, list[Tuple]]]:
        """Yield the tuples that have come, those first among which the step works. Any thread may call it."""
        chunk = self._chunk
        for index, tuples in chain(() if chunk is None else (chunk,), self.inbox.chunks()):
            yield self.tasks[index], rows_of([tuples]) if isinstance(tuples, TupleBatch) else tuples

    def drop(self) -> int:
        """Drop the queue and the buffers; return how many tuples were in the queue."""
        self._chunk = None
        self.discard()
        return self.inbox.clear()


def sample_interval(rate: float) -> int:
    """Return n such that the latency of one tuple in n is measured."""
    return max(1, round(1 / rate)) if rate > 0 else sys.maxsize
