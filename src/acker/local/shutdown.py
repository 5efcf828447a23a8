"""The end of a topology, or of its executors before a restart: drain, halt, fail what is open, close."""

from __future__ import annotations

import itertools
import logging
import sys
import traceback
from collections.abc import Callable, Sequence

from acker.local.executors.acker import AckerExecutor
from acker.local.executors.base import ComponentExecutor, Mode
from acker.local.executors.spout import SpoutExecutor
from acker.local.topology_run import Steps, TopologyRun, Wait
from acker.observe.reasons import ReasonKind
from acker.observe.run_report import Abandoned

logger = logging.getLogger("acker.local")


class Shutdown:
    """Brings the executors of a run to their end.

    Parameters
    ----------
    run : TopologyRun
    holders : callable
        Returns which tasks hold the tuples that are open, as text.
    """

    def __init__(self, run: TopologyRun, holders: Callable[[], str]) -> None:
        self._run = run
        self._holders = holders

    def drain(self, deadline_ns: int) -> Steps:
        """Let what is pending end: spouts emit nothing new, then bolts are deactivated in their order."""
        run = self._run
        executors = run.require_executors()
        run.set_mode(executors.spouts, Mode.PAUSE)
        yield from run.enter_mode(run.ackers, Mode.DRAIN)
        run.set_mode(executors.bolts, Mode.DRAIN)
        yield from self._wait_until_quiet(deadline_ns)
        yield from self._deactivate(deadline_ns)

    def _wait_until_quiet(self, deadline_ns: int) -> Steps:
        run = self._run
        yield Wait(lambda: run.abort_asked or bool(run.crashed_executors()) or run.is_quiet(), deadline_ns)

    def _deactivate(self, deadline_ns: int) -> Steps:
        """Deactivate bolts, one component after the other; what they emit then is still processed.

        If the spouts have finished, windows by event time end first, as far as the latest time allows.
        """
        run = self._run
        bolts, times = run.require_executors().bolts, run.require_executors().event_times
        is_over = all(task.finished for task in run.require_executors().spout_tasks())
        for _, group in itertools.groupby(bolts, key=lambda executor: executor.tasks[0].collector.component):
            executors = list(group)
            if run.abort_asked or run.crashed_executors() or run.clock.now_ns() >= deadline_ns:
                return  # each is deactivated when it is closed
            if times is not None and is_over and any(executor.has_event_time for executor in executors):
                times.end(executors[0].tasks[0].collector.component)
                yield from self._wait_until_quiet(deadline_ns)
            if any(executor.overrides_deactivate for executor in executors):
                run.set_mode(executors, Mode.DEACTIVATE)
                yield from self._wait_until_quiet(deadline_ns)

    def warn_of_open_trees(self) -> None:
        """Name the tasks that hold what is still open when the time to drain has ended."""
        count = self._run.pending_count()
        if count:
            trees = "1 tree was" if count == 1 else f"{count:,} trees were"
            self._run.warn(f"{trees} open when the time to drain had ended: {self._holders()}")

    def halt(self, deadline_ns: int) -> Steps:
        """Let all steps end; abandon the executors whose step does not."""
        run = self._run
        executors = run.living()
        run.set_mode(executors, Mode.HALT)
        yield Wait(lambda: run.abort_asked or all(executor.seen is Mode.HALT for executor in executors), deadline_ns)
        yield Wait(lambda: all(executor.seen is Mode.HALT for executor in executors), min(deadline_ns, run.grace_ns()))
        for executor in executors:
            if executor.seen is not Mode.HALT:
                self._abandon(executor)

    def _abandon(self, executor: ComponentExecutor) -> None:
        executor.abandoned = True  # Should it ever come back, its thread ends.
        executor.signal.set()  # It may be about to rest, on a clock that nobody turns any more.
        frame = None
        if executor.thread is not None and executor.thread.ident is not None:
            frame = sys._current_frames().get(executor.thread.ident)
        stack = "" if frame is None else "".join(traceback.format_stack(frame))
        for task in executor.tasks:
            self._run.abandoned.append(Abandoned(task.collector.component, task.collector.task, stack))
        logger.error("%s is still inside %s and is abandoned:\n%s", executor.name, executor.inside, stack)

    def fail_open_trees(self, kind: ReasonKind) -> Steps:
        """Fail what is open through the ackers, and tell the spouts; all executors are halted."""
        run = self._run
        executors = run.require_executors()
        for executor in executors:
            executor.outbox.close()
            if not executor.abandoned:
                executor.drop()
        listening = [executor for executor in run.living() if isinstance(executor, SpoutExecutor)]
        deadline = run.grace_ns() + run.drain_ns
        while True:
            self._send_fails(listening, kind)
            run.set_mode(listening, Mode.SETTLE)
            yield Wait(
                lambda: bool(self._crashed_ackers()) or all(executor.is_settled() for executor in listening), deadline
            )
            if not self._crashed_ackers() or run.clock.now_ns() >= deadline:
                break
            run.set_mode(listening, Mode.HALT)
            yield Wait(lambda: all(executor.seen is Mode.HALT for executor in listening), deadline)
        for collector in [task.collector for task in executors.spout_tasks()]:
            count = collector.pending_count
            if count:
                run.undelivered += count
                text = "%s: the outcomes of %d trees did not reach task %d"
                logger.error(text, collector.component, count, collector.task)

    def _send_fails(self, listening: Sequence[SpoutExecutor], kind: ReasonKind) -> None:
        """Send a FAIL for every open tree, and first its TRACK where an acker has crashed and lost its trees."""
        crashed = self._crashed_ackers()
        for acker in crashed:
            acker.revive()
        for collector in [task.collector for spout in listening for task in spout.tasks]:
            if crashed:
                collector.track_again()
            collector.fail_all(kind)
        for executor in self._run.require_executors():
            if not executor.abandoned:
                executor.ack_sender.send()

    def _crashed_ackers(self) -> list[AckerExecutor]:
        return [acker for acker in self._run.ackers if acker.crash is not None]

    def close(self) -> Steps:
        """Close all components; abandon the executors that do not return."""
        run = self._run
        closing = run.living()
        run.set_mode(closing, Mode.CLOSE)
        yield Wait(lambda: all(executor.done is Mode.CLOSE for executor in closing), run.grace_ns() + run.drain_ns)
        for executor in closing:
            if executor.done is not Mode.CLOSE:
                self._abandon(executor)
