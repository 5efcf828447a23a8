"""Traces of sampled tuple trees: the tasks that hold the tuples of a tree that timed out, and the times they take.

The acker only knows the xor of a tree's open tuple ids, which names no task. So for one tree in N
(`topology.trace.sample`) the runtime records each delivery here, with the component and task that receives it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Hashable, Mapping
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from acker.local.clock import Clock
from acker.observe.durations import format_duration
from acker.observe.reasons import Reason, ReasonKind
from acker.topology.anchors import Anchors

# Limits of what is kept of one tree, which may be of any size.
OPEN_EDGES_MAX: Final = 1_000
SETTLED_EDGES_MAX: Final = 200
# Number of tasks that a description names.
_NAMED_MAX: Final = 8
# Number of warnings that a report keeps: the last ones.
_TEXTS_MAX: Final = 1_000

# The outcomes that cause a warning, and how it names them.
_WARNED: Final = {ReasonKind.TIMED_OUT: "timed out", ReasonKind.SHUTDOWN: "was open at the end"}

logger = logging.getLogger("acker.local")


class HeldTuple(NamedTuple):
    """A tuple that was delivered and neither acked nor failed.

    Attributes
    ----------
    component, task : str, int
        The task that received it; it may still wait in that task's queue.
    tuple_id : int
    held_ms : int
        Since it was emitted.
    from_component : str
        The component that emitted it.
    """

    component: str
    task: int
    tuple_id: int
    held_ms: int
    from_component: str


class SettledTuple(NamedTuple):
    """A tuple that was acked or failed.

    Attributes
    ----------
    component, task, tuple_id, held_ms, from_component
        As in `HeldTuple`; held_ms ends with the ack or fail.
    failed : bool
    """

    component: str
    task: int
    tuple_id: int
    held_ms: int
    from_component: str
    failed: bool


class _TracedEdge(NamedTuple):
    component: str
    task: int
    from_component: str
    emitted_ns: int


class _Tree:
    __slots__ = ("began_ns", "open", "settled", "settled_count", "unseen")

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.open: dict[int, _TracedEdge] = {}
        self.settled: deque[SettledTuple] = deque(maxlen=SETTLED_EDGES_MAX)
        self.settled_count = 0
        self.unseen = 0  # edges beyond OPEN_EDGES_MAX


class EdgeTraces:
    """The traces of sampled trees, kept until the trees end. Any thread may call any method.

    Parameters
    ----------
    clock : object with now_ns() -> int
    limit : int
        Number of trees that are kept; beyond it the oldest is dropped. Of each tree at most `OPEN_EDGES_MAX` open edges
        and the last `SETTLED_EDGES_MAX` settled ones are kept.
    """

    def __init__(self, clock: Clock, limit: int = 10_000) -> None:
        if limit < 1:
            raise ValueError(f"limit: expected an int of at least 1, got {limit}")
        self._clock = clock
        self._limit = limit
        # Reentrant: a finalizer may run while the lock is held, and may emit or ack.
        self._lock = threading.RLock()
        self._trees: dict[int, _Tree] = {}
        # Trees that have ended, so that late emits do not start them again. A dict, for its order.
        self._ended: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._trees)

    def record_emit(self, root: int, tuple_id: int, component: str, task: int, from_component: str) -> None:
        """Record that a tuple of a tree was sent to a task of `component`."""
        now_ns = self._clock.now_ns()
        with self._lock:
            tree = self._trees.get(root)
            if tree is None:
                if root in self._ended:
                    return
                tree = self._trees[root] = _Tree(now_ns)
                if len(self._trees) > self._limit:
                    self._forget(next(iter(self._trees)))
            if len(tree.open) < OPEN_EDGES_MAX:
                tree.open[tuple_id] = _TracedEdge(component, task, from_component, now_ns)
            else:
                tree.unseen += 1

    def record_ack(self, root: int, tuple_id: int) -> None:
        """Record that a task acked a tuple. Unknown tuples, as after the end of a tree, are ignored."""
        self._settle(root, tuple_id, failed=False)

    def record_fail(self, root: int, tuple_id: int) -> None:
        """Record that a task failed a tuple. Unknown tuples are ignored."""
        self._settle(root, tuple_id, failed=True)

    def forget(self, root: int) -> None:
        """Drop a tree that has ended."""
        with self._lock:
            self._forget(root)

    def held_tuples(self, root: int) -> list[HeldTuple]:
        """Return the tuples of a tree that tasks hold, those held longest first; none for an unknown tree."""
        now_ns = self._clock.now_ns()
        with self._lock:
            tree = self._trees.get(root)
            edges = [] if tree is None else list(tree.open.items())
        held = [
            HeldTuple(edge.component, edge.task, tuple_id, (now_ns - edge.emitted_ns) // 1_000_000, edge.from_component)
            for tuple_id, edge in edges
        ]
        return sorted(held, key=lambda edge: -edge.held_ms)

    def settled_tuples(self, root: int) -> list[SettledTuple]:
        """Return the last tuples of a tree that were acked or failed, in this order."""
        with self._lock:
            tree = self._trees.get(root)
            return [] if tree is None else list(tree.settled)

    def describe(self, root: int) -> str:
        """Return in one line which tasks hold tuples of a tree, and for how long.

        >>> class Clock:
        ...     now = 0
        ...     def now_ns(self):
        ...         return self.now
        >>> clock = Clock()
        >>> traces = EdgeTraces(clock)
        >>> traces.record_emit(7, 1, "split", 2, from_component="lines")
        >>> traces.record_emit(7, 2, "count", 4, from_component="split")
        >>> traces.record_ack(7, 1)
        >>> clock.now = 30_200_000_000
        >>> traces.describe(7)
        'tree 7, begun 30.2 s ago: count[4] holds 1 tuple of split, for 30.2 s; 1 other tuple was settled'
        """
        held, now_ns = self.held_tuples(root), self._clock.now_ns()
        with self._lock:
            tree = self._trees.get(root)
            if tree is None:
                return f"tree {root} was not traced"
            began_ns, settled, unseen = tree.began_ns, tree.settled_count, tree.unseen
        holders: dict[tuple[str, int], list[HeldTuple]] = {}
        for edge in held:
            holders.setdefault((edge.component, edge.task), []).append(edge)
        parts = [_describe_holder(edges) for edges in islice(holders.values(), _NAMED_MAX)]
        if len(holders) > _NAMED_MAX:
            parts.append(f"{len(holders) - _NAMED_MAX} more tasks hold tuples of it")
        if unseen:
            parts.append(f"{_tuples(unseen)} more were not traced")
        if not parts:
            parts.append("no task holds a tuple of it, so a message to the acker is missing or late")
        if settled:
            parts.append(f"{_tuples(settled, 'other ')} {'was' if settled == 1 else 'were'} settled")
        return f"tree {root}, begun {format_duration((now_ns - began_ns) // 1_000_000)} ago: {'; '.join(parts)}"

    def _settle(self, root: int, tuple_id: int, *, failed: bool) -> None:
        now_ns = self._clock.now_ns()
        with self._lock:
            tree = self._trees.get(root)
            edge = None if tree is None else tree.open.pop(tuple_id, None)
            if tree is None or edge is None:
                return
            tree.settled_count += 1
            held_ms = (now_ns - edge.emitted_ns) // 1_000_000
            tree.settled.append(SettledTuple(edge.component, edge.task, tuple_id, held_ms, edge.from_component, failed))

    def _forget(self, root: int) -> None:
        if self._trees.pop(root, None) is not None:
            self._ended[root] = None
            if len(self._ended) > self._limit:
                del self._ended[next(iter(self._ended))]


class Sampler:
    """Traces one tree in `sample`, chosen by its root id, so that all tasks choose the same trees.

    Parameters
    ----------
    names : mapping
        Task id -> component.

    Attributes
    ----------
    texts : deque of str
        For each traced tree that timed out or was open at the end: which tasks held which tuples, for how long.
    """

    def __init__(self, clock: Clock, sample: int, names: Mapping[int, str]) -> None:
        self.traces = EdgeTraces(clock)
        self.texts: deque[str] = deque(maxlen=_TEXTS_MAX)
        self._sample = sample
        self._names = names

    def record_emit(self, ids: Mapping[int, int], task: int, component: str) -> None:
        """Record a delivery to a task."""
        for root_id, tuple_id in ids.items():
            if root_id % self._sample == 0:
                self.traces.record_emit(root_id, tuple_id, self._names[task], task, component)

    def record_settle(self, ids: Mapping[int, int], *, failed: bool) -> None:
        """Record that a tuple was acked or failed."""
        for root_id, tuple_id in ids.items():
            if root_id % self._sample == 0:
                (self.traces.record_fail if failed else self.traces.record_ack)(root_id, tuple_id)

    def record_rows(self, anchors: Anchors, task: int, component: str) -> None:
        """Record the delivery of rows to a task."""
        for place in np.flatnonzero(anchors.root_id % self._sample == 0).tolist():
            self.record_emit({int(anchors.root_id[place]): int(anchors.tuple_id[place])}, task, component)

    def record_settled_rows(self, anchors: Anchors, failed: Collection[int]) -> None:
        """Record that rows were acked, or failed."""
        rows = anchors.row_of_each()
        for place in np.flatnonzero(anchors.root_id % self._sample == 0).tolist():
            ids = {int(anchors.root_id[place]): int(anchors.tuple_id[place])}
            self.record_settle(ids, failed=int(rows[place]) in failed)

    def record_end(self, root_id: int, component: str, tup_id: Hashable, reason: Reason | None) -> None:
        """Record that a tree ended; warn if it timed out or was open at the end."""
        if root_id % self._sample:
            return
        if reason is not None and reason.kind in _WARNED:
            text = f"{component}: {tup_id!r} {_WARNED[reason.kind]}: {self.traces.describe(root_id)}"
            self.texts.append(text)
            logger.warning("%s", text)
        self.traces.forget(root_id)


def _describe_holder(edges: list[HeldTuple]) -> str:
    first = edges[0]
    sources = ", ".join(dict.fromkeys(edge.from_component for edge in edges))
    since = (
        f"for {format_duration(first.held_ms)}"
        if len(edges) == 1
        else f"the first for {format_duration(first.held_ms)}"
    )
    return f"{first.component}[{first.task}] holds {_tuples(len(edges))} of {sources}, {since}"


def _tuples(count: int, which: str = "") -> str:
    return f"{count:,} {which}tuple{'' if count == 1 else 's'}"
