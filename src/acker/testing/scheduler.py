"""Scheduler, which runs a topology on one thread, one step at a time, in an order that a seed decides.

The runtime has no threads (``LocalRuntime(..., threads=False)``); the scheduler steps its executors, ackers and
lifecycle in turn. Every interleaving that threads could show between two steps can occur, and the same seed repeats it.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import TracebackType
from typing import Any, Final, Literal, Self

from acker.errors import SchedulerError
from acker.local import Hook, LocalRuntime, RunReport
from acker.testing.clock import ManualClock
from acker.testing.turns import Part, Turns
from acker.topology import Graph, Topology

_NS_PER_SEC: Final = 1_000_000_000
# Numbers of tuples or messages that one step may take: 1 shows the most interleavings, threads use the last.
_LIMITS: Final = (1, 2, 5, 512)
# How many of the last steps an error names.
_STEPS_NAMED: Final = 12


class Scheduler:
    """Steps a runtime without threads, and turns its clock, in an order that the seed decides.

    ``Scheduler.of(topology)`` makes all three. At the end of a `with` statement it stops the runtime, and raises the
    exception with which the topology stopped before, unless it was raised already.

    Parameters
    ----------
    runtime : LocalRuntime
        Made with ``threads=False`` and with this clock.
    clock : ManualClock
        Turned to the next deadline of the runtime whenever no part can step.
    seed : int
        The same seed, topology and calls repeat the same run.

    Attributes
    ----------
    runtime, clock, seed
        As given.
    steps : int
        Number of steps so far that did something.
    """

    def __init__(self, runtime: LocalRuntime, clock: ManualClock, seed: int = 0) -> None:
        self.runtime = runtime
        self.clock = clock
        self.seed = seed
        self.steps = 0
        self._random = random.Random(seed)
        self._error_raised = False
        self._last_steps: deque[str] = deque(maxlen=_STEPS_NAMED)
        self._turns = Turns(runtime)
        self._seen_ns = clock.now_ns()
        # A heap of calls: when, a number that makes entries differ, the function.
        self._calls: list[tuple[int, int, Callable[[], object]]] = []
        self._number = itertools.count()

    @classmethod
    def of(
        cls,
        topology: type[Topology] | Graph,
        conf: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        hooks: Sequence[Hook] = (),
        max_restarts: int | None = None,
        no_restart: bool | None = None,
        environment: str | None = None,
        state: str | os.PathLike[str] | bytes | None = None,
    ) -> Self:
        """Start a topology on a manual clock at 0, and return its scheduler.

        Parameters
        ----------
        topology, conf, hooks, max_restarts, no_restart, environment, state
            As for `acker.local.LocalRuntime`.
        seed : int
            Decides the order of steps, and the runtime's random choices.
        """
        clock = ManualClock()
        runtime = LocalRuntime(
            topology,
            conf,
            clock=clock,
            hooks=hooks,
            seed=seed,
            max_restarts=max_restarts,
            no_restart=no_restart,
            threads=False,
            environment=environment,
            state=state,
        )
        runtime.start()
        return cls(runtime, clock, seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
            if not self._error_raised:
                self._raise_if_dead()

    def _raise_if_dead(self) -> None:
        """Raise the exception with which the topology stopped, since the rest of the test would test nothing."""
        error = self.runtime.error
        if error is not None:
            self._error_raised = True
            raise error

    def stop(self, drain_secs: float | None = None) -> RunReport:
        """Stop the runtime in order, as `LocalRuntime.stop` does; return its report."""
        self.runtime.stop(drain_secs)
        self.run("stopped")
        return self.runtime.report()

    def drain(self, *, steps_max: int = 1_000_000) -> RunReport:
        """Run until every spout has finished and nothing is pending, then stop; return the report.

        Raises
        ------
        SchedulerError
            It does not end within `steps_max`, or cannot end.
        Exception
            The one with which the topology stopped.
        """
        lifecycle = self.runtime.lifecycle
        self.runtime.watch_for("drained")
        self.run(lambda: lifecycle.reached.is_set() or self.runtime.has_ended, steps_max=steps_max)
        drained = lifecycle.reached.is_set()
        report = self.stop()
        self._raise_if_dead()
        return replace(report, outcome="drained") if drained else report

    def run(self, until: Callable[[], object] | Literal["stopped"] = "stopped", *, steps_max: int = 1_000_000) -> int:
        """Take steps, and turn the clock whenever no part can step, until a condition holds.

        Parameters
        ----------
        until : callable or "stopped"
            Called before each step; "stopped": the runtime has stopped for good.
        steps_max : int
            Limit of steps and turns of the clock.

        Returns
        -------
        int
            Number of steps.

        Raises
        ------
        SchedulerError
            It does not hold within `steps_max`, or never will: no part can step, and no timer is set.
        Exception
            The one with which the topology stopped before.
        """
        reached = (lambda: self.runtime.has_ended) if until == "stopped" else until
        before = self.steps
        self._turns.wake_all()
        for _ in range(steps_max):
            if reached():
                return self.steps - before
            if not self.step() and not self._turn_clock():
                self._raise_if_dead()
                raise self._error("nothing is left to do and no timer is set")
        raise self._error(f"not reached within {steps_max} steps")

    def settle(self, *, steps_max: int = 1_000_000) -> int:
        """Take steps until no part can step at the time of the clock; return the number of steps.

        Raises
        ------
        SchedulerError
            It takes more than `steps_max`.
        Exception
            The one with which the topology stopped.
        """
        before = self.steps
        self._turns.wake_all()
        while self.step():
            if self.steps - before >= steps_max:
                raise self._error(f"still something to do after {steps_max} steps without a turn of the clock")
        self._raise_if_dead()
        return self.steps - before

    def advance(self, seconds: float | Fraction, *, steps_max: int = 1_000_000) -> int:
        """Let time pass: turn the clock to each deadline on the way and to the end, and settle each time.

        Parameters
        ----------
        seconds : float or Fraction
        steps_max : int
            Limit of steps for each time it settles.

        Returns
        -------
        int
            Number of steps.

        Raises
        ------
        SchedulerError, Exception
            As for `settle`.
        """
        before, end_ns = self.steps, self.clock.now_ns() + round(Fraction(seconds) * _NS_PER_SEC)
        self.settle(steps_max=steps_max)
        while self._turn_clock(end_ns):
            self.settle(steps_max=steps_max)
        return self.steps - before

    def step(self) -> bool:
        """Let one of the parts that have something to do take a step; return False if none has."""
        if self.clock.now_ns() != self._seen_ns:
            self._look_at_clock()
        ready = self._turns.ready(self.clock.now_ns())
        self._random.shuffle(ready)
        for part in ready:
            if self._let_step(part):
                return True
        # The lifecycle looks now and then without a signal, and takes two looks to see that all is quiet.
        return self._let_step(self.runtime.lifecycle) or self._let_step(self.runtime.lifecycle)

    def call_later(self, seconds: float | Fraction, function: Callable[[], object]) -> None:
        """Call a function between two steps, after this time."""
        at_ns = self.clock.now_ns() + round(Fraction(seconds) * _NS_PER_SEC)
        heapq.heappush(self._calls, (at_ns, next(self._number), function))

    def freeze(self, pattern: str) -> list[str]:
        """Take no more steps of some parts, as if their threads hung or their machine was gone.

        Parameters
        ----------
        pattern : str
            A name, or several as in a shell: ``"count*"``. Only its whole name means the lifecycle.

        Returns
        -------
        list of str
            The names that fit.

        Raises
        ------
        SchedulerError
            No name fits. Parts exist once the topology runs, after `settle`.
        """
        return self._turns.freeze(pattern)

    def thaw(self, pattern: str = "*") -> None:
        """Take steps again of frozen parts."""
        self._turns.thaw(pattern)

    def slow_down(self, pattern: str, seconds: float | Fraction) -> list[str]:
        """Let some parts, named as for `freeze`, sleep for this time after each step; 0: no longer."""
        return self._turns.slow_down(pattern, round(Fraction(seconds) * _NS_PER_SEC))

    def _let_step(self, part: Part) -> bool:
        """Do what a thread does: clear the signal, step, and rest if there was nothing to do."""
        part.signal.clear()
        try:
            worked = part.step(self._random.choice(_LIMITS))
        except Exception as error:
            error.add_note(self._where())
            raise
        if not worked:
            self._turns.rest(part)
            return False
        self._turns.record_work(part, self.clock.now_ns())
        self._last_steps.append(part.name)
        self.steps += 1
        return True

    def _turn_clock(self, end_ns: int | None = None) -> bool:
        """Turn the clock to what comes next, and at most to `end_ns`; return False if nothing comes."""
        now_ns = self.clock.now_ns()
        due_ns, polls_ns = self._turns.dues(now_ns)
        if self._calls:
            due_ns.append(self._calls[0][0])
        if end_ns is not None:
            due_ns.append(end_ns)
        # A spout that had nothing is asked a thousand times a second, and whenever the clock is turned. That is enough
        # where the clock is turned for another part.
        target_ns = min(due_ns or polls_ns, default=now_ns)
        if target_ns <= now_ns:
            return False
        self.clock.advance_to(target_ns)
        return True

    def _look_at_clock(self) -> None:
        """Make the calls and wake the parts whose time has come, after anybody has turned the clock."""
        now_ns = self._seen_ns = self.clock.now_ns()
        while self._calls and self._calls[0][0] <= now_ns:
            heapq.heappop(self._calls)[2]()
        self._turns.wake_due(now_ns)

    def _where(self) -> str:
        last = ", ".join(self._last_steps) or "none"
        return f"seed {self.seed}, step {self.steps}, {self.clock.now_ns() / 1e9:.6f} s; the last steps: {last}"

    def _error(self, text: str) -> SchedulerError:
        return SchedulerError(f"{text} ({self._where()})")
