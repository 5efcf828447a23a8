"""Run a whole topology on given tuples, and see everything that every component emitted (Storm's completeTopology)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acker.errors import ArgumentValueError
from acker.local import Hook, RunReport
from acker.testing.components import AckFailTracker, FeederSpout, as_fixed_tuple, find_misfit
from acker.testing.scheduler import Scheduler
from acker.topology import Graph, Topology
from acker.topology.graph import graph_of
from acker.topology.suggestions import suggestion


class _EmitRecorder(Hook):
    """Notes what is emitted, whether or not anybody reads it."""

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
    """What a topology did with the tuples that it was given.

    Attributes
    ----------
    emitted : dict
        (component, stream) -> values of each emitted tuple, in the order of the run.
    trackers : dict
        Name of a fed spout -> what it was told; the ids are the places in its feed.
    report : RunReport
    streams : dict
        Component -> the names of its streams.
    """

    emitted: Mapping[tuple[str, str], Sequence[tuple[Any, ...]]]
    trackers: Mapping[str, AckFailTracker]
    report: RunReport
    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)

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
        """How many of the fed tuples were acked."""
        return sum(len(tracker.acked) for tracker in self.trackers.values())

    @property
    def failed(self) -> int:
        """How many of the fed tuples were failed; they are not fed again."""
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
    """Run a topology on given tuples until nothing is left to do, on a clock of its own and one thread.

    Each spout that is named is replaced by one which emits what it is fed, tracked and once: a tuple that fails is
    done. The others run as they are, and have to finish.

    Parameters
    ----------
    topology : Topology class or Graph
    feed : dict of str to sequences
        Name of a spout -> the values of its tuples, as `FixedTuple` where they are for a stream that has a name.
    conf : mapping, optional
        Goes before the topology's own.
    seed : int
        Another seed, another order of steps: what holds for one should hold for all.
    steps_max : int
    no_restart : bool
        Stop with the first exception that escapes. False: restart as the options say, and fail what was open.
    environment : str, optional
        As for `acker.local.LocalRuntime`.

    Returns
    -------
    Completed

    Raises
    ------
    ArgumentValueError
        A name in `feed` is none of a spout, or a tuple does not fit the fields of its stream.
    SchedulerError
        It did not end within `steps_max`, or cannot end: a spout of the topology's own never finishes. Names the seed.
    Exception
        What the topology stopped with.
    """
    graph = graph_of(topology, environment)
    fed = {name: _make_feeder(graph, name, tuples) for name, tuples in feed.items()}
    nodes = {name: replace(node, component=fed.get(name, node.component)) for name, node in graph.nodes.items()}
    recorder = _EmitRecorder()
    scheduler = Scheduler.of(replace(graph, nodes=nodes), conf, seed=seed, hooks=[recorder], no_restart=no_restart)
    report = scheduler.drain(steps_max=steps_max)
    trackers = {name: spout.tracker for name, spout in fed.items()}
    return Completed(recorder.emitted, trackers, report, {name: list(node.streams) for name, node in nodes.items()})


def _make_feeder(graph: Graph, name: str, tuples: Sequence[Sequence[Any]]) -> type[FeederSpout]:
    """Return a spout that takes the place of the one with this name."""
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
