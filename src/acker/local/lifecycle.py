"""Lifecycle: the start, restarts and end of a topology, written as a generator that yields what it waits for.

The same lines so run in a thread, which sleeps until the condition holds, and under a scheduler, which steps them
between any two steps of the executors.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple

from acker.local.clock import Clock, Signal
from acker.local.executors.acker import AckerExecutor
from acker.local.executors.base import Executor, Mode
from acker.local.opening import Opening
from acker.local.shutdown import Shutdown
from acker.local.topology_run import NS_PER_SEC, Steps, TopologyRun, Wait
from acker.local.until import Until
from acker.local.wiring import ExecutorSet
from acker.observe.reasons import ReasonKind
from acker.observe.run_report import RunOutcome
from acker.observe.stats import RuntimeState

# Back-off before the first restart, doubled for each in a row, and the longest (FsShelter, *Message flow*, scenario F).
_BACK_OFF_SECS, _BACK_OFF_SECS_MAX = 2, 30

# How often conditions that no signal announces are checked, in real time.
_LOOK_SECS: Final = 0.02

logger = logging.getLogger("acker.local")


class Limits(NamedTuple):
    """The limits that the options set to a lifecycle."""

    drain_ns: int
    restarts_max: int
    no_restart: bool
    healthy_ns: int
    watch_ns: int


class Lifecycle(TopologyRun):
    """Leads a topology from its start to its end.

    Parameters
    ----------
    clock, signal, ackers
        As for `TopologyRun`.
    make_executors : callable
        Makes the executors of spouts and bolts.
    spawn : callable
        Gives an executor a thread; does nothing under a scheduler.
    find_stall : callable
        Asks the watchdog; returns its warning, or None.
    holders : callable
        Returns which tasks hold the tuples that are open, as text.
    save_states : callable
        Writes the states of bolts at the end.

    Attributes
    ----------
    state : str
    error, last_crash : BaseException or None
        The exception that ended the topology, and the one that caused the last restart.
    restart_pending : bool
        Whether it waits for a restart after `last_crash`, or has ended while it did.
    running, over : threading.Event
        Set once the spouts have been asked for tuples, and when all has ended.
    """

    name = "lifecycle"

    def __init__(
        self,
        *,
        clock: Clock,
        signal: Signal,
        ackers: Sequence[AckerExecutor],
        make_executors: Callable[[], ExecutorSet],
        spawn: Callable[[Executor], None],
        find_stall: Callable[[], str | None],
        holders: Callable[[], str],
        save_states: Callable[[], None],
        limits: Limits,
    ) -> None:
        super().__init__(clock=clock, signal=signal, ackers=ackers, drain_ns=limits.drain_ns)
        self.state: RuntimeState = "new"
        self.error: BaseException | None = None
        self.last_crash: BaseException | None = None
        self.restarts = 0
        self.outcome: RunOutcome = "stopped"
        self.running = threading.Event()
        self.over = threading.Event()
        self._make_executors = make_executors
        self._spawn = spawn
        self._find_stall = find_stall
        self._save_states = save_states
        self._limits = limits
        self._shutdown = Shutdown(self, holders)
        self._pause_asked = self._paused = False
        self._opened = False
        self._restarts_in_a_row = 0
        self.restart_pending = False
        self._steps = self._live()
        self._wait: Wait | None = Wait(lambda: True)

    # Requests of other threads.

    def stop(self, drain_ns: int | None = None) -> None:
        """Ask for the end: drain, then stop."""
        if drain_ns is not None:
            self.drain_ns = drain_ns
        self.stop_asked = True
        self.signal.set()

    def abort(self) -> None:
        """Ask for the end at once."""
        self.stop_asked = self.abort_asked = True
        self.signal.set()

    def note_outcome(self, until: Until) -> None:
        """Set the outcome to that of a condition that was reached."""
        self.outcome = self.outcome_of(until)

    def fail(self, error: BaseException) -> None:
        """Set the error with which the run ends."""
        self.error, self.outcome = error, "failed"

    def pause(self, paused: bool) -> None:
        """Pause or resume the spouts."""
        self._pause_asked = paused
        self.signal.set()

    @property
    def is_paused(self) -> bool:
        """Whether the spouts are paused, or will be at once."""
        return self._pause_asked

    # Steps.

    def step(self, limit: int = 0) -> bool:  # noqa: ARG002  Executors take one.
        """Advance if the condition holds or its deadline has passed; return whether that moved anything."""
        if self._wait is None:
            return False
        due = self._wait.deadline_ns
        try:
            if not self._wait.until() and (due is None or self.clock.now_ns() < due):
                return False
            self._wait = next(self._steps, None)
        except BaseException as error:  # A component cannot be made, or its `finished` raises.
            logger.exception("the topology cannot continue")
            self._wait = None
            self.fail(error)
            for executor in self.executors or ():
                executor.outbox.close()
            self.set_mode([*self.ackers, *self.living()], Mode.CLOSE)
            self._steps.close()
            self._finish()
        return True

    def deadline_ns(self) -> int | None:
        """Return when the lifecycle advances even if its condition does not hold."""
        return None if self._wait is None else self._wait.deadline_ns

    def work(self) -> None:
        """Step until all is over: the body of the lifecycle's thread."""
        while self._wait is not None:
            self.signal.clear()
            if not self.step():
                self.signal.wait(_LOOK_SECS)

    def _finish(self) -> None:
        try:
            self._save_states()
        except Exception as error:
            logger.exception("the states of the bolts could not be saved; the file has those of the last save, if any")
            if self.error is None:
                self.fail(error)
        self.state = "stopped"
        self.running.set()
        self.over.set()

    # From start to end.

    def _live(self) -> Steps:
        again = True
        while again:
            yield from self._start()
            crashed = self.crashed_executors()
            if not crashed:
                yield from self._run()
                crashed = self.crashed_executors()
            again = bool(crashed) and (yield from self._restart(crashed))
        yield from self._end()
        self._finish()

    def _start(self) -> Steps:
        self._opened = False
        previous, self.executors = self.executors, self._make_executors()
        opening = Opening(self, self._spawn)
        yield from opening.open(self.executors, previous)
        self._opened = opening.complete

    def _run(self) -> Steps:
        self.state = "running"
        self.running.set()
        now = self.clock.now_ns()
        healthy_at, watch_at = now + self._limits.healthy_ns, now + self._limits.watch_ns
        self._paused = False
        while not self.stop_asked and not self.crashed_executors():
            if self._paused is not self._pause_asked:
                self._paused = self._pause_asked
                self.set_mode(self.require_executors().spouts, Mode.PAUSE if self._paused else Mode.RUN)
            if not self.reached.is_set() and self.is_reached():
                self.reached.set()
            now = self.clock.now_ns()
            if now >= healthy_at:
                healthy_at = now + self._limits.healthy_ns
                self._restarts_in_a_row = max(0, self._restarts_in_a_row - 1)
            if now >= watch_at:
                watch_at = now + self._limits.watch_ns
                stall = self._find_stall()
                if stall is not None:
                    self.warn(stall)
            dues = [watch_at]
            if self._restarts_in_a_row:
                dues.append(healthy_at)
            if self.until.elapsed_ns is not None and not self.reached.is_set():
                dues.append(self.started_ns + self.until.elapsed_ns)
            yield Wait(self._has_news, min(dues))

    def _has_news(self) -> bool:
        return (
            self.stop_asked
            or bool(self.crashed_executors())
            or self._paused is not self._pause_asked
            or (not self.reached.is_set() and self.is_reached())
        )

    def _restart(self, crashed: Sequence[Executor]) -> Generator[Wait, None, bool]:
        """Fail what is open, close everything, wait; return whether to start anew."""
        error = crashed[0].crash
        assert error is not None
        self.last_crash = error
        self.state = "restarting"
        logger.error("%s raised, the topology stops", crashed[0].name, exc_info=error)
        # An exception that ends a program ends the topology. CancelledError does not, and a restart may help.
        is_end = isinstance(error, (KeyboardInterrupt, SystemExit))
        if is_end or self._limits.no_restart or self._restarts_in_a_row >= self._limits.restarts_max:
            self.fail(error)
            return False
        self._restarts_in_a_row += 1
        self.restart_pending = True
        yield from self._shutdown.halt(self.clock.now_ns() + self.drain_ns)
        yield from self._shutdown.fail_open_trees(ReasonKind.RESTART)
        yield from self._shutdown.close()
        back_off = min(_BACK_OFF_SECS**self._restarts_in_a_row, _BACK_OFF_SECS_MAX)
        number, most = self._restarts_in_a_row, self._limits.restarts_max
        logger.warning("restart %d of at most %d in %d s", number, most, back_off)
        restart_at = self.clock.now_ns() + back_off * NS_PER_SEC
        yield Wait(lambda: self.stop_asked or self.is_late(), restart_at)
        if self.is_late():
            self.reached.set()
            yield Wait(lambda: self.stop_asked, restart_at)
        if self.stop_asked:
            return False
        self.restarts += 1
        self.restart_pending = False
        return True

    def _end(self) -> Steps:
        shutdown = self._shutdown
        self.state = "draining"
        deadline = self.clock.now_ns() + self.drain_ns
        drains = self._opened and self.error is None and not self.abort_asked
        if drains and not self.crashed_executors():
            yield from shutdown.drain(deadline)
            for executor in self.crashed_executors()[:1]:
                assert executor.crash is not None
                self.fail(executor.crash)
                logger.error("%s raised while the topology drained", executor.name, exc_info=executor.crash)
            shutdown.warn_of_open_trees()
        if self.abort_asked:
            self.outcome = "aborted"
        may_take_long = drains and self.error is None and not self.abort_asked
        yield from shutdown.halt(max(deadline, self.grace_ns()) if may_take_long else self.grace_ns())
        yield from shutdown.fail_open_trees(ReasonKind.SHUTDOWN)
        yield from shutdown.close()
        yield from self.enter_mode(self.ackers, Mode.CLOSE)
