"""The same topologies and records with real threads, which show races within a step.

No seed repeats an order that the operating system has chosen; it repeats the topology, and what its components do.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from tests.torture.simulation.plan import Faults, Plan, Risks, plan_of, with_batches
from tests.torture.simulation.run import Simulated, Simulation, run_quietly

# The clock is turned by so much, so often: five times as fast as real time, for timeouts and back-offs.
_TURN_SECS: Final = 0.01
_EVERY_SECS: Final = 0.002
_TIMEOUT_SECS: Final = 0.75
# On a busy machine a thread may get no turn for seconds of that clock, and is not to be abandoned for that.
_DRAIN_SECS: Final = 8.0
# After how long in real time a run that does not end has lost something.
_STILL_SECS: Final = 60.0


def simulate_with_threads(seed: int, *, batches: bool = False) -> Simulated:
    """Run what a seed stands for with threads and without faults from outside, and check the promises.

    Raises
    ------
    SimulationError
        A promise was broken, or the topology stands still.
    """
    return run_quietly(_Threaded(_plan_of(with_batches(plan_of(seed)) if batches else plan_of(seed)), threads=True))


class _ThreadedPlan(Plan):
    """A plan for threads: any tree may time out, and nobody knows at which moment exactly."""

    @property
    def risks(self) -> Risks:
        """What the faults excuse, and the operating system's choice of who runs."""
        return replace(super().risks, times_out=True)

    @property
    def timeout_ns(self) -> int:
        """None, since the record cannot tell when a tree times out."""
        return 0


def _plan_of(plan: Plan) -> Plan:
    others = {"async": "tracked"}
    return _ThreadedPlan(
        plan.seed,
        tuple(replace(spout, kind=others.get(spout.kind, spout.kind)) for spout in plan.spouts),
        # Coroutines do not hold a lock while they wait.
        tuple(replace(bolt, kind="auto" if bolt.kind == "async" else bolt.kind) for bolt in plan.bolts),
        plan.conf | {"topology.message.timeout.secs": _TIMEOUT_SECS, "topology.drain.secs": _DRAIN_SECS},
        Faults(crashes=min(plan.faults.crashes, 2)),
        plan.end,
        plan.end_after // 4,
    )


class _Threaded(Simulation):
    """A simulation whose threads run by themselves, while this one turns the clock."""

    def _run(self) -> None:
        runtime, lifecycle, plan = self.runtime, self.runtime.lifecycle, self.plan
        begin, turns = time.monotonic(), 0

        def turn_clock() -> None:
            nonlocal turns
            turns += 1
            self._remember_executors()
            lifecycle.over.wait(_EVERY_SECS)
            self.clock.advance(_TURN_SECS)
            if time.monotonic() - begin > _STILL_SECS:
                raise TimeoutError(f"still {runtime.state} after {_STILL_SECS} s")

        runtime.start()
        runtime.watch_for("drained")
        while not (lifecycle.reached.is_set() or lifecycle.over.is_set() or self.record.violations):
            if plan.end != "drained" and turns >= plan.end_after:
                break
            turn_clock()
        self.record.stopping = True
        self.stopped_ns = self.clock.now_ns()
        (lifecycle.abort if plan.end == "abort" else lifecycle.stop)()
        while not lifecycle.over.is_set():
            turn_clock()
        runtime.join()
        self._check()
