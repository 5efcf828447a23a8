"""TopologyRun: the state of one run of a topology, which the parts of its lifecycle share."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, NamedTuple

from acker._engine.protocol import acker_of
from acker.local.clock import Clock, Signal
from acker.local.executors.acker import AckerExecutor
from acker.local.executors.base import Executor, Mode
from acker.local.executors.bolt import BoltExecutor
from acker.local.executors.spout import SpoutExecutor
from acker.local.until import Until
from acker.local.wiring import ExecutorSet
from acker.observe.run_report import Abandoned, RunOutcome

NS_PER_SEC: Final = 1_000_000_000

# How long executors may take to end their step when a stop has no time left.
GRACE_SECS: Final = 1

# How many warnings about a topology that stands still a report keeps: the last ones.
_WARNINGS_MAX: Final = 100

logger = logging.getLogger("acker.local")


class Wait(NamedTuple):
    """A condition that the lifecycle waits for, and when it continues without it."""

    until: Callable[[], bool]
    deadline_ns: int | None = None


# The lifecycle and its parts are generators: they yield what they wait for.
Steps = Generator[Wait, None, None]


class TopologyRun:
    """The state of one run, which the parts of its lifecycle share.

    Parameters
    ----------
    clock : Clock
    signal : Signal
        Set when the lifecycle should look again.
    ackers : sequence of AckerExecutor
    drain_ns : int
        How long open trees may take to end when the topology stops.

    Attributes
    ----------
    executors : ExecutorSet or None
        Those of spouts and bolts; None before the start, others after each restart.
    stop_asked, abort_asked : bool
        Whether the end was asked for, and whether it is to come at once.
    until : Until
        The condition at which `reached` is set.
    reached : threading.Event
    started_ns : int
        When it began, by the clock.
    """

    def __init__(self, *, clock: Clock, signal: Signal, ackers: Sequence[AckerExecutor], drain_ns: int) -> None:
        self.clock = clock
        self.signal = signal
        self.ackers = ackers
        self.executors: ExecutorSet | None = None
        self.started_ns = clock.now_ns()
        self.drain_ns = drain_ns
        self.stop_asked = self.abort_asked = False
        self.until = Until()
        self.reached = threading.Event()
        self.stalls: deque[str] = deque(maxlen=_WARNINGS_MAX)
        self.abandoned: list[Abandoned] = []
        self.undelivered = 0
        self._steps_seen = -1

    def begin(self) -> None:
        """Count the time of the run from now on."""
        self.started_ns = self.clock.now_ns()

    def watch_for(self, until: Until) -> None:
        """Set the condition at which `reached` is set. Any thread may call it."""
        self.until = until  # before the next line: until then the lifecycle looks at no condition
        self.reached.clear()
        self.signal.set()

    def require_executors(self) -> ExecutorSet:
        """Return the executors of a run that was started."""
        assert self.executors is not None
        return self.executors

    def living(self) -> list[SpoutExecutor | BoltExecutor]:
        """Return the executors that have a thread and were neither closed nor abandoned."""
        return [
            executor
            for executor in self.executors or ()
            if executor.spawned and executor.done is not Mode.CLOSE and not executor.abandoned
        ]

    def crashed_executors(self) -> list[Executor]:
        """Return the executors, ackers included, from which an exception escaped."""
        executors: Iterable[Executor] = self.executors or ()
        return [executor for executor in (*self.ackers, *executors) if executor.crash is not None]

    def set_mode(self, executors: Iterable[Executor], mode: Mode) -> None:
        """Set the mode of executors."""
        for executor in executors:
            executor.set_mode(mode)

    def enter_mode(self, executors: Sequence[Executor], mode: Mode) -> Steps:
        """Set the mode of executors, and wait until they have seen it."""
        self.set_mode(executors, mode)
        yield Wait(
            lambda: all(executor.seen is mode or executor.crash is not None for executor in executors), self.grace_ns()
        )

    def grace_ns(self) -> int:
        """Return when executors that were asked just now should have ended their step."""
        return self.clock.now_ns() + GRACE_SECS * NS_PER_SEC

    def warn(self, text: str) -> None:
        """Log why the topology stands still, and keep it for the report."""
        self.stalls.append(text)
        logger.warning("%s", text)

    def acked_count(self) -> int:
        """Return how many trees were acked since the start."""
        return 0 if self.executors is None else sum(task.collector.acked for task in self.executors.spout_tasks())

    def pending_count(self) -> int:
        """Return how many trees are open now."""
        return (
            0 if self.executors is None else sum(task.collector.pending_count for task in self.executors.spout_tasks())
        )

    def open_roots(self, acker: AckerExecutor) -> list[int]:
        """Return the root ids of the trees that are open at the spouts and belong to an acker."""
        number, count = self.ackers.index(acker), len(self.ackers)
        tasks = () if self.executors is None else self.executors.spout_tasks()
        roots = [root_id for task in tasks for root_id in task.collector.open_root_ids()]
        return [root_id for root_id in roots if acker_of(root_id, count) == number]

    def is_late(self) -> bool:
        """Return whether the time that the run was given is up."""
        elapsed_ns = self.until.elapsed_ns
        return elapsed_ns is not None and self.clock.now_ns() >= self.started_ns + elapsed_ns

    def is_reached(self) -> bool:
        """Return whether the condition `until` holds."""
        if self.until.elapsed_ns is not None:
            return self.is_late()
        if self.until.acked is not None and self.acked_count() >= self.until.acked:
            return True
        # If no more tuples will come, no more will be acked either.
        wanted = self.until.drained or self.until.acked is not None
        return wanted and all(task.finished for task in self.require_executors().spout_tasks()) and self.is_quiet()

    def outcome_of(self, until: Until) -> RunOutcome:
        """Return the outcome of a run whose condition was reached."""
        if until.elapsed_ns is not None:
            return "elapsed"
        return "reached" if until.acked is not None and self.acked_count() >= until.acked else "drained"

    def is_quiet(self) -> bool:
        """Return whether nothing is pending and nothing moves.

        That is when all queues are empty at two looks in a row and no step did any work between them.
        """
        living = self.living()
        quiet = all(executor.is_quiet() for executor in living) and all(acker.inbox.size == 0 for acker in self.ackers)
        quiet = quiet and not any(executor.is_waiting() for executor in living if isinstance(executor, SpoutExecutor))
        steps = sum(executor.steps for executor in (*living, *self.ackers))
        unchanged = quiet and steps == self._steps_seen
        self._steps_seen = steps if quiet else -1
        return unchanged
