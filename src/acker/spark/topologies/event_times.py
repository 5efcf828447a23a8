"""Event times on Spark: what a micro-batch brings, and the watermarks of the next one, which the driver makes of it.

All trees of a micro-batch end with it, so all that derives from what a spout has emitted has arrived. The watermark of
a bolt stays as it is while a micro-batch runs, however Spark cuts it into tasks, and however often these run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from acker.topology.graph import Graph, Node, reachable
from acker.topology.spout import has_frame
from acker.topology.tuples import Tuple
from acker.topology.watermarks import SourceTime, ended_by, has_event_time, sources_of, time_of_all
from acker.topology.windowed import WindowedBolt

if TYPE_CHECKING:
    from acker.local.executors.spout import SpoutExecutor, SpoutTask

_NS_PER_SEC: Final = 1_000_000_000

# A source of tuples: the task of a spout on the driver, or the name of another component, whose tasks only say how
# Spark has cut its rows.
SourceKey = int | str

# Stands among the sources of a bolt for the latest time of all its tuples, which counts once all of them are gone.
LATEST: Final = ""


class SourceState(NamedTuple):
    """The event times of one source of a bolt, as a commit keeps them.

    Attributes
    ----------
    time_ms : int or None
        The latest event time of its tuples.
    silent_ns : int or None
        When the first of the last micro-batches ended that brought nothing of it; None if the last one did.
    """

    time_ms: int | None = None
    silent_ns: int | None = None


# Bolt -> its sources.
BoltTimes = Mapping[str, Mapping[SourceKey, SourceState]]


def key_of(node: Node, task: int) -> SourceKey:
    """Return the source that a task of a component is."""
    return task if node.kind == "spout" and not has_frame(node.component) else node.name


def source_keys(graph: Graph, name: str) -> list[SourceKey]:
    """Return the sources of a bolt with event time that are known from its topology."""
    return list(dict.fromkeys(key_of(node, task) for node in sources_of(graph, name) for task in node.tasks))


def spout_keys(graph: Graph) -> dict[int, SourceKey]:
    """Return the source that each spout task is."""
    return {task: key_of(node, task) for node in graph.spouts for task in node.tasks}


class BatchWatermark:
    """The watermark of one task in one micro-batch, which stands still, and the times that came to it.

    Parameters
    ----------
    graph : Graph
    name : str
        The bolt.
    ended_ms : int or None
        The end of the last window that may end.

    Attributes
    ----------
    senders : dict of SourceKey to int
        The latest time by source, where that is known.
    trees : dict of int to int
        Root id -> the latest time of tuples of this tree alone, where the settlement has to say whose it is.
    shared : dict of int to int
        Root id -> the earliest time of tuples that belong to other trees as well, such as those of a batch: their times
        may be of these.
    late : str or None
        The warning about the first late tuple.
    """

    def __init__(self, graph: Graph, name: str, ended_ms: int | None) -> None:
        keys = source_keys(graph, name)
        self.name = name
        self.senders: dict[SourceKey, int] = {}
        self.trees: dict[int, int] = {}
        self.shared: dict[int, int] = {}
        self.late: str | None = None
        self._graph = graph
        self._ended_ms = ended_ms
        self._only = keys[0] if len(keys) == 1 else None

    def note(self, tup: Tuple, time_ms: int) -> None:
        """Take note of a tuple that came, and of its event time."""
        roots = None if self._only is not None else tup._ids
        if not roots:
            key = self._only
            if key is None:
                key = key_of(self._graph.nodes[tup.component], tup.task)
            self._note_source(key, time_ms)
        elif len(roots) == 1:
            (root_id,) = roots
            self.trees[root_id] = max(self.trees.get(root_id, time_ms), time_ms)
        else:
            self._note_source(LATEST, time_ms)
            for root_id in roots:
                self.shared[root_id] = min(self.shared.get(root_id, time_ms), time_ms)

    def _note_source(self, key: SourceKey, time_ms: int) -> None:
        self.senders[key] = max(self.senders.get(key, time_ms), time_ms)

    def ended_ms(self) -> int | None:
        """Return the end of the last window that may end now."""
        return self._ended_ms

    def tell_late(self, text: str) -> None:
        """Keep what is to be said of the first late tuple."""
        self.late = self.late or text

    def tree_columns(self) -> Iterator[tuple[bool, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield root ids and times: of `trees`, and, with True before them, of `shared`."""
        for is_shared, times in ((False, self.trees), (True, self.shared)):
            if times:
                count = len(times)
                yield (
                    is_shared,
                    np.fromiter(times.keys(), np.int64, count),
                    np.fromiter(times.values(), np.int64, count),
                )


