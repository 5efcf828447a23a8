"""`run`: a topology from start to end, as a script calls it."""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from acker.local.clock import Clock
from acker.local.observe.hooks import Hook
from acker.local.observe.metrics import RunReport
from acker.local.runtime import LocalRuntime
from acker.local.until import parse_until
from acker.topology.definition import Topology
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
    environment: str | None = None,
) -> RunReport:
    """Run a topology until a condition holds or it is stopped; return how it went.

    Parameters
    ----------
    topology : Topology class or Graph
    conf : mapping, optional
        Goes before the topology's own.
    until : str, int or None
        "drained": every spout says that it has no more, and nothing is pending. A time from this call, such as "30s",
        `initialize` of the components included. A number of trees to be acked. None: until stopped.
    clock, hooks, seed, max_restarts, no_restart, environment
        As for `LocalRuntime`.

    Returns
    -------
    RunReport

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
        topology,
        conf,
        clock=clock,
        hooks=hooks,
        seed=seed,
        max_restarts=max_restarts,
        no_restart=no_restart,
        environment=environment,
    )
    with stop_on_signals(runtime):
        try:
            runtime.run(until)
        finally:
            runtime.stop()
    if runtime.error is not None:  # it was raised while the topology drained
        raise runtime.error
    return runtime.report()


@contextmanager
def stop_on_signals(runtime: LocalRuntime) -> Iterator[None]:
    """Let SIGINT and SIGTERM stop a runtime, the second time at once; elsewhere than on the main thread do nothing.

    A handler runs between any two steps of the main thread, so that may hold each lock that stopping needs. Hence the
    handler puts the signal on a queue whose put() is reentrant, and another thread does what it asks for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def obey() -> None:
        for times, number in enumerate(iter(came.get, None)):
            name = signal.Signals(number).name
            if times == 0:
                logger.warning("%s: stopping; a second one stops at once", name)
                runtime.lifecycle.stop()
            else:
                logger.warning("%s again: stopping at once", name)
                runtime.lifecycle.abort()

    def handle(number: int, _: FrameType | None) -> None:
        came.put(number)

    obeys = threading.Thread(target=obey, name="signals", daemon=True)
    obeys.start()
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        came.put(None)
        obeys.join()
