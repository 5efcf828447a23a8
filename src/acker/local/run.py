"""`run`: a topology from start to end, as a script calls it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from acker.local.clock import Clock
from acker.local.hooks import Hook
from acker.local.metrics import Report
from acker.local.runtime import LocalRuntime
from acker.local.until import parse_until
from acker.topology.builder import Topology
from acker.topology.graph import Graph

logger = logging.getLogger("acker.local")


def run(
    topology: type[Topology] | Graph,
    conf: Mapping[str, Any] | None = None,
    *,
    until: str | int | None = None,
    clock: Clock | None = None,
    hooks: Sequence[Hook] = (),
    seed: int | None = None,
    max_restarts: int | None = None,
    no_restart: bool | None = None,
) -> Report:
    """Run a topology until a condition holds or it is stopped; return how it went.

    Parameters
    ----------
    topology : Topology class or Graph
    conf : mapping, optional
        Goes before the topology's own.
    until : str, int or None
        "drained": every spout says that it has no more, and nothing is pending. A time, such as "30s". A number of trees
        to be acked. None: until stopped.
    clock, hooks, seed, max_restarts, no_restart
        As for `LocalRuntime`.

    Returns
    -------
    Report

    Raises
    ------
    TopologyError
        The definition or the conf is wrong; nothing was started.
    Exception
        What the topology stopped with after its restarts.

    Notes
    -----
    Called on the main thread, the first Ctrl-C (or SIGTERM) stops in order, as `LocalRuntime.stop` does; a second one
    stops at once.
    """
    parse_until(until)
    runtime = LocalRuntime(
        topology, conf, clock=clock, hooks=hooks, seed=seed, max_restarts=max_restarts, no_restart=no_restart
    )
    with stopped_by_signals(runtime):
        runtime.start()
        try:
            runtime.run_until(until)
        finally:
            runtime.stop()
    return runtime.report()


@contextmanager
def stopped_by_signals(runtime: LocalRuntime) -> Iterator[Callable[[], int]]:
    """Let SIGINT and SIGTERM stop a runtime, the second time at once; elsewhere than on the main thread do nothing.

    Yields
    ------
    callable
        Returns how many signals came.
    """
    count = 0

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal count
        count += 1
        name = signal.Signals(number).name
        if count == 1:
            logger.warning("%s: stopping; a second one stops at once", name)
            runtime.control.stop()
        else:
            logger.warning("%s again: stopping at once", name)
            runtime.control.abort()

    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: count
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
