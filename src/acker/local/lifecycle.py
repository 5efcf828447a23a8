"""The life of a topology: start, restarts, drain, stop. Written as a generator of things to wait for.

So the same lines run in a thread of their own, which sleeps until what they wait for is true, and under a scheduler,
which steps them between any two steps of the executors.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple

from acker.local.clock import Clock, Flag
from acker.local.executors.acker import AckerExecutor
from acker.local.executors.base import ComponentExecutor, Executor, Mode
from acker.local.executors.bolt import BoltExecutor
from acker.local.executors.spout import SpoutExecutor
from acker.local.observe.metrics import Abandoned, RunOutcome, RuntimeState
from acker.local.observe.tracing import seconds
from acker.local.until import Until
from acker.local.wiring import ExecutorSet
from acker.topology.reasons import ReasonKind

_NS = 1_000_000_000

# Back-off before the first restart, doubled for each in a row, and the longest (FsShelter, *Message flow*, scenario F).
_BACK_OFF_SECS, _BACK_OFF_SECS_MAX = 2, 30

# How long executors may take to end their step when a stop has no time left.
_GRACE_SECS = 1

# After how long an `initialize` that has not returned is named, and again each time that has doubled.
_TELL_OPENING_SECS = 10

# How often conditions that no signal announces are looked at, in real time.
_LOOK_SECS = 0.02

_STALLS_MAX = 100

logger = logging.getLogger("acker.local")


class Wait(NamedTuple):
    """What the life waits for: a condition, and when it goes on without it."""

    until: Callable[[], bool]
    deadline_ns: int | None = None


Life = Generator[Wait, None, None]


class Limits(NamedTuple):
    """What the lifecycle takes from the conf."""

    drain_ns: int
    restarts_max: int
    no_restart: bool
    healthy_ns: int
    watch_ns: int


class Lifecycle:
    """Leads a topology through its life.

    Parameters
    ----------
    make_executors : callable
        Makes the executors of spouts and bolts.
    spawn : callable
        Gives an executor a thread; does nothing under a scheduler.
    look : callable
        Asks the watchdog; returns what it has to say, or None.
    holders : callable
        Returns who holds what is open.

    Attributes
    ----------
    state : str
    error, last_crash : BaseException or None
        What the topology stopped with, and what caused the last restart.
    running, over : threading.Event
        Set once the spouts have been asked for tuples, and when all has ended.
    reached : threading.Event
        Set when what `until` says is so.
    """

    name = "lifecycle"

    def __init__(
        self,
        *,
        clock: Clock,
        ackers: Sequence[AckerExecutor],
        make_executors: Callable[[], ExecutorSet],
        spawn: Callable[[Executor], None],
        look: Callable[[], str | None],
        holders: Callable[[], str],
        limits: Limits,
    ) -> None:
        self.clock = clock
        self.signal = Flag()
        self.state: RuntimeState = "new"
        self.error: BaseException | None = None
        self.last_crash: BaseException | None = None
        self.restarts = 0
        self.abandoned: list[Abandoned] = []
        self.stalls: deque[str] = deque(maxlen=_STALLS_MAX)
        self.untold = 0
        self.until = Until()
        self.outcome: RunOutcome = "stopped"
        self.running = threading.Event()
        self.reached = threading.Event()
        self.over = threading.Event()
        self.executors: ExecutorSet | None = None
        self.ackers = ackers
        self.started_ns = clock.now_ns()
        self._make_executors = make_executors
        self._spawn = spawn
        self._look = look
        self._holders = holders
        self._limits = limits
        self._paused = self._resting = False
        self._stop = False
        self._abort = False
        self._drain_ns = limits.drain_ns
        self._opened = False
        self._in_a_row = 0
        self._moved = -1
        self._life = self._live()
        self._wait: Wait | None = Wait(lambda: True)

    # What other threads may ask for.

    def stop(self, drain_ns: int | None = None) -> None:
        """Ask for the end: drain, then stop."""
        if drain_ns is not None:
            self._drain_ns = drain_ns
        self._stop = True
        self.signal.set()

    def abort(self) -> None:
        """Ask for the end at once."""
        self._stop = self._abort = True
        self.signal.set()

    def pause(self, paused: bool) -> None:
        """Let the spouts rest, or go on."""
        self._paused = paused
        self.signal.set()

    # Steps.

    def step(self, limit: int = 0) -> bool:  # noqa: ARG002  Executors take one.
        """Go on if what is waited for is so, or its time is over; say whether that moved anything."""
        if self._wait is None:
            return False
        due = self._wait.deadline_ns
        try:
            if not self._wait.until() and (due is None or self.clock.now_ns() < due):
                return False
            self._wait = next(self._life, None)
        except BaseException as error:  # A component cannot be made, or its `finished` raises.
            logger.exception("the topology cannot go on")
            self._wait, self.error, self.outcome = None, error, "failed"
            for executor in self.executors or ():
                executor.outbox.close()
            self._set([*self.ackers, *self._living()], Mode.CLOSE)
            self._life.close()
            self._over()
        return True

    def deadline_ns(self) -> int | None:
        """Return when the lifecycle goes on whatever happens."""
        return None if self._wait is None else self._wait.deadline_ns

    def work(self) -> None:
        """Step until all is over: the body of the lifecycle's thread."""
        while self._wait is not None:
            self.signal.clear()
            if not self.step():
                self.signal.wait(_LOOK_SECS)

    # The life.

    def _live(self) -> Life:
        again = True
        while again:
            yield from self._start()
            crashed = self._crashed()
            if not crashed:
                yield from self._run()
                crashed = self._crashed()
            again = bool(crashed) and (yield from self._restart(crashed))
        yield from self._end()
        self._over()

    def _over(self) -> None:
        self.state = "stopped"
        self.running.set()
        self.over.set()

    def _start(self) -> Life:
        self._opened = False
        previous, self.executors = self.executors, self._make_executors()
        if previous is None:
            for acker in self.ackers:
                self._give_life(acker)
        else:
            self.executors.inherit(previous)
        yield from self._ask(self.ackers, Mode.RUN)
        for executors in (self.executors.bolts, self.executors.spouts):
            if self._stop:
                return
            for executor in executors:
                self._give_life(executor)
            self._set(executors, Mode.OPEN)
            yield from self._open(executors)
            if self._abort or self._crashed() or self._is_opening(executors):
                return
            self._set(executors, Mode.RUN)
        self._opened = True

    def _open(self, executors: Sequence[Executor]) -> Life:
        """Wait until components are initialized. Who stops does not wait for ever for one that does not return."""
        pause_ns = _TELL_OPENING_SECS * _NS
        tell_at = self.clock.now_ns() + pause_ns
        told_late = False
        while self._may_open(executors):
            is_known = self.reached.is_set()  # that the time of the run is up
            yield Wait(
                lambda is_known=is_known: not self._may_open(executors) or (self._is_late() and not is_known),  # type: ignore[misc]
                tell_at,
            )
            if not self._may_open(executors):
                break
            if self._is_late() and not is_known:
                self._tell_who_opens(executors, "the time of the run is up", _GRACE_SECS)
                told_late = True
                self.reached.set()
            elif self.clock.now_ns() >= tell_at:
                self._tell_who_opens(executors, "the topology waits to begin")
                pause_ns *= 2
                tell_at = self.clock.now_ns() + pause_ns
        # A run that was given a time ends then: nothing is pending that could be drained.
        wait_ns = _GRACE_SECS * _NS if self._is_late() else self._drain_ns
        if self._is_opening(executors) and not told_late:
            self._tell_who_opens(executors, "the topology stops", wait_ns / _NS)
        yield Wait(lambda: not self._is_opening(executors), self.clock.now_ns() + wait_ns)

    def _tell_who_opens(self, executors: Sequence[Executor], what: str, wait_secs: float | None = None) -> None:
        now_ns = self.clock.now_ns()
        who = [
            f"{each.name} for {seconds((now_ns - since) // 1_000_000)}"
            for each in executors
            if each.done is not Mode.OPEN and (since := each.step_since_ns) is not None
        ]
        if who:
            wait = "" if wait_secs is None else f"; it is left behind unless it returns within {wait_secs:g} s"
            text = f"{what} and initialize() has not returned: {', '.join(who)}{wait}"
            self.stalls.append(text)
            logger.warning("%s", text)

    def _is_late(self) -> bool:
        """Say whether the time that the run was given is up."""
        elapsed_ns = self.until.elapsed_ns
        return elapsed_ns is not None and self.clock.now_ns() >= self.started_ns + elapsed_ns

    def _is_opening(self, executors: Sequence[Executor]) -> bool:
        is_open = all(executor.done is Mode.OPEN for executor in executors)
        return not (is_open or self._abort or self._crashed())

    def _may_open(self, executors: Sequence[Executor]) -> bool:
        return not self._stop and self._is_opening(executors)

    def _give_life(self, executor: Executor) -> None:
        executor.spawned = True
        self._spawn(executor)

    def _run(self) -> Life:
        assert self.executors is not None
        self.state = "running"
        self.running.set()
        now = self.clock.now_ns()
        healthy_at, watch_at = now + self._limits.healthy_ns, now + self._limits.watch_ns
        self._resting = False
        while not self._stop and not self._crashed():
            if self._resting is not self._paused:
                self._resting = self._paused
                self._set(self.executors.spouts, Mode.PAUSE if self._resting else Mode.RUN)
            if not self.reached.is_set() and self._is_reached():
                self.reached.set()
            now = self.clock.now_ns()
            if now >= healthy_at:
                healthy_at = now + self._limits.healthy_ns
                self._in_a_row = max(0, self._in_a_row - 1)
            if now >= watch_at:
                watch_at = now + self._limits.watch_ns
                self._watch()
            dues = [healthy_at] * bool(self._in_a_row) + [watch_at]
            if self.until.elapsed_ns is not None and not self.reached.is_set():
                dues.append(self.started_ns + self.until.elapsed_ns)
            yield Wait(
                lambda: (
                    self._stop
                    or bool(self._crashed())
                    or self._resting is not self._paused
                    or (not self.reached.is_set() and self._is_reached())
                ),
                min(dues),
            )

    def _restart(self, crashed: Sequence[Executor]) -> Generator[Wait, None, bool]:
        """Fail what is open, close everything, wait; say whether to start anew."""
        assert self.executors is not None
        error = crashed[0].crash
        assert error is not None
        self.last_crash = error
        self.state = "restarting"
        logger.error("%s raised, the topology stops", crashed[0].name, exc_info=error)
        # What ends a program ends the topology. A CancelledError is no Exception, and may be mended by a restart.
        is_end = isinstance(error, (KeyboardInterrupt, SystemExit))
        if is_end or self._limits.no_restart or self._in_a_row >= self._limits.restarts_max:
            self.error = error
            self.outcome = "failed"
            return False
        self._in_a_row += 1
        yield from self._halt(self.clock.now_ns() + self._drain_ns)
        yield from self._settle(ReasonKind.RESTART)
        yield from self._close()
        back_off = min(_BACK_OFF_SECS**self._in_a_row, _BACK_OFF_SECS_MAX)
        logger.warning("restart %d of at most %d in %d s", self._in_a_row, self._limits.restarts_max, back_off)
        restart_at = self.clock.now_ns() + back_off * _NS
        yield Wait(lambda: self._stop or self._is_late(), restart_at)
        if self._is_late():
            self.reached.set()
            yield Wait(lambda: self._stop, restart_at)
        if self._stop:
            return False
        self.restarts += 1
        return True

    def _end(self) -> Life:
        assert self.executors is not None
        self.state = "draining"
        deadline = self.clock.now_ns() + self._drain_ns
        drains = self._opened and self.error is None and not self._abort
        if drains and not self._crashed():
            self._set(self.executors.spouts, Mode.PAUSE)
            yield from self._ask(self.ackers, Mode.DRAIN)
            self._set(self.executors.bolts, Mode.DRAIN)
            yield from self._quiet(deadline)
            yield from self._deactivate(deadline)
            for executor in self._crashed()[:1]:
                self.error, self.outcome = executor.crash, "failed"
                logger.error("%s raised while the topology drained", executor.name, exc_info=executor.crash)
            self._tell_what_is_left()
        if self._abort:
            self.outcome = "aborted"
        yield from self._halt(max(deadline if drains and self.error is None and not self._abort else 0, self._grace()))
        yield from self._settle(ReasonKind.SHUTDOWN)
        yield from self._close()
        yield from self._ask(self.ackers, Mode.CLOSE)

    def _quiet(self, deadline_ns: int) -> Life:
        yield Wait(lambda: self._abort or bool(self._crashed()) or self._is_quiet(), deadline_ns)

    def _deactivate(self, deadline_ns: int) -> Life:
        """Tell bolts that no tuple comes any more, one component after the other; what they emit is processed."""
        assert self.executors is not None
        for _, group in itertools.groupby(
            self.executors.bolts, key=lambda executor: executor.tasks[0].collector.component
        ):
            executors = list(group)
            if self._abort or self._crashed() or self.clock.now_ns() >= deadline_ns:
                return  # each hears it when it is closed
            if any(executor.hears_deactivate for executor in executors):
                self._set(executors, Mode.DEACTIVATE)
                yield from self._quiet(deadline_ns)

    def _tell_what_is_left(self) -> None:
        """Say who holds what is still open when the time to drain has ended."""
        assert self.executors is not None
        count = sum(len(task.collector.pending) for task in self.executors.spout_tasks())
        if count:
            trees = "1 tree was" if count == 1 else f"{count:,} trees were"
            text = f"{trees} open when the time to drain had ended: {self._holders()}"
            self.stalls.append(text)
            logger.warning("%s", text)

    # Parts of it.

    def _halt(self, deadline_ns: int) -> Life:
        """Let all steps end; who does not is abandoned."""
        executors = self._living()
        self._set(executors, Mode.HALT)
        yield Wait(lambda: self._abort or all(executor.seen is Mode.HALT for executor in executors), deadline_ns)
        yield Wait(lambda: all(executor.seen is Mode.HALT for executor in executors), min(deadline_ns, self._grace()))
        for executor in executors:
            if executor.seen is not Mode.HALT:
                self._abandon(executor)

    def _grace(self) -> int:
        return self.clock.now_ns() + _GRACE_SECS * _NS

    def _abandon(self, executor: ComponentExecutor) -> None:
        executor.abandoned = True
        executor.done = Mode.CLOSE  # Should it ever come back, its thread ends.
        frame = None
        if executor.thread is not None and executor.thread.ident is not None:
            frame = sys._current_frames().get(executor.thread.ident)
        stack = "" if frame is None else "".join(traceback.format_stack(frame))
        for task in executor.tasks:
            collector = task.collector
            self.abandoned.append(Abandoned(collector.component, collector.task, stack))
        logger.error("%s is still inside user code and is abandoned:\n%s", executor.name, stack)

    def _settle(self, kind: ReasonKind) -> Life:
        """Fail what is open through the ackers, and let the spouts hear it; all executors are halted."""
        assert self.executors is not None
        for executor in self.executors:
            executor.outbox.close()
            if not executor.abandoned:
                executor.drop()
        listening = [executor for executor in self._living() if isinstance(executor, SpoutExecutor)]
        deadline = self._grace() + self._drain_ns
        while True:
            self._fail_all(listening, kind)
            self._set(listening, Mode.SETTLE)
            yield Wait(lambda: self._lost() != [] or all(executor.is_settled() for executor in listening), deadline)
            if not self._lost() or self.clock.now_ns() >= deadline:
                break
            self._set(listening, Mode.HALT)
            yield Wait(lambda: all(executor.seen is Mode.HALT for executor in listening), deadline)
        for collector in [task.collector for task in self.executors.spout_tasks()]:
            count = len(collector.pending)
            if count:
                self.untold += count
                logger.error("%s: task %d did not hear of %d trees", collector.component, collector.task, count)

    def _fail_all(self, listening: Sequence[SpoutExecutor], kind: ReasonKind) -> None:
        """Send a FAIL for every open tree, and first its TRACK where an acker has lost its memory."""
        assert self.executors is not None
        lost = self._lost()
        for acker in lost:
            acker.revive()
        for collector in [task.collector for spout in listening for task in spout.tasks]:
            if lost:
                collector.track_again()
            collector.fail_all(kind)
        for executor in self.executors:
            if not executor.abandoned:
                executor.post.send()

    def _lost(self) -> list[AckerExecutor]:
        return [acker for acker in self.ackers if acker.crash is not None]

    def _close(self) -> Life:
        closing = self._living()
        self._set(closing, Mode.CLOSE)
        yield Wait(lambda: all(executor.done is Mode.CLOSE for executor in closing), self._grace() + self._drain_ns)
        for executor in closing:
            if executor.done is not Mode.CLOSE:
                self._abandon(executor)

    def _ask(self, executors: Sequence[Executor], mode: Mode) -> Life:
        self._set(executors, mode)
        yield Wait(
            lambda: all(executor.seen is mode or executor.crash is not None for executor in executors), self._grace()
        )

    def _set(self, executors: Iterable[Executor], mode: Mode) -> None:
        for executor in executors:
            executor.ask(mode)

    def _living(self) -> list[SpoutExecutor | BoltExecutor]:
        """Return the executors that have a thread and were neither closed nor abandoned."""
        return [executor for executor in self.executors or () if executor.spawned and executor.done is not Mode.CLOSE]

    # What is so.

    def _crashed(self) -> list[Executor]:
        executors: Iterable[Executor] = self.executors or ()
        return [executor for executor in (*self.ackers, *executors) if executor.crash is not None]

    def _is_reached(self) -> bool:
        assert self.executors is not None
        if self.until.elapsed_ns is not None:
            return self._is_late()
        if self.until.acked is not None and self._acked() >= self.until.acked:
            return True
        # Where no more will come, no more will be acked either.
        wanted = self.until.drained or self.until.acked is not None
        return wanted and all(task.finished for task in self.executors.spout_tasks()) and self._is_quiet()

    def why_reached(self, until: Until) -> RunOutcome:
        """Return as what a run ends whose condition was reached."""
        if until.elapsed_ns is not None:
            return "elapsed"
        return "reached" if until.acked is not None and self._acked() >= until.acked else "drained"

    def _acked(self) -> int:
        return sum(task.collector.acked for task in self.executors.spout_tasks()) if self.executors is not None else 0

    def _is_quiet(self) -> bool:
        """Say whether nothing is pending and nothing moves: all queues empty twice, and no step worked in between."""
        living = self._living()
        quiet = all(executor.is_quiet() for executor in living) and all(acker.inbox.size == 0 for acker in self.ackers)
        quiet = quiet and not any(executor.is_waiting() for executor in living if isinstance(executor, SpoutExecutor))
        moved = sum(executor.steps for executor in (*living, *self.ackers))
        still = quiet and moved == self._moved
        self._moved = moved if quiet else -1
        return still

    def _watch(self) -> None:
        text = self._look()
        if text is not None:
            self.stalls.append(text)
            logger.warning("%s", text)
