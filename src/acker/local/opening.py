"""The start of a topology: executors get their threads, and components are initialized, bolts before spouts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from acker.local.executors.base import Executor, Mode
from acker.local.topology_run import GRACE_SECS, NS_PER_SEC, Steps, TopologyRun, Wait
from acker.local.wiring import ExecutorSet
from acker.observe.durations import format_duration

# An `initialize` that takes this long is named in a warning, and again each time that has doubled.
_WARNING_SECS: Final = 10

logger = logging.getLogger("acker.local")


class Opening:
    """Opens the executors of one start or restart.

    Parameters
    ----------
    run : TopologyRun
    spawn : callable
        Gives an executor a thread; does nothing under a scheduler.

    Attributes
    ----------
    complete : bool
        Whether all components were initialized.
    """

    def __init__(self, run: TopologyRun, spawn: Callable[[Executor], None]) -> None:
        self.complete = False
        self._run = run
        self._spawn = spawn

    def open(self, executors: ExecutorSet, previous: ExecutorSet | None) -> Steps:
        """Start the ackers and executors; after a restart, let the executors inherit from the previous ones."""
        run = self._run
        if previous is None:
            for acker in run.ackers:
                self._start(acker)
        else:
            executors.inherit(previous)
        yield from run.enter_mode(run.ackers, Mode.RUN)
        for group in (executors.bolts, executors.spouts):
            if run.stop_asked:
                return
            for executor in group:
                self._start(executor)
            run.set_mode(group, Mode.OPEN)
            yield from self._initialize(group)
            if run.abort_asked or run.crashed_executors() or self._is_opening(group):
                return
            run.set_mode(group, Mode.RUN)
        self.complete = True

    def _start(self, executor: Executor) -> None:
        executor.spawned = True
        self._spawn(executor)

    def _initialize(self, executors: Sequence[Executor]) -> Steps:
        """Wait until components are initialized; a stop does not wait for ever for one that does not return."""
        run = self._run
        pause_ns = _WARNING_SECS * NS_PER_SEC
        warn_at = run.clock.now_ns() + pause_ns
        warned_late = False
        while self._may_open(executors):
            was_reached = run.reached.is_set()  # by the time of the run, which was noticed before
            yield Wait(
                lambda was_reached=was_reached: not self._may_open(executors) or (run.is_late() and not was_reached),  # type: ignore[misc]
                warn_at,
            )
            if not self._may_open(executors):
                break
            if run.is_late() and not was_reached:
                self._warn(executors, "the time of the run is up", GRACE_SECS)
                warned_late = True
                run.reached.set()
            elif run.clock.now_ns() >= warn_at:
                self._warn(executors, "the topology waits to begin")
                pause_ns *= 2
                warn_at = run.clock.now_ns() + pause_ns
        # A run that was given a time ends then: nothing is pending that could be drained.
        wait_ns = GRACE_SECS * NS_PER_SEC if run.is_late() else run.drain_ns
        if self._is_opening(executors) and not warned_late:
            self._warn(executors, "the topology stops", wait_ns / NS_PER_SEC)
        yield Wait(lambda: not self._is_opening(executors), run.clock.now_ns() + wait_ns)

    def _warn(self, executors: Sequence[Executor], what: str, wait_secs: float | None = None) -> None:
        """Name the tasks whose `initialize` has not returned."""
        now_ns = self._run.clock.now_ns()
        names = [
            f"{each.name} for {format_duration((now_ns - since) // 1_000_000)}"
            for each in executors
            if each.done is not Mode.OPEN and (since := each.step_since_ns) is not None
        ]
        if names:
            wait = "" if wait_secs is None else f"; it is left behind unless it returns within {wait_secs:g} s"
            self._run.warn(f"{what} and initialize() has not returned: {', '.join(names)}{wait}")

    def _is_opening(self, executors: Sequence[Executor]) -> bool:
        is_open = all(executor.done is Mode.OPEN for executor in executors)
        return not (is_open or self._run.abort_asked or self._run.crashed_executors())

    def _may_open(self, executors: Sequence[Executor]) -> bool:
        return not self._run.stop_asked and self._is_opening(executors)
