"""The record of a simulation: what was emitted, acked and failed, without tuple ids, xor or other parts of the runtime.

Every emitted tuple has a serial number among its values. The record has its deliveries, the tracked tuples from which
each of them derives, and whether it was acked, so that each outcome that reaches a spout can be checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from acker.topology import Reason, ReasonKind
from tests.torture.simulation.plan import Risks


@dataclass(slots=True, eq=False)
class Tree:
    """A tracked tuple of a spout, one attempt of it, and what derives from it.

    Attributes
    ----------
    open : int
        Deliveries that were not done.
    failed : bool
        Some delivery was failed.
    since_ns : int
        When it was emitted, or when somebody last asked for the whole timeout again.
    settled_ns : int
        When a part of it was last done or failed.
    ended : str or None
    """

    serial: int
    spout: str
    task: int
    tup_id: Hashable
    since_ns: int
    settled_ns: int = -1
    open: int = 0
    failed: bool = False
    ended: str | None = None

    def __str__(self) -> str:
        failed = ", one failed" if self.failed else ""
        return f"{self.spout} {self.tup_id!r} (#{self.serial}: {self.open} deliveries open{failed})"


@dataclass(slots=True, eq=False)
class Delivery:
    """A tuple on its way to one task, and the trees that it belongs to."""

    trees: tuple[Tree, ...]
    received: bool = False
    settled: bool = False


@dataclass(frozen=True)
class Reading:
    """Who reads a stream: the bolt, its tasks, and the kind of grouping."""

    bolt: str
    tasks: Sequence[int]
    grouping: str


@dataclass
class RunRecord:
    """What happened, and what must not have happened.

    Parameters
    ----------
    now_ns : callable
        The time.
    timeout_ns : int
        The message timeout.
    risks : Risks
        What the faults of this run excuse.

    Attributes
    ----------
    violations : list of str
        What broke an invariant. Nothing raises here: inside a component that would be a fault like any other.
    outcomes : Counter
        How often tracked tuples ended in which way.
    crashed, stopping : bool
        Whether an exception has escaped from a component, and whether somebody asked for the end.
    readings : dict
        (component, stream) -> who reads it.
    trees : list of Tree
    """

    now_ns: Callable[[], int]
    timeout_ns: int
    risks: Risks
    violations: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    crashed: bool = False
    stopping: bool = False
    readings: dict[tuple[str, str], Sequence[Reading]] = field(default_factory=dict)
    trees: list[Tree] = field(default_factory=list)
    _serial: int = 0
    _open: dict[tuple[str, Hashable], Tree] = field(default_factory=dict)
    _deliveries: dict[tuple[int, int], Delivery] = field(default_factory=dict)
    _chosen: dict[tuple[str, str, object], Sequence[int]] = field(default_factory=dict)

    @property
    def emit_count(self) -> int:
        """How many tuples were emitted."""
        return self._serial

    @property
    def delivery_count(self) -> int:
        """How many deliveries those became."""
        return len(self._deliveries)

    def next_serial(self) -> int:
        """Return the number of the next tuple."""
        self._serial += 1
        return self._serial

    def add_spout_emit(self, spout: str, task: int, serial: int, tup_id: Hashable | None, tasks: Sequence[int]) -> None:
        """Note a tuple of a spout's task; it is tracked if it has a tuple id."""
        if tup_id is None:
            self._deliver(serial, tasks, ())
            return
        tree = Tree(serial, spout, task, tup_id, self.now_ns())
        if (spout, tup_id) in self._open:
            self.violations.append(f"{self._open[spout, tup_id]} was emitted again before it had ended")
        self._open[spout, tup_id] = tree
        self.trees.append(tree)
        self._deliver(serial, tasks, (tree,))

    def add_bolt_emit(self, task: int, serial: int, anchors: Iterable[int], tasks: Sequence[int]) -> None:
        """Note a tuple of a bolt's task that was anchored to the tuples with these serial numbers."""
        trees = dict.fromkeys(tree for anchor in anchors for tree in self._deliveries[anchor, task].trees)
        self._deliver(serial, tasks, tuple(trees))

    def _deliver(self, serial: int, tasks: Sequence[int], trees: tuple[Tree, ...]) -> None:
        for task in tasks:
            if (serial, task) in self._deliveries:
                self.violations.append(f"tuple #{serial} was sent twice to task {task}")
            self._deliveries[serial, task] = Delivery(trees)
        for tree in trees:
            tree.open += len(tasks)

    def check_route(self, component: str, stream: str, key: object, target: int | None, tasks: Sequence[int]) -> None:
        """Check that the tasks to which a tuple went are those that its groupings name."""
        left = list(tasks)
        for reading in self.readings[component, stream]:
            chosen = [task for task in left if task in reading.tasks]
            left = [task for task in left if task not in reading.tasks]
            if not self._fits(reading, key, target, chosen):
                self.violations.append(
                    f"{component}[{stream}] reaches {reading.bolt}, tasks {list(reading.tasks)}, by "
                    f"{reading.grouping}: key {key!r} went to {chosen}"
                )
        if left:
            self.violations.append(f"{component}[{stream}] went to tasks {left}, which do not read it")

    def _fits(self, reading: Reading, key: object, target: int | None, chosen: Sequence[int]) -> bool:
        if reading.grouping == "all":
            return sorted(chosen) == sorted(reading.tasks)
        if reading.grouping == "direct":
            return list(chosen) == [task for task in reading.tasks if task == target]
        if reading.grouping == "global":
            return list(chosen) == [min(reading.tasks)]
        if reading.grouping == "custom":
            return self._chosen.setdefault((reading.bolt, reading.grouping, key), chosen) == chosen
        if reading.grouping == "fields":
            # The same task for a key, wherever tuples come from: joins depend on it.
            return len(chosen) == 1 and self._chosen.setdefault((reading.bolt, reading.grouping, key), chosen) == chosen
        return len(chosen) == 1

    def add_receive(self, serial: int, task: int) -> None:
        """Note that a task was handed a tuple."""
        delivery = self._deliveries.get((serial, task))
        if delivery is None:
            self.violations.append(f"task {task} was handed tuple #{serial}, which was not sent to it")
        elif delivery.received:
            self.violations.append(f"task {task} was handed tuple #{serial} twice")
        else:
            delivery.received = True

    def add_ack(self, serial: int, task: int) -> None:
        """Note that a task has done its work for a tuple and is about to ack it."""
        delivery = self._deliveries[serial, task]
        if not delivery.settled:
            delivery.settled = True
            for tree in delivery.trees:
                tree.open -= 1
                tree.settled_ns = self.now_ns()

    def add_fail(self, serial: int, task: int) -> None:
        """Note that a task is about to fail a tuple."""
        delivery = self._deliveries[serial, task]
        if not delivery.settled:
            delivery.settled = True
            for tree in delivery.trees:
                tree.failed = True
                tree.settled_ns = self.now_ns()

    def add_reset(self, serial: int, task: int) -> None:
        """Note that a task is about to reset the timeout of a tuple."""
        for tree in self._deliveries[serial, task].trees:
            # Else the message may come too late or be lost, or the spout hears late of what happened before it.
            if not self.risks.times_out and tree.spout not in self.risks.hears_late:
                tree.since_ns = self.now_ns()

    def add_outcome(self, spout: str, tup_id: Hashable, reason: Reason | None) -> None:
        """Record and check the outcome of a tracked tuple; without a reason it was acked."""
        outcome = "ACKED" if reason is None else reason.kind.name
        tree = self._open.pop((spout, tup_id), None)
        if tree is None:
            self.violations.append(f"{spout} {tup_id!r} ended as {outcome} and was not open")
            return
        tree.ended = outcome
        self.outcomes[outcome] += 1
        wrong = self._wrong_ack(tree) if reason is None else self._wrong_fail(tree, reason)
        if wrong:
            self.violations.append(f"{tree} ended as {outcome}: {wrong}")

    def _wrong_ack(self, tree: Tree) -> str | None:
        if tree.failed:
            return "but a part of it was failed"
        return "but not all derived work was done" if tree.open else None

    def _wrong_fail(self, tree: Tree, reason: Reason) -> str | None:
        if reason.kind is ReasonKind.FAILED:
            return None if tree.failed else "but nobody failed it"
        if reason.kind is ReasonKind.RESTART:
            return None if self.crashed else "but nothing was raised"
        if reason.kind is ReasonKind.SHUTDOWN:
            return None if self.stopping or self.crashed else "but nobody stops"
        if reason.kind is ReasonKind.REJECTED:
            return None if self.risks.rejects else "but the ackers have no high-water mark"
        waited_ns = self.now_ns() - tree.since_ns
        # A reset at the very moment at which the acker gave up comes too late.
        if 0 < waited_ns < self.timeout_ns:
            return f"after {waited_ns / 1e9} s, but the timeout is {self.timeout_ns / 1e9} s"
        # What is done at this moment was not yet done when the acker gave up.
        late = self.risks.times_out or tree.spout in self.risks.hears_late or tree.settled_ns == self.now_ns()
        if late:
            return None
        if tree.failed:
            return "but it had been failed"
        return None if tree.open else "but all derived work was done"

    def open_trees(self) -> list[Tree]:
        """Return the trees whose outcome did not reach a spout."""
        return list(self._open.values())

    def lost_tuples(self) -> list[tuple[int, int]]:
        """Return serial number and task of the deliveries that never arrived."""
        return [key for key, delivery in self._deliveries.items() if not delivery.received]
