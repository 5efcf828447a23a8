"""complete_topology, which runs a topology on given tuples and records its emits, as Storm's completeTopology does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acker.errors import ArgumentValueError
from acker.local import Hook, RunReport, read_state
from acker.testing.components import AckFailTracker, FeederSpout, as_fixed_tuple, find_misfit
from acker.testing.scheduler import Scheduler
from acker.topology import Graph, Topology
from acker.topology.graph import graph_of
from acker.topology.suggestions import suggestion


class _EmitRecorder(Hook):
    """Records what is emitted, also to streams that no bolt reads."""

    def __init__(self) -> None:
        self.emitted: dict[tuple[str, str], list[tuple[Any, ...]]] = {}

    def emit(
        self,
        component: str,
        task: int,  # noqa: ARG002
        stream: str,
        values: tuple[object, ...],
        tasks: Sequence[int],  # noqa: ARG002
    ) -> None:
        self.emitted.setdefault((component, stream), []).append(tuple(values))


@dataclass(frozen=True)
class Completed:
    """The result of `complete_topology`: what a topology did with the given tuples.

    Attributes
    ----------
    emitted : dict
        (component, stream) -> values of each tuple that was emitted, in the order of the run.
    trackers : dict
        Name of a fed spout -> the outcomes of its tuples; the ids are the places in its feed.
    report : RunReport
    streams : dict
        Component -> the names of its streams.
    states : dict
        Component -> what the state of each task held at the end; of stateful bolts.
    """

    emitted: Mapping[tuple[str, str], Sequence[tuple[Any, ...]]]
    trackers: Mapping[str, AckFailTracker]
    report: RunReport
    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    states: Mapping[str, Sequence[dict[Any, Any]]] = field(default_factory=dict)

    def tuples(self, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
        """Return the values that a component emitted to a stream, in the order of the run.

        Raises
        ------
        ArgumentValueError
            There is no such component, or it has no such stream.
        """
        if component not in self.streams:
            raise ArgumentValueError(f"there is no component {component!r}; {suggestion(component, self.streams)}")
        if stream not in self.streams[component]:
            known = suggestion(stream, self.streams[component])
            raise ArgumentValueError(f"component {component!r} has no stream {stream!r}; {known}")
        return list(self.emitted.get((component, stream), ()))

    @property
    def acked(self) -> int:
        """Number of fed tuples that were acked."""
        return sum(len(tracker.acked) for tracker in self.trackers.values())

    @property
    def failed(self) -> int:
        """Number of fed tuples that failed; they are not fed again."""
        return sum(len(tracker.failed) for tracker in self.trackers.values())


def complete_topology(
    topology: type[Topology] | Graph,
    feed: Mapping[str, Sequence[Sequence[Any]]],
    conf: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    steps_max: int = 1_000_000,
    no_restart: bool = True,
    environment: str | None = None,
) -> Completed:
    """Run a topology on given tuples until nothing is left to do, on one thread and a manual clock.

    Each spout in `feed` is replaced by one that emits the given tuples, tracked and once: it does not replay a tuple
    that failed. Other spouts run unchanged, and have to finish.

    Parameters
    ----------
    topology : Topology class or Graph
    feed : dict of str to sequences
        Name of a spout -> the values of its tuples, or `FixedTuple` for streams other than the default one.
    conf : mapping, optional
        Options that override the topology's.
    seed : int
        Decides the order of steps; a correct topology passes with every seed.
    steps_max : int
    no_restart : bool
        Stop at the first exception that escapes. False: restart as the options say, and fail open tuples.
    environment : str, optional
        As for `acker.local.LocalRuntime`.

    Returns
    -------
    Completed

    Raises
    ------
    ArgumentValueError
        A name in `feed` is not that of a spout, or a tuple does not fit the fields of its stream.
    SchedulerError
        It did not end within `steps_max`, or cannot end because a spout never finishes. The text names the seed.
    Exception
        The one with which the topology stopped.
    """
    graph = graph_of(topology, environment)
    fed = {name: _make_feeder(graph, name, tuples) for name, tuples in feed.items()}
    nodes = {name: replace(node, component=fed.get(name, node.component)) for name, node in graph.nodes.items()}
    recorder = _EmitRecorder()
    scheduler = Scheduler.of(replace(graph, nodes=nodes), conf, seed=seed, hooks=[recorder], no_restart=no_restart)
    report = scheduler.drain(steps_max=steps_max)
    trackers = {name: spout.tracker for name, spout in fed.items()}
    streams = {name: list(node.streams) for name, node in nodes.items()}
    states = read_state(scheduler.runtime.snapshot_state())
    return Completed(recorder.emitted, trackers, report, streams, states)


def _make_feeder(graph: Graph, name: str, tuples: Sequence[Sequence[Any]]) -> type[FeederSpout]:
    """Return a spout that replaces the one with this name."""
    node = graph.nodes.get(name)
    if node is None or node.kind != "spout":
        spouts = ", ".join(repr(one.name) for one in graph.spouts)
        raise ArgumentValueError(f"feed: {name!r} is no spout of {graph.name}; its spouts are {spouts}")
    spout = FeederSpout.with_outputs(*node.streams.values())
    fields = {stream.name: stream.fields for stream in node.streams.values()}
    for number, values in enumerate(tuples):
        wrong = find_misfit(as_fixed_tuple(values), fields)
        if wrong is not None:
            raise ArgumentValueError(f"feed: tuple {number} of spout {name!r}: {wrong}")
        spout.feed(values, number)
    spout.end()
    return spout
