"""The tasks that hold the tuples of open trees, found in the executors when somebody asks.

Traces (`topology.trace.sample`) know every tuple of the trees that they follow, and cost time with each tuple. This
module costs nothing until it is asked, and then looks where tuples can be: inside `process`, in buffers, in queues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

from acker.local.calls import short_line_of
from acker.local.executors.base import ComponentExecutor
from acker.local.executors.bolt import BoltExecutor, BoltTask
from acker.local.wiring import ExecutorSet
from acker.observe.calls import UserCall
from acker.observe.holders import Holder, How
from acker.topology.methods import line_of_work
from acker.topology.tuple_batch import rows_of
from acker.topology.tuples import Tuple

_NS_PER_MS: Final = 1_000_000
# How many tuples of a queue are looked at, the oldest ones. Old trees have theirs there.
_LOOKED_AT_MAX: Final = 2_000
# How many holders of a tree are named.
_NAMED_MAX: Final = 8
# How often counts are read that another thread changes meanwhile.
_TRIES: Final = 5


def find_holders(
    executors: ExecutorSet, roots: Collection[int], calls: Mapping[int, UserCall], now_ns: int
) -> dict[int, list[Holder]]:
    """Return the holders of trees by their root ids, with the lines of `calls`, which are those of this moment.

    Any thread may call it; tuples that move meanwhile are missed.
    """
    found: dict[int, list[Holder]] = {root_id: [] for root_id in roots}

    def note(tuples: Iterable[Tuple], holder: Holder) -> None:
        for tup in islice(tuples, _LOOKED_AT_MAX):
            for root_id in tup._ids or ():
                holders = found.get(root_id)
                if holders is not None and holder not in holders and len(holders) < _NAMED_MAX:
                    holders.append(holder)

    for executor in executors:
        since_ns = executor.step_since_ns
        busy_ms = None if since_ns is None else (now_ns - since_ns) // _NS_PER_MS
        line = short_line_of(executor, calls)
        for task in executor.tasks:
            collector = task.collector
            inside = Holder(collector.component, collector.task, "process", busy_ms, line=line)
            if busy_ms is not None:
                note(chain(_inputs(collector), *(rows_of(outlet.waiting()) for outlet in collector.outlets)), inside)
        if isinstance(executor, BoltExecutor):
            for task, tuples in executor.in_work():
                note(tuples, Holder(task.collector.component, task.collector.task, "process", busy_ms, line=line))
            for task, tuples in _oldest(executor.waiting()):
                collector = task.collector
                settled = [tup for tup in tuples if tup._is_settled]
                if busy_ms is not None:  # The acks of a step leave when it ends.
                    note(settled, Holder(collector.component, collector.task, "process", busy_ms, line=line))
                fresh = [tup for tup in tuples if tup._owner is None]
                note(fresh, Holder(collector.component, collector.task, "queue"))
                kept = [tup for tup in tuples if tup._owner is collector and tup not in _inputs(collector)]
                note(kept, Holder(collector.component, collector.task, "held", line=line_of_work(type(task.bolt))))
    find_outcomes(executors, found, calls, now_ns)
    _guess(executors, found)
    return found


def find_outcomes(
    executors: ExecutorSet, found: Mapping[int, list[Holder]], calls: Mapping[int, UserCall], now_ns: int
) -> None:
    """Add the spouts to which outcomes have come that they do not take, because they are inside user code."""
    for executor in executors.spouts:
        since_ns = executor.step_since_ns
        busy_ms = None if since_ns is None else (now_ns - since_ns) // _NS_PER_MS
        line = short_line_of(executor, calls)
        arrived = ((index, task.arrived_outcomes()) for index, task in enumerate(executor.tasks))
        for index, outcomes in chain(arrived, executor.inbox.chunks()):
            collector = executor.tasks[index].collector
            for message_id, _, _ in outcomes:
                root_id = collector.root_of(message_id)
                holders = None if root_id is None else found.get(root_id)
                if holders is not None:
                    holders.append(Holder(collector.component, collector.task, "outcome", busy_ms, line=line))


def _inputs(collector: Any) -> tuple[Tuple, ...]:
    return getattr(collector, "inputs", ())


def _oldest(chunks: Iterable[tuple[BoltTask, list[Tuple]]]) -> Iterator[tuple[BoltTask, list[Tuple]]]:
    looked_at = 0
    for task, tuples in chunks:
        yield task, tuples
        looked_at += len(tuples)
        if looked_at > _LOOKED_AT_MAX:
            return


def _guess(executors: ExecutorSet, found: Mapping[int, list[Holder]]) -> None:
    """Name the tasks that hold tuples, for trees whose tuples are nowhere else."""
    missing = [holders for holders in found.values() if not holders]
    if not missing:
        return
    keepers = [
        (executor, task) for executor in executors.bolts for task in executor.tasks if _held_count(executor, task) > 0
    ]
    how: How = "held" if len(keepers) == 1 else "maybe"
    named = [
        Holder(task.collector.component, task.collector.task, how, line=line_of_work(type(task.bolt)))
        for _, task in keepers[:_NAMED_MAX]
    ]
    for holders in missing:
        holders.extend(named)


def _held_count(executor: ComponentExecutor, task: Any) -> int:
    """Return how many tuples a task holds besides those that it processes now."""
    collector = task.collector
    for _ in range(_TRIES):
        executed = collector.executed
        inside = () if executor.step_since_ns is None else _inputs(collector)
        # One that is settled does not count as held any more, although `process` has not returned.
        held = int(task.held_count) - sum(not tup._is_settled for tup in inside)
        if collector.executed == executed:  # It has begun with no further tuple meanwhile.
            break
    return held
