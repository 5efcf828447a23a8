"""The `run` function for scripts: a whole run of a topology, from start to end."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from acker.local.clock import Clock
from acker.local.hooks import Hook
from acker.local.runtime import LocalRuntime
from acker.local.until import parse_until
from acker.observe.run_report import RunReport
from acker.topology.definition import Topology
from acker.topology.graph import Graph
from acker.ui.options import PageChoice

logger = logging.getLogger("acker.local")


def run(
    topology: type[Topology] | Graph,
    conf: Mapping[str, Any] | None = None,
    *,
    until: str | int | None = "drained",
    clock: Clock | None = None,
    hooks: Sequence[Hook] = (),
    seed: int | None = None,
    max_restarts: int | None = None,
    no_restart: bool | None = None,
    environment: str | None = None,
    state: str | os.PathLike[str] | bytes | None = None,
    ui: PageChoice = None,
) -> RunReport:
    """Run a topology until a condition holds or it is stopped; return its report.

    Parameters
    ----------
    topology : Topology class or Graph
    conf : mapping, optional
        Options that override the topology's.
    until : str, int or None
        "drained": every spout has called `finish`, and nothing is pending; with a spout that never does, the run goes
        on until it is stopped. A time from this call, such as "30s", `initialize` of the components included. A number
        of acked trees, or earlier when all is drained. None or "stopped": until stopped, also when all is drained.
    clock, hooks, seed, max_restarts, no_restart, environment, state, ui
        As for `LocalRuntime`.

    Returns
    -------
    RunReport

    Raises
    ------
    TopologyError
        The definition or the conf is wrong; nothing was started.
    Exception
        The one with which the topology stopped, after its restarts.

    Notes
    -----
    On the main thread, the first Ctrl-C (or SIGTERM) stops in order, as `LocalRuntime.stop` does; a second one stops at
    once.
    """
    parse_until(until)
    runtime = LocalRuntime(
        topology,
        conf,
        clock=clock,
        hooks=hooks,
        seed=seed,
        max_restarts=max_restarts,
        no_restart=no_restart,
        environment=environment,
        state=state,
        ui=ui,
    )
    with stop_on_signals(runtime):
        try:
            runtime.run(until)
        finally:
            runtime.stop()
    if runtime.error is not None:  # raised while the topology drained
        raise runtime.error
    return runtime.report()


@contextmanager
def stop_on_signals(runtime: LocalRuntime) -> Iterator[None]:
    """Let SIGINT and SIGTERM stop a runtime, the second time at once; on other threads than the main one do nothing.

    A handler interrupts the main thread, which may hold any lock that stopping needs. So the handler puts the signal on
    a queue whose put() is reentrant, and another thread stops the runtime.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def stop() -> None:
        for times, number in enumerate(iter(received.get, None)):
            name = signal.Signals(number).name
            if times == 0:
                logger.warning("%s: stopping; a second one stops at once", name)
                runtime.lifecycle.stop()
            else:
                logger.warning("%s again: stopping at once", name)
                runtime.lifecycle.abort()

    def handle(number: int, _: FrameType | None) -> None:
        received.put(number)

    stopper = threading.Thread(target=stop, name="signals", daemon=True)
    stopper.start()
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        received.put(None)
        stopper.join()
