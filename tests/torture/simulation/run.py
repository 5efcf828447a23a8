"""One simulation: build what a seed stands for, run it step by step, and check that every promise was kept."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from acker.errors import AckerError, SchedulerError
from acker.local import LocalRuntime
from acker.testing.clock import ManualClock
from acker.testing.scheduler import Scheduler
from acker.topology import Graph, Grouping, Stream, Topology
from tests.torture.simulation.batches import BOLTS, SPOUTS
from tests.torture.simulation.components import EMITS_LEFT, FIELDS, InjectedError, World, with_lock
from tests.torture.simulation.faults import Injector
from tests.torture.simulation.plan import KEYS, BoltPlan, Plan, SpoutPlan, plan_of, with_batches
from tests.torture.simulation.record import Reading, RunRecord

# How a tree ends, and the runtime's counter of it.
_COUNTERS: Final = {
    "ACKED": "acked",
    "FAILED": "failed",
    "TIMED_OUT": "timed_out",
    "REJECTED": "rejected",
    "RESTART": "restarted",
    "SHUTDOWN": "shut_down",
}
_STEPS_MAX: Final = 20_000
# How many broken promises an error tells.
_NAMED_MAX: Final = 10
# How many tuples one task of a bolt emits at most between two looks at what it has in hand: two for each of 20 that it
# processes, and two for each batch at a tick.
_EMITS_MAX: Final = 2 * 20 + 2 * KEYS


class SimulationError(AckerError, AssertionError):
    """A promise was broken. The text says which, and which seed shows it."""


@dataclass(frozen=True)
class Simulated:
    """What happened in a simulation in which all promises were kept.

    Attributes
    ----------
    steps, emitted, deliveries, restarts : int
    seconds : float
        On the simulation's clock.
    outcomes : dict
        How tracked tuples ended -> how often.
    """

    plan: Plan
    steps: int
    seconds: float
    emitted: int
    deliveries: int
    restarts: int
    outcomes: dict[str, int]


def simulate(seed: int, *, batches: bool = False, say: Callable[[str], None] | None = None) -> Simulated:
    """Run what a seed stands for, and check the promises of topology.md.

    Parameters
    ----------
    seed : int
    batches : bool
        Let some spouts and bolts pass Arrow batches.
    say : callable, optional
        Told what happens, in words.

    Raises
    ------
    SimulationError
        A promise was broken.
    """
    return run_quietly(Simulation(with_batches(plan_of(seed)) if batches else plan_of(seed), say))


def run_quietly(simulation: Simulation) -> Simulated:
    """Run a simulation without the logs of what components raise on purpose."""
    with _quiet():
        try:
            return simulation.run()
        finally:
            simulation.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Let nothing be logged: what components raise on purpose would be pages."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _chosen_tasks(values: tuple[Any, ...], tasks: Any) -> list[int]:
    """Return none, one or two tasks, for custom groupings."""
    key = values[1]
    return [] if key == 0 else sorted({tasks[key % len(tasks)], tasks[-1]})


def graph_of(plan: Plan, world: World) -> Graph:
    """Return the topology of a plan, with components that act in this world."""
    body: dict[str, Any] = {"config": plan.conf}
    for spout in plan.spouts:
        body[spout.name] = _component(SPOUTS[spout.kind], spout, world).spec(par=spout.par, executors=spout.executors)
    for bolt in plan.bolts:
        inputs = {f"{one.source}:{one.stream}": _grouping(one.grouping) for one in bolt.inputs}
        tick_secs = (bolt.tick_share or 0) * plan.conf["topology.message.timeout.secs"]
        config = {"topology.tick.tuple.freq.secs": tick_secs} if tick_secs else {}
        component = _component(BOLTS[bolt.kind], bolt, world)
        body[bolt.name] = component.spec(inputs=inputs, par=bolt.par, executors=bolt.executors, config=config)
    topology: type[Topology] = type("Simulated", (Topology,), body)
    return topology.graph()


def _component(base: type[Any], plan: SpoutPlan | BoltPlan, world: World) -> Any:
    outputs = [Stream(FIELDS, name, direct=name == "direct") for name in plan.streams]
    return type(plan.name, (world.wrap(base),), {"outputs": outputs, "plan": plan, "world": world})


def _grouping(kind: str) -> Grouping:
    if kind == "fields":
        return Grouping.fields("key")
    if kind == "custom":
        return Grouping.custom(_chosen_tasks)
    found: Grouping = getattr(Grouping, kind)
    return found


class Simulation:
    """A simulation while it runs.

    Parameters
    ----------
    plan : Plan
    say : callable, optional
        Told what happens, in words.
    threads : bool
        Give the runtime its threads. Then `run` is to be overridden in part, and there are no faults.
    """

    def __init__(self, plan: Plan, say: Callable[[str], None] | None = None, *, threads: bool = False) -> None:
        self.plan = plan
        self.clock = ManualClock()
        self.record = RunRecord(self.clock.now_ns, plan.timeout_ns, plan.risks)
        self.world = World(plan, self.record, random.Random(plan.seed), plan.faults.crashes)
        if threads:
            self.world.wrap = with_lock
        if say is not None:
            self.world.say = lambda text: say(f"{self.clock.now_ns() / 1e9:10.4f} {text}")
            say(str(plan))
        self.graph = graph_of(plan, self.world)
        self.runtime = LocalRuntime(self.graph, clock=self.clock, seed=plan.seed, threads=threads)
        self.world.pass_ms = self._pass_ms
        self.world.is_ending = lambda: self.runtime.state in {"draining", "stopped"}
        self.scheduler = Scheduler(self.runtime, self.clock, plan.seed)
        self.injector = Injector(self.world, self.runtime, self.scheduler, self.clock)
        self.executor_sets: list[Any] = []
        self.kinds = {spout.name: spout.kind for spout in plan.spouts}
        self.stopped_ns = 0
        for node in self.graph.nodes.values():
            for stream in node.streams.values():
                found = self.graph.consumers(node.name, stream.name)
                self.record.readings[node.name, stream.name] = [
                    Reading(one.consumer, list(self.graph.nodes[one.consumer].tasks), one.grouping.kind)
                    for one in found
                ]
                if stream.direct:
                    tasks = [task for one in found for task in self.graph.nodes[one.consumer].tasks]
                    self.world.readers[node.name, stream.name] = tasks

    def run(self) -> Simulated:
        """Run it, and check every promise."""
        wrong = self.record.violations
        try:
            self._run()
        except SchedulerError as error:
            wrong.append(str(error))
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
            raise self._broken() from error
        wrong[:0] = self._unplanned()
        if wrong:
            raise self._broken()
        return Simulated(
            self.plan,
            self.scheduler.steps,
            self.clock.now_ns() / 1e9,
            self.record.emit_count,
            self.record.delivery_count,
            self.runtime.lifecycle.restarts,
            dict(self.record.outcomes),
        )

    def close(self) -> None:
        """Close the event loops of executors that never came to their own end."""
        for executors in self.executor_sets:
            for executor in executors:
                loop = getattr(executor, "loop", None)
                if loop is not None and not loop.is_closed():
                    executor._shut_loop()

    def _pass_ms(self) -> None:
        """Let a millisecond pass in the middle of a call, in which the flusher looks; check that it leaves nothing."""
        self.clock.advance(0.001)
        self.runtime.flusher.look()
        self.record.violations.extend(
            f"{executor.name}: what was done a millisecond before has not left"
            for executor in self.runtime.lifecycle.executors or ()
            if not (executor.abandoned or executor.outbox.closed) and executor.has_unsent()
        )

    def _broken(self) -> SimulationError:
        seed = f"{self.plan.seed}{' --batches' if self.plan.has_batches else ''}"
        head = f"seed {self.plan.seed} breaks promises (replay: python -m tests.torture.simulation --seed {seed})"
        return SimulationError("\n".join([head, *(f"  {text}" for text in self.record.violations[:_NAMED_MAX])]))

    def _run(self) -> None:
        """Run to the end, and check what must be so then."""
        runtime, plan = self.runtime, self.plan
        runtime.start()
        runtime.watch_for("drained")
        self.scheduler.run(self._is_over, steps_max=_STEPS_MAX)
        if self.record.violations:
            return
        self.world.tell(f"the end: {plan.end}")
        self.record.stopping = True
        self.stopped_ns = self.clock.now_ns()
        self.injector.stop(leave_frozen=plan.end != "drained" and plan.seed % 2 == 0)
        (runtime.abort if plan.end == "abort" else runtime.stop)()
        self.scheduler.run("stopped", steps_max=_STEPS_MAX)
        self._check()

    def _remember_executors(self) -> None:
        executors = self.runtime.lifecycle.executors
        if executors is not None and (not self.executor_sets or self.executor_sets[-1] is not executors):
            self.executor_sets.append(executors)

    def _is_over(self) -> bool:
        self._remember_executors()
        if (
            self.record.violations
            or self.runtime.has_ended
            or self.runtime.lifecycle.reached.is_set()
            or (self.plan.end != "drained" and self.scheduler.steps >= self.plan.end_after)
        ):
            return True
        self.injector.inject()
        return False

    def _check(self) -> None:
        """Check what must be so at the end."""
        wrong, lifecycle = self.record.violations, self.runtime.lifecycle
        abandoned = {one.task for one in lifecycle.abandoned}
        for tree in self.record.open_trees():
            # A stop during a back-off comes between what was emitted in `fail` and the life that would hear of it.
            in_fail = self.kinds[tree.spout] == "retrying" and self.record.crashed and self.plan.end != "drained"
            if tree.task not in abandoned and not in_fail:
                wrong.append(f"the outcome of {tree} never reached its spout")
        for executors in self.executor_sets:
            for executor in executors.bolts:
                self._check_bound(executor)
        if lifecycle.error is not None and not isinstance(lifecycle.error, InjectedError):
            wrong.append(f"stopped with {type(lifecycle.error).__name__}: {lifecycle.error}")
        if not abandoned:  # else its counts may not have been handed on
            self._check_counts()
        drained = self.plan.end == "drained" and lifecycle.error is None
        if drained:
            self._check_drained()
        drain_secs = self.plan.conf.get("topology.drain.secs", self.plan.conf["topology.message.timeout.secs"])
        in_time = self.clock.now_ns() < self.stopped_ns + drain_secs * 1e9  # what takes longer is not waited for
        if not self.plan.risks.loses and not abandoned and in_time:
            wrong.extend(f"tuple #{serial} never reached task {task}" for serial, task in self.record.lost_tuples())

    def _unplanned(self) -> Iterator[str]:
        """Tell what was raised and not by a component on purpose."""
        executor_sets = [executor for executors in self.executor_sets for executor in executors]
        for executor in (*executor_sets, *self.runtime.ackers):
            crash = executor.crash
            if crash is not None and not isinstance(crash, InjectedError):
                where = traceback.extract_tb(crash.__traceback__)[-1]
                yield f"{executor.name} raised {type(crash).__name__}: {crash} ({where.filename}:{where.lineno})"

    def _check_bound(self, executor: Any) -> None:
        """Check that a queue never held more than its capacity, and what each producer may have had in hand."""
        name = executor.tasks[0].collector.component
        inputs, capacity = self.graph.nodes[name].inputs, executor.inbox.capacity
        if any((one.source, name) in self.graph.loops for one in inputs):
            return  # in a loop nobody waits
        # While a spout replays it does not look at what it has in hand.
        emits = {
            spout.name: spout.burst + spout.tuples * (spout.kind in {"reliable", "retrying", "reliable batches"})
            for spout in self.plan.spouts
        }
        # A step of an ArrowBolt processes all that waits for it.
        emits |= {bolt.name: EMITS_LEFT for bolt in self.plan.bolts if bolt.kind == "arrow"}
        in_hand = sum(
            self.graph.nodes[one.source].par * len(executor.tasks) * (capacity + emits.get(one.source, _EMITS_MAX))
            for one in inputs
        )
        if executor.inbox.size_max > capacity + in_hand:
            self.record.violations.append(
                f"the queue of {executor.name} held {executor.inbox.size_max} tuples; "
                f"its capacity is {capacity}, and its producers may have had {in_hand} in hand"
            )

    def _check_counts(self) -> None:
        """Check that the runtime counts what the record does."""
        totals = self.runtime.stats().totals
        counted = {outcome: getattr(totals, counter) for outcome, counter in _COUNTERS.items()}
        counted["ACKED"] += totals.ack_errors  # the components write down an ack before they raise for it
        delivered = {outcome: self.record.outcomes[outcome] for outcome in _COUNTERS}
        if counted != delivered:
            self.record.violations.append(f"spouts received {delivered}, and the runtime counts {counted}")
        if totals.pending != len(self.record.open_trees()):
            self.record.violations.append(f"the runtime counts {totals.pending} trees as pending after the end")

    def _check_drained(self) -> None:
        wrong, world = self.record.violations, self.world
        for spout in self.plan.spouts:
            for task in self.graph.nodes[spout.name].tasks:
                emitted = world.numbers.get(task, 0)
                if emitted != spout.tuples:
                    wrong.append(f"drained, but task {task} of {spout.name} emitted {emitted} of {spout.tuples} tuples")
        wrong.extend(
            f"drained, but {tree.spout} {tree.tup_id!r} has neither been acked nor given up"
            for tree in self.record.trees
            if (tree.spout, tree.tup_id) not in world.finals
        )
        # Ackers may leave messages about trees that have ended: of who held tuples of such until the very end.
        for executor in self.runtime.lifecycle.executors or ():
            if executor.inbox.size:
                wrong.append(f"drained, but {executor.inbox.size} items are in the queue of {executor.name}")
