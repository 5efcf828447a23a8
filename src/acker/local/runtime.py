"""LocalRuntime, which runs a topology in this process."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import os
import random
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from acker.errors import ArgumentTypeError, ArgumentValueError, RuntimeStateError, exception_text
from acker.local.clock import Clock, Flag, SystemClock
from acker.local.executors.acker import AckerExecutor
from acker.local.executors.base import Executor
from acker.local.executors.bolt import BoltExecutor
from acker.local.flusher import Flusher
from acker.local.hooks import Hook, check_hook
from acker.local.lifecycle import Lifecycle, Limits
from acker.local.page.live_page import HasPage, RuntimePage
from acker.local.states import StateKeeper, StateSnapshots
from acker.local.task_stats import read_tasks
from acker.local.tracing import Sampler
from acker.local.until import Until, parse_until
from acker.local.wiring import ExecutorSet, RuntimeParts, make_acker
from acker.observe.calls import UserCall
from acker.observe.run_report import RunReport
from acker.observe.stats import RuntimeState, RuntimeStats
from acker.observe.watchdog import StallWatchdog, suspects
from acker.topology.checks import check_for_one_process, warn_of_overrides
from acker.topology.conf import check, inert_options, resolve
from acker.topology.definition import Topology
from acker.topology.graph import Graph, graph_of
from acker.ui.options import PageChoice

_NS: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000

# How many times the watchdog looks in one message timeout.
_LOOKS_PER_TIMEOUT: Final = 4

# Waits end now and then, so that signal handlers run on every system.
_WAIT_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 0.1

logger = logging.getLogger("acker.local")


class LocalRuntime(StateSnapshots, HasPage):
    """Runs a topology in threads of this process, tracked by native ackers.

    Parameters
    ----------
    topology : Topology class or Graph
    conf : mapping, optional
        Options that override the topology's.
    clock : Clock, optional
        By default the system's monotonic clock.
    hooks : sequence of Hook
    seed : int, optional
        Makes ids and the starts of shuffles repeatable, for tests. By default random.
    max_restarts : int, optional
        Limit of restarts in a row after exceptions; by default that of the options.
    no_restart : bool, optional
        Stop at the first exception.
    threads : bool
        False: nothing runs by itself; a scheduler steps the `steppables`.
    environment : str, optional
        Chooses the number of tasks of components that have one for each environment; see `Topology.graph`.
    state : path or bytes, optional
        The states of stateful bolts: a file, which is read if it exists and written when the run has ended in any way;
        or what `snapshot_state` returned. It is a pickle: open no file of a stranger.

    Notes
    -----
    A context manager: it calls `start` and, at the end, `stop`, and then raises the exception with which the topology
    stopped, unless `run_until` has raised it. docs/topologies.md describes what a topology promises and how it stops.
    """

    _check = staticmethod(check_for_one_process)

    def __init__(
        self,
        topology: type[Topology] | Graph,
        conf: Mapping[str, Any] | None = None,
        *,
        clock: Clock | None = None,
        hooks: Sequence[Hook] = (),
        seed: int | None = None,
        max_restarts: int | None = None,
        no_restart: bool | None = None,
        threads: bool = True,
        environment: str | None = None,
        state: str | os.PathLike[str] | bytes | None = None,
        ui: PageChoice = None,
    ) -> None:
        for hook in hooks:
            check_hook(hook)
        self.live = RuntimePage(ui)
        graph = graph_of(topology, environment)
        # The options of this call override those of the definition.
        overrides = _check_conf(conf)
        options = self.conf = resolve(graph.conf, overrides)
        self._check(graph, options)
        warn_of_overrides(graph)
        self.graph = dataclasses.replace(graph, name=options["topology.name"] or graph.name)
        self.clock: Clock = SystemClock() if clock is None else clock
        self._threads = threads
        self._started = self._error_raised = False
        self._started_at = ""
        self._ended_ns = 0
        self._sampler = _sampler_of(self.graph, options, self.clock)
        timeout_ns = round(options["topology.message.timeout.secs"] * _NS)
        self._watchdog = StallWatchdog(max(1, timeout_ns // _NS_PER_MS))
        signal = Flag()
        self.ackers = [
            make_acker(number, options, self.clock, signal, seed) for number in range(options["topology.acker.tasks"])
        ]
        self.lifecycle = Lifecycle(
            clock=self.clock,
            signal=signal,
            ackers=self.ackers,
            make_executors=self._make_executors,
            spawn=self._spawn,
            find_stall=self._find_stall,
            holders=lambda: "; ".join(suspects(self.stats().tasks, self._calls())) or "no task",
            save_states=lambda: self._states.save_at_end(self._bolts()),
            limits=_limits_of(options, timeout_ns, max_restarts, no_restart),
        )
        for acker in self.ackers:
            acker.on_restore = self._track_again
            if not options["topology.enable.message.timeouts"]:
                acker.open_roots = self.lifecycle.open_roots
        self.flusher = Flusher(lambda: self.lifecycle.executors or (), self.lifecycle.over)
        self._states = StateKeeper(self.graph, state)
        self._parts = RuntimeParts(
            self.graph,
            {**self.graph.conf, **overrides},
            self.clock,
            signal,
            self.ackers,
            hooks,
            self._sampler,
            random.Random(seed),
            seed is not None,
            self._states,
            self.live.failures,
        )

    # Start and stop.

    def start(self) -> Self:
        """Start; return when spouts are asked for tuples, the start has failed, or the time of `run` is up.

        Raises
        ------
        RuntimeStateError
            It was started before.
        """
        if self._started:
            raise RuntimeStateError("a LocalRuntime can be started only once; make another one")
        self.live.open(self, self._sampler)
        self._started = True
        self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.lifecycle.begin()
        if not self.ackers:
            text = "%s: topology.acker.tasks is 0: tuples are acked as soon as they are emitted, even if they fail"
            logger.warning(text, self.graph.name)
        for option in inert_options(self.conf):
            logger.info("%s: %s has no effect here", self.graph.name, option)
        if self._threads:
            self.flusher.start(f"{self.graph.name}.flusher")
            threading.Thread(target=self.lifecycle.work, name=f"{self.graph.name}.lifecycle", daemon=True).start()
            while not self.lifecycle.reached.is_set() and not self.lifecycle.running.wait(_LOOK_SECONDS):
                pass
        return self

    def run(self, until: str | int | None = "drained") -> str:
        """Start, and wait until a condition holds; the topology runs on.

        As `start` and `run_until`, except that a time counts from this call, `initialize` of the components included.
        """
        parsed = self.watch_for(until)
        self.start()
        return self._wait_until(parsed)

    def run_until(self, until: str | int | None = "drained") -> str:
        """Wait until a condition holds; the topology runs on.

        Parameters
        ----------
        until : str, int or None
            "drained": every spout has called `finish`, and nothing is pending. A time from the start, such as "30s". A
            number of trees acked since the start, or earlier when all is drained. None or "stopped": until stopped.

        Returns
        -------
        str
            As `RunReport.outcome`.

        Raises
        ------
        Exception
            The one with which the topology stopped.
        """
        return self._wait_until(self.watch_for(until))

    def _wait_until(self, parsed: Until) -> str:
        while not self.lifecycle.reached.is_set() and not self.lifecycle.over.is_set():
            self.lifecycle.reached.wait(_LOOK_SECONDS)
        if self.lifecycle.error is not None:
            self._error_raised = True
            raise self.lifecycle.error
        if self.lifecycle.reached.is_set():
            self.lifecycle.note_outcome(parsed)
        return self.lifecycle.outcome

    def watch_for(self, until: str | int | None) -> Until:
        """Set the condition at which `lifecycle.reached` is set; return it."""
        parsed = parse_until(until)
        self.lifecycle.watch_for(parsed)
        return parsed

    def pause(self) -> None:
        """Pause the spouts: they are deactivated and only receive outcomes. Tuples under way are processed."""
        self.lifecycle.pause(True)

    def resume(self) -> None:
        """Activate the spouts again."""
        self.lifecycle.pause(False)

    def stop(self, drain_secs: float | None = None) -> None:
        """Stop in order, and return when that is done.

        Spouts are deactivated; pending trees may end within `drain_secs` (by default `topology.drain.secs`, or else the
        message timeout); the others fail with reason SHUTDOWN; then all components are closed. A task that is still
        inside user code is abandoned and named in the report.
        """
        self.lifecycle.stop(None if drain_secs is None else round(drain_secs * _NS))
        self.join()

    def abort(self) -> None:
        """Stop at once, without draining: open trees fail with reason SHUTDOWN."""
        self.lifecycle.abort()
        self.join()

    def join(self) -> None:
        """Wait until all has ended."""
        if self._threads and self._started:
            _wait_for(self.lifecycle.over)
            for executor in self._executors():
                if executor.thread is not None and not executor.abandoned:
                    executor.thread.join()
            self.flusher.join()
        self._ended_ns = self.clock.now_ns()
        self.live.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None and self.error is not None and not self._error_raised:
            raise self.error

    # Figures.

    @property
    def state(self) -> RuntimeState:
        """One of "new", "running", "restarting", "draining", "stopped"."""
        return self.lifecycle.state

    @property
    def has_ended(self) -> bool:
        """Whether all has ended."""
        return self.lifecycle.over.is_set()

    @property
    def error(self) -> BaseException | None:
        """The exception with which the topology stopped."""
        return self.lifecycle.error

    @property
    def steppables(self) -> list[Executor | Lifecycle]:
        """Everything that a scheduler may step now: the lifecycle first."""
        return [self.lifecycle, *(executor for executor in self._executors() if executor.spawned)]

    def _executors(self) -> list[Executor]:
        return [*self.ackers, *(self.lifecycle.executors or ())]

    def stats(self) -> RuntimeStats:
        """Return all counts and gauges of all tasks since the start. Any thread may call it at any time."""
        uptime_ns = max(1, (self._ended_ns or self.clock.now_ns()) - self.lifecycle.started_ns) if self._started else 1
        return RuntimeStats(
            topology=self.graph.name,
            state=self.state,
            uptime_secs=uptime_ns / _NS if self._started else 0.0,
            restarts=self.lifecycle.restarts,
            tasks=read_tasks(self.lifecycle.executors, self.ackers, uptime_ns),
        )

    def report(self) -> RunReport:
        """Return the report of the run."""
        lifecycle, log = self.lifecycle, self.live.failures
        return RunReport(
            topology=self.graph.name,
            outcome=lifecycle.outcome,
            started_at=self._started_at,
            seconds=((self._ended_ns or self.clock.now_ns()) - self.lifecycle.started_ns) / _NS,
            stats=self.stats(),
            restarts=lifecycle.restarts,
            abandoned=tuple(lifecycle.abandoned),
            undelivered=lifecycle.undelivered,
            stalls=tuple(lifecycle.stalls),
            timed_out_traces=() if self._sampler is None else tuple(self._sampler.texts),
            error=_error_text(lifecycle.error),
            last_crash=_error_text(lifecycle.last_crash),
            restart_pending=lifecycle.restart_pending and lifecycle.error is None,
            why=None if log is None else log.why(),
        )

    def _bolts(self) -> Sequence[BoltExecutor]:
        return () if self.lifecycle.executors is None else self.lifecycle.executors.bolts

    def _make_executors(self) -> ExecutorSet:
        return self.flusher.adopt(ExecutorSet(self._parts))

    def _spawn(self, executor: Executor) -> None:
        if self._threads:
            name = f"{self.graph.name}.{executor.name}"
            executor.thread = threading.Thread(target=executor.work, name=name, daemon=True)
            executor.thread.start()

    def _track_again(self, _: AckerExecutor) -> None:
        for spout in () if self.lifecycle.executors is None else self.lifecycle.executors.spouts:
            spout.track_again = True
            spout.signal.set()

    def _find_stall(self) -> str | None:
        now_ms = self.clock.now_ns() // _NS_PER_MS
        is_stalled = self._watchdog.is_stalled(now_ms, self.lifecycle.acked_count(), self.lifecycle.pending_count())
        if not is_stalled or not self._tells_stalls():
            return None
        return self._watchdog.look(now_ms, self.stats(), self._calls())

    def _tells_stalls(self) -> bool:
        """Return whether a stall at this moment is news."""
        return True

    def _calls(self) -> Mapping[int, UserCall]:
        executors = self.lifecycle.executors
        return {} if executors is None else self.find_calls(executors, self.clock.now_ns())


def _error_text(error: BaseException | None) -> str | None:
    return None if error is None else exception_text(error)


def _sampler_of(graph: Graph, options: Mapping[str, Any], clock: Clock) -> Sampler | None:
    names = {task: node.name for node in graph.nodes.values() for task in node.tasks}
    sample = options["topology.trace.sample"]
    return Sampler(clock, sample, names) if sample else None


def _limits_of(
    options: Mapping[str, Any], timeout_ns: int, max_restarts: int | None, no_restart: bool | None
) -> Limits:
    drain_secs = options["topology.drain.secs"]
    return Limits(
        drain_ns=timeout_ns if drain_secs is None else round(drain_secs * _NS),
        restarts_max=options["topology.max.restarts"] if max_restarts is None else max_restarts,
        no_restart=options["topology.no.restart"] if no_restart is None else no_restart,
        healthy_ns=round(options["topology.restart.healthy.secs"] * _NS),
        watch_ns=max(1, timeout_ns // _LOOKS_PER_TIMEOUT),
    )


def _check_conf(conf: Any) -> dict[str, Any]:
    """Check the options of a runtime; if they are an `until`, say so."""
    try:
        return check({} if conf is None else conf)
    except ArgumentTypeError as error:
        try:
            parse_until(conf)
        except ArgumentValueError:
            raise error from None
        raise ArgumentTypeError(f"{error}; write until={conf!r}") from None


def _wait_for(event: threading.Event) -> None:
    while not event.wait(_WAIT_SECONDS):
        pass