def join_shared(
    own: Sequence[npt.NDArray[np.int64]], shared: Sequence[npt.NDArray[np.int64]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return root ids and times of trees: their own times, and the earliest shared one where a tree has no own.

    Parameters
    ----------
    own, shared : sequence of (2, n) int64
        Root ids and times, as the tasks of a bolt have noted them.
    """
    roots, times = np.concatenate([*own, np.empty((2, 0), np.int64)], axis=1)
    other, earliest = np.concatenate([*shared, np.empty((2, 0), np.int64)], axis=1)
    order = np.lexsort((earliest, other))
    other, earliest = other[order], earliest[order]
    is_first = np.append(True, other[1:] != other[:-1])[: len(other)] & ~np.isin(other, roots)
    return np.append(roots, other[is_first]), np.append(times, earliest[is_first])


def latest_by_task(
    roots: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
    ended: npt.NDArray[np.int64],
    owners: npt.NDArray[np.int64],
) -> dict[int, int]:
    """Return the latest time by the owner of the trees.

    Parameters
    ----------
    roots, times : (n,) int64
        Trees that have reached a bolt, and their latest times.
    ended, owners : (m,) int64
        Trees that have ended, ascending, and whose each one is.
    """
    if not len(ended):
        return {}
    indices = np.minimum(np.searchsorted(ended, roots), len(ended) - 1)
    is_known = ended[indices] == roots
    found, times = owners[indices[is_known]], times[is_known]
    order = np.lexsort((times, found))
    last = np.flatnonzero(np.append(found[order][1:] != found[order][:-1], True)) if len(order) else order
    return dict(zip(found[order][last].tolist(), times[order][last].tolist(), strict=True))


def merge_times(into: dict[str, dict[SourceKey, int]], name: str, times: Mapping[SourceKey, int]) -> None:
    """Add the latest times of sources of a bolt to others."""
    known = into.setdefault(name, {})
    for key, time_ms in times.items():
        known[key] = max(known.get(key, time_ms), time_ms)


class SpoutLook(NamedTuple):
    """The spout tasks at one moment: before the tuples of a micro-batch are taken.

    Attributes
    ----------
    finished : set of int
        Those whose tuples have all been in a micro-batch, or wait for the next one.
    untracked : set of int
        Those that emit without tuple ids, as far as is known.
    are_all_finished : bool
    """

    finished: set[int]
    untracked: set[int]
    are_all_finished: bool

    @classmethod
    def at(cls, spouts: Mapping[int, tuple[SpoutExecutor, SpoutTask]]) -> SpoutLook:
        """Look at the spouts, by their tasks."""
        finished = {number for number, spout in spouts.items() if _has_finished(*spout)}
        untracked = {number for number, (_, task) in spouts.items() if _is_untracked(task)}
        return cls(finished, untracked, len(finished) == len(spouts))


class Watermarks:
    """Makes the watermarks of a micro-batch from what those before it brought. On the driver.

    Parameters
    ----------
    graph : Graph
    order : iterable of str
        The components, each after those that it reads.
    began_ns : int
        When this run began: sources are not idle for having been silent before.

    Attributes
    ----------
    names : list of str
        The bolts with event time.
    has_several : bool
        Whether one of them has several sources.
    """

    def __init__(self, graph: Graph, order: Iterable[str], began_ns: int) -> None:
        self.names = [name for name in order if has_event_time(graph.nodes[name].component)]
        self._graph = graph
        self._began_ns = began_ns
        self._keys = {name: source_keys(graph, name) for name in self.names}
        self.has_several = any(len(keys) > 1 for keys in self._keys.values())
        reach = reachable(graph.subscriptions)
        self._before = {name: {other for other in self.names if name in reach.get(other, ())} for name in self.names}

    def ended(
        self,
        times: BoltTimes,
        before: Mapping[str, int],
        spouts: SpoutLook,
        active: Collection[SourceKey],
        now_ns: int,
    ) -> dict[str, int]:
        """Return for each bolt the end of the last window that may end in the next micro-batch.

        Parameters
        ----------
        times : BoltTimes
        before : mapping of str to int
            The result for the last micro-batch.
        spouts : SpoutLook
        active : collection of SourceKey
            The sources that have tuples in the next micro-batch.
        now_ns : int
            The time of day.
        """
        is_over = not active and spouts.are_all_finished
        ended = dict(before)
        for name in self.names:
            component = self._graph.nodes[name].component
            assert issubclass(component, WindowedBolt)
            idle_ns = component.idle_secs * _NS_PER_SEC
            # Tuples that bolts before it emit from windows that end now have not come yet.
            ends_all = is_over and not any(ended.get(other) != before.get(other) for other in self._before[name])
            known = times.get(name, {})
            sources = []
            for key in dict.fromkeys([*self._keys[name], *known]):
                state = known.get(key, SourceState())
                if key == LATEST:
                    sources.append(SourceTime(state.time_ms, is_gone=True))
                    continue
                if (
                    state.time_ms is None
                    and len(self._keys[name]) > 1
                    and spouts.untracked.issuperset(self._tasks_of(key))
                ):
                    continue  # Its tuples come from the bolts that send them.
                is_gone = ends_all or (key not in active and self._is_gone(key, state, spouts, idle_ns, now_ns))
                sources.append(SourceTime(state.time_ms, is_gone))
            reached = ended_by(component, time_of_all(sources))
            if reached is not None:
                ended[name] = max(reached, before.get(name, reached))
        return ended

    def _tasks_of(self, key: SourceKey) -> Iterable[int]:
        return [key] if isinstance(key, int) else self._graph.nodes[key].tasks

    def _is_gone(self, key: SourceKey, state: SourceState, spouts: SpoutLook, idle_ns: float, now_ns: int) -> bool:
        if spouts.finished.issuperset(self._tasks_of(key)):
            return True
        if state.time_ms is not None and state.silent_ns is None:
            return False
        return max(self._began_ns, state.silent_ns or 0) + idle_ns <= now_ns

    def after_batch(
        self, times: BoltTimes, came: Mapping[str, Mapping[SourceKey, int]], now_ns: int
    ) -> dict[str, dict[SourceKey, SourceState]]:
        """Return what to keep after a micro-batch, by what came in it."""
        return {
            name: dict(self._states_after(name, times.get(name, {}), came.get(name, {}), now_ns)) for name in self.names
        }

    def _states_after(
        self, name: str, known: Mapping[SourceKey, SourceState], came: Mapping[SourceKey, int], now_ns: int
    ) -> Iterator[tuple[SourceKey, SourceState]]:
        for key in dict.fromkeys([*self._keys[name], *known, *came]):
            before = known.get(key, SourceState())
            if key in came:
                yield key, SourceState(max(came[key], before.time_ms or came[key]), None)
            else:
                yield key, before._replace(silent_ns=before.silent_ns or now_ns)


def move_times(
    times: BoltTimes, graph: Graph, moved: Callable[[int], int | None]
) -> dict[str, dict[SourceKey, SourceState]]:
    """Return what a commit keeps, with the tasks of another version of the topology."""
    found: dict[str, dict[SourceKey, SourceState]] = {}
    for name, sources in times.items():
        if name not in graph.nodes or not has_event_time(graph.nodes[name].component):
            continue
        keys = {key: moved(key) if isinstance(key, int) else key for key in sources}
        found[name] = {
            now: sources[key]
            for key, now in keys.items()
            if now is not None and (isinstance(now, int) or now == LATEST or now in graph.nodes)
        }
    return found


def _has_finished(executor: SpoutExecutor, task: SpoutTask) -> bool:
    """Return whether all that a spout task will ever emit has been in a micro-batch, or waits for the next one."""
    if executor.step_since_ns is not None or executor.outbox.dirty:
        return False
    return task.spout._finished and not task.collector.pending_count and task.next_replay_ns() is None


def _is_untracked(task: SpoutTask) -> bool:
    """Return whether a spout task emits without tuple ids, as far as is known."""
    if has_frame(type(task.spout)):
        return task.spout.tup_id_column is None
    routes = task.collector.routes
    return not task.collector.message_id and any(route.emitted for route in routes.values())
