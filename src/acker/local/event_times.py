"""Event times in a local run: how far each spout's trees have ended, and the watermarks of bolts that follow from it.

A bolt acks a tuple once it is in its windows. So when every tree that a spout task emitted up to some tuple has ended,
all that derives from these trees has arrived, however deep the topology is and however many tasks it has. What comes
later derives from later tuples of that spout task, and these are not earlier if its source is in order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from acker.local.clock import Clock
from acker.local.executors.base import Mode
from acker.local.executors.bolt import BoltExecutor
from acker.local.executors.spout import SpoutExecutor, SpoutTask
from acker.local.open_batches import TreeOutcome
from acker.topology.graph import Graph, Node
from acker.topology.tuples import Tuple
from acker.topology.watermarks import SourceTime, ended_by, sources_of, time_of_all
from acker.topology.windowed import WindowedBolt

_NS_PER_SEC: Final = 1_000_000_000

# A component that has noted this number of trees drops those that are not open. Tuples may come after their tree has
# failed.
_NOTED_MIN: Final = 65_536

logger = logging.getLogger("acker.local")


@dataclass
class SpoutProgress:
    """How far the trees of one spout task have ended, in rounds.

    A round begins with a look at what was emitted and ends when all of that has ended, so nothing has to be kept for
    each tree.

    Attributes
    ----------
    round_end : int
        The message ids below this one were emitted before the round began.
    round_ns : int
        When the round began.
    settled_ns : int
        All that was emitted before this time has ended.
    awake_ns : int
        Since when the spout could emit: it was not paused, and no queue was full.
    is_finished : bool
        Whether it will emit nothing more, and has nothing open.
    """

    executor: SpoutExecutor
    task: SpoutTask
    round_ns: int
    settled_ns: int
    awake_ns: int
    round_end: int = 0
    is_finished: bool = False

    def look(self, now_ns: int) -> tuple[bool, bool]:
        """Look at the open trees.

        Returns
        -------
        bool, bool
            Whether a round has ended and the next one begins; and whether no tree was open when this look began.
        """
        if self.executor.mode is not Mode.RUN or self.executor.blocked:
            self.awake_ns = now_ns
        has_ended = self.task.spout._finished and self.task.next_replay_ns() is None
        ids = self.task.collector.open_from()
        if ids is None or ids[0] < self.round_end:
            self.is_finished = False
            return False, False
        oldest, following = ids
        self.settled_ns = self.round_ns if oldest < following else now_ns
        self.round_ns, self.round_end = now_ns, following
        self.is_finished = has_ended and oldest == following
        return True, oldest == following


@dataclass
class TreeSource:
    """The event times in the trees of one spout task, as one component sees them.

    Attributes
    ----------
    latest_ms : int or None
        The latest in trees that have ended.
    round_ms : int or None
        The same when the round began.
    reached_ms : int or None
        The same of the round before: since then all trees that were open have ended.
    came_ns : int
        When the last tree ended that has reached the component.
    """

    came_ns: int
    latest_ms: int | None = None
    round_ms: int | None = None
    reached_ms: int | None = None

    def begin_round(self, *, is_all: bool) -> None:
        """Begin a round; with `is_all`, no tree is open that was emitted before."""
        self.reached_ms = self.latest_ms if is_all else self.round_ms
        self.round_ms = self.latest_ms


@dataclass
class SenderSource:
    """The event times in tuples of one task that belong to no tree; they come in the order in which they were sent."""

    came_ns: int
    reached_ms: int | None = None


class ComponentTimes:
    """The event times of one component: those in its trees, which its tasks share.

    Parameters
    ----------
    node : Node
    senders : sequence of Node
        The bolts with windows by time that send to it.
    spouts : mapping of int to SpoutProgress
        The spout tasks whose trees reach it.
    executors : sequence of BoltExecutor
        Its executors, which are woken when windows may end.

    Attributes
    ----------
    is_over : bool
        Whether nothing more will come.
    """

    def __init__(
        self,
        node: Node,
        senders: Sequence[Node],
        spouts: Mapping[int, SpoutProgress],
        executors: Sequence[BoltExecutor],
        clock: Clock,
    ) -> None:
        assert issubclass(node.component, WindowedBolt)
        self.component = node.component
        self.name = node.name
        self.senders = senders
        self.spouts = spouts
        self.executors = executors
        self.idle_ns = node.component.idle_secs * _NS_PER_SEC
        self.is_over = False
        now_ns = clock.now_ns()
        self._trees = {task: TreeSource(now_ns) for task in spouts}
        # Root id -> the latest time of its tuples that have come, while its tree is open.
        self._noted: dict[int, int] = {}
        # The same of tuples that belong to other trees as well, such as those of a batch: their times may be of these,
        # so the earliest counts, and only where the tree has no tuple of its own.
        self._shared: dict[int, int] = {}
        self._latest_ms: int | None = None
        self._noted_max = _NOTED_MIN
        self._seen_ended_ms: int | None = None
        self._has_told = False

    def note(self, roots: Collection[int], time_ms: int) -> None:
        """Take note of a tuple that came."""
        self._latest_ms = time_ms if self._latest_ms is None else max(self._latest_ms, time_ms)
        if len(roots) == 1:
            (root_id,) = roots
            self._noted[root_id] = max(self._noted.get(root_id, time_ms), time_ms)
        else:
            for root_id in roots:
                self._shared[root_id] = min(self._shared.get(root_id, time_ms), time_ms)
        if len(self._noted) + len(self._shared) > self._noted_max:
            self._forget_ended()

    def _forget_ended(self) -> None:
        open_ids: set[int] = set()
        for progress in self.spouts.values():
            open_ids.update(progress.task.collector.open_root_ids())
        self._noted = {root_id: noted for root_id, noted in self._noted.items() if root_id in open_ids}
        self._shared = {root_id: noted for root_id, noted in self._shared.items() if root_id in open_ids}
        self._noted_max = max(_NOTED_MIN, 2 * (len(self._noted) + len(self._shared)))

    def end_tree(self, spout: int, root_id: int, now_ns: int) -> None:
        """Take note of the end of a tree."""
        shared_ms = self._shared.pop(root_id, None)
        time_ms = self._noted.pop(root_id, shared_ms)
        source = self._trees.get(spout)
        if time_ms is not None and source is not None:
            source.came_ns = now_ns
            source.latest_ms = time_ms if source.latest_ms is None else max(source.latest_ms, time_ms)

    def begin_round(self, spout: int, *, is_all: bool) -> None:
        """Begin a round of a spout task."""
        if spout in self._trees:
            self._trees[spout].begin_round(is_all=is_all)

    def sources(self) -> list[SourceTime]:
        """Return what the spout tasks have reached, and the latest time, which counts once all of them are gone."""
        return [
            SourceTime(self._latest_ms, is_gone=True),
            *(
                SourceTime(each.reached_ms, self.is_over or self._is_gone(each, self.spouts[spout]))
                for spout, each in self._trees.items()
            ),
        ]

    def _is_gone(self, source: TreeSource, progress: SpoutProgress) -> bool:
        since_ns = max(source.came_ns, progress.awake_ns)
        return progress.is_finished or since_ns + self.idle_ns <= progress.settled_ns

    def wake(self) -> None:
        """Wake the executors if further windows may end by what spouts have reached."""
        ended_ms = ended_by(self.component, time_of_all(self.sources()))
        if ended_ms is not None and (self._seen_ended_ms is None or ended_ms > self._seen_ended_ms):
            self._seen_ended_ms = ended_ms
            for executor in self.executors:
                executor.signal.set()

    def tell_late(self, text: str) -> None:
        """Log that a tuple is late, if it is the first one."""
        if not self._has_told:
            self._has_told = True
            logger.warning("%s", text)


class TaskWatermark:
    """The watermark of one task of a bolt: the minimum over the spouts of its trees, and over those who send others.

    Tuples without a tree are in the order of their sender, and no task knows what is in the queue of another. So each
    task has its own senders.
    """

    def __init__(self, times: EventTimes, component: ComponentTimes) -> None:
        self._times = times
        self._component = component
        self._senders: dict[int, SenderSource] = {}
        for node in component.senders:
            self._add_senders(node)

    def _add_senders(self, node: Node) -> None:
        now_ns = self._times.clock.now_ns()
        self._senders.update((task, SenderSource(now_ns)) for task in node.tasks)

    def note(self, tup: Tuple, time_ms: int) -> None:
        """Take note of a tuple that came, and of its event time."""
        roots = tup._ids
        with self._times.lock:
            if roots and self._component.spouts:
                self._component.note(roots, time_ms)
                return
        source = self._senders.get(tup.task)
        if source is None:  # Its component emits without anchors, so all of its tasks may.
            self._add_senders(self._times.node_of(tup.component))
            source = self._senders.setdefault(tup.task, SenderSource(0))
        source.came_ns = self._times.clock.now_ns()
        source.reached_ms = time_ms if source.reached_ms is None else max(source.reached_ms, time_ms)

    def ended_ms(self) -> int | None:
        """Return the end of the last window that may end now."""
        component = self._component
        now_ns = self._times.clock.now_ns()
        with self._times.lock:
            self._times.look(now_ns)
            sources = component.sources()
        for sender in list(self._senders.values()):  # The lifecycle asks too, on its own thread.
            is_idle = sender.came_ns + component.idle_ns <= now_ns
            sources.append(SourceTime(sender.reached_ms, component.is_over or is_idle))
        return ended_by(component.component, time_of_all(sources))

    def tell_late(self, text: str) -> None:
        """Log that a tuple is late, if it is the first one of the component."""
        self._component.tell_late(text)


class EventTimes:
    """The event times of a topology: its spouts report which trees end, and its bolts which times come.

    Parameters
    ----------
    graph : Graph
    spouts : sequence of SpoutExecutor
    bolts : mapping of str to sequence of BoltExecutor
        Those of the components with event time.
    clock : Clock

    Attributes
    ----------
    lock : RLock
        Held for what several executors share.
    """

    def __init__(
        self,
        graph: Graph,
        spouts: Sequence[SpoutExecutor],
        bolts: Mapping[str, Sequence[BoltExecutor]],
        clock: Clock,
    ) -> None:
        self.clock = clock
        # Reentrant: a finalizer may run while the lock is held, and may emit or ack.
        self.lock = threading.RLock()
        self._graph = graph
        now_ns = clock.now_ns()
        self._progress = {
            task.collector.task: SpoutProgress(executor, task, now_ns, now_ns, now_ns)
            for executor in spouts
            for task in executor.tasks
        }
        self._components = [self._times_of(name, executors) for name, executors in bolts.items()]
        for executor in spouts:
            executor.tree_watcher = self
            for task in executor.tasks:
                task.collector.follow_untracked()

    def _times_of(self, name: str, executors: Sequence[BoltExecutor]) -> ComponentTimes:
        sources = sources_of(self._graph, name)
        tracked = {
            task: self._progress[task]
            for node in sources
            for task in node.tasks
            if task in self._progress and len(self._progress[task].task.collector.ack_sender)
        }
        senders = [node for node in sources if node.kind == "bolt"]
        return ComponentTimes(self._graph.nodes[name], senders, tracked, executors, self.clock)

    def node_of(self, component: str) -> Node:
        """Return a component of the topology."""
        return self._graph.nodes[component]

    def watermark_of(self, name: str) -> TaskWatermark:
        """Return the watermark of another task of a component."""
        return TaskWatermark(self, self._component(name))

    def _component(self, name: str) -> ComponentTimes:
        return next(each for each in self._components if each.name == name)

    def end_trees(self, task: SpoutTask, outcomes: Iterable[TreeOutcome]) -> None:
        """Take note of trees that have ended, before their spout hears of it."""
        collector = task.collector
        now_ns = self.clock.now_ns()
        with self.lock:
            for message_id, _, _ in outcomes:
                root_id = collector.root_of(message_id)
                if root_id is not None:
                    for each in self._components:
                        each.end_tree(collector.task, root_id, now_ns)

    def look(self, now_ns: int) -> None:
        """Begin the rounds that may begin; the lock is held, so no tree is noted as ended meanwhile."""
        for spout, progress in self._progress.items():
            begins, is_all = progress.look(now_ns)
            if begins:
                for each in self._components:
                    each.begin_round(spout, is_all=is_all)

    def wake(self) -> None:
        """Wake the executors of bolts whose windows may end."""
        with self.lock:
            self.look(self.clock.now_ns())
            for each in self._components:
                each.wake()

    def end(self, component: str) -> None:
        """Declare that nothing more will come to a component, so that all windows end that its latest time allows."""
        with self.lock:
            self._component(component).is_over = True
            for executor in self._component(component).executors:
                executor.signal.set()
