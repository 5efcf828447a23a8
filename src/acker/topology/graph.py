"""The graph of a topology: its components, their subscriptions and task ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from acker._engine.notebook import html_table
from acker.errors import TopologyError
from acker.observe.svg import Box, Edge, svg
from acker.topology.component import Component
from acker.topology.groupings import BY_FIELDS, Grouping
from acker.topology.streams import DEFAULT_STREAM, Stream
from acker.topology.tuples import TupleSource


@dataclass(frozen=True, slots=True)
class Subscription:
    """A stream that a bolt reads, and the grouping."""

    source: str
    stream: str
    consumer: str
    grouping: Grouping

    def __str__(self) -> str:
        return f"{self.source}:{self.stream} -> {self.consumer} ({self.grouping})"


@dataclass(frozen=True, slots=True)
class Node:
    """One component of a topology.

    Attributes
    ----------
    name : str
    component : type
        The user's class.
    kind : {"spout", "bolt"}
    par : int
        Number of tasks.
    executors : int
        Number of threads that they share, at most `par`.
    conf : dict
        The component's own options, canonical names, without defaults.
    streams : dict of str to Stream
        The streams to which it emits.
    inputs : tuple of Subscription
        The streams that it reads.
    tasks : range
        The ids of its tasks.
    """

    name: str
    component: type[Component]
    kind: str
    par: int
    executors: int
    conf: dict[str, Any]
    streams: dict[str, Stream]
    inputs: tuple[Subscription, ...]
    tasks: range


def box_lines(node: Node) -> tuple[str, ...]:
    """Return the text of a box: name, class, and the numbers of tasks and threads."""
    tasks = "1 task" if node.par == 1 else f"{node.par} tasks"
    if node.executors != node.par:
        tasks += " on 1 thread" if node.executors == 1 else f" on {node.executors} threads"
    return node.name, node.component.__name__, f"{node.kind}, {tasks}"


def label_line(subscription: Subscription) -> str:
    """Return what an edge says: the grouping, and the stream unless it is the default one."""
    stream = "" if subscription.stream == DEFAULT_STREAM else f"{subscription.stream}: "
    return f"{stream}{subscription.grouping}"


@dataclass(frozen=True)
class Graph:
    """A checked topology.

    Attributes
    ----------
    name : str
        Option topology.name, or the name of the class.
    conf : dict
        The topology's options, canonical names, without defaults.
    nodes : dict of str to Node
        In the order of definition.
    """

    name: str
    conf: dict[str, Any]
    nodes: dict[str, Node]
    _readers: dict[tuple[str, str], tuple[Subscription, ...]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        readers: dict[tuple[str, str], tuple[Subscription, ...]] = {}
        for subscription in self.subscriptions:
            key = subscription.source, subscription.stream
            readers[key] = (*readers.get(key, ()), subscription)
        object.__setattr__(self, "_readers", readers)

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """All subscriptions, in the order of definition."""
        return tuple(subscription for node in self.nodes.values() for subscription in node.inputs)

    @property
    def spouts(self) -> tuple[Node, ...]:
        """The nodes that are spouts."""
        return tuple(node for node in self.nodes.values() if node.kind == "spout")

    @property
    def bolts(self) -> tuple[Node, ...]:
        """The nodes that are bolts."""
        return tuple(node for node in self.nodes.values() if node.kind == "bolt")

    def _repr_html_(self) -> str:
        """Return the drawing, and the components as a table, for notebooks."""
        rows = [
            [
                node.name,
                node.kind,
                node.component.__name__,
                node.par,
                node.executors,
                ", ".join(f"{each.source}:{each.stream} ({each.grouping})" for each in node.inputs),
                "; ".join(f"{stream.name}: {', '.join(stream.fields)}" for stream in node.streams.values()),
            ]
            for node in self.nodes.values()
        ]
        names = ["component", "kind", "class", "tasks", "threads", "reads", "emits"]
        return self._drawing() + html_table(self.name, names, rows)

    def _drawing(self) -> str:
        labels: dict[tuple[str, str], list[str]] = {}
        for each in self.subscriptions:
            labels.setdefault((each.source, each.consumer), []).append(label_line(each))
        boxes = {node.name: Box(node.kind, box_lines(node)) for node in self.nodes.values()}
        return svg(self.name, boxes, [Edge(*ends, "; ".join(told)) for ends, told in labels.items()])

    def consumers(self, source: str, stream: str = DEFAULT_STREAM) -> tuple[Subscription, ...]:
        """Return the subscriptions to a stream, in the order of definition."""
        return self._readers.get((source, stream), ())

    @cached_property
    def loops(self) -> frozenset[tuple[str, str]]:
        """The edges (source, consumer) that lie on a cycle."""
        reach = reachable(self.subscriptions)
        edges = {(subscription.source, subscription.consumer) for subscription in self.subscriptions}
        return frozenset(
            (source, consumer) for source, consumer in edges if source == consumer or source in reach.get(consumer, ())
        )

    @cached_property
    def _components(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes.values() for _ in node.tasks)

    def component_of(self, task: int) -> str:
        """Return the name of the component that a task runs; task ids count from 1."""
        if not 1 <= task <= len(self._components):
            raise KeyError(f"no task {task}: topology {self.name!r} has tasks 1 to {len(self._components)}")
        return self._components[task - 1]

    def source(self, task: int, stream: str = DEFAULT_STREAM) -> TupleSource:
        """Return the source of the tuples that a task emits to a stream."""
        component = self.component_of(task)
        return TupleSource(component, stream, task, self.nodes[component].streams[stream].fields)

    def context(self, task: int) -> dict[str, Any]:
        """Return the context for `initialize`: the keys of Storm's multi-language handshake, and two more.

        The two are "task_index", the place of the task among those of its component, from 0 (Storm's getThisTaskIndex),
        and "component->tasks", the ids of each component's tasks (getComponentTasks). Task ids are int, except for the
        keys of "task->component", which are str as in Storm's JSON.
        """
        node = self.nodes[self.component_of(task)]
        return {
            "taskid": task,
            "task_index": task - node.tasks.start,
            "componentid": node.name,
            "topology.name": self.name,
            "task->component": {str(number): name for number, name in enumerate(self._components, 1)},
            "component->tasks": {each.name: list(each.tasks) for each in self.nodes.values()},
            "streams": list(node.streams),
            "stream->outputfields": {stream.name: list(stream.fields) for stream in node.streams.values()},
            "stream->target->grouping": {
                stream: {s.consumer: _grouping_of(s.grouping) for s in self.consumers(node.name, stream)}
                for stream in node.streams
            },
            "source->stream->fields": self._by_source(
                node, lambda s: list(self.nodes[s.source].streams[s.stream].fields)
            ),
            "source->stream->grouping": self._by_source(node, lambda s: _grouping_of(s.grouping)),
        }

    @staticmethod
    def _by_source(node: Node, value_of: Any) -> dict[str, dict[str, Any]]:
        result: dict[str, dict[str, Any]] = {}
        for subscription in node.inputs:
            result.setdefault(subscription.source, {})[subscription.stream] = value_of(subscription)
        return result


def _grouping_of(grouping: Grouping) -> dict[str, Any]:
    result: dict[str, Any] = {"type": grouping.kind.upper()}
    if grouping.kind in BY_FIELDS:
        result["fields"] = list(grouping.names)
    return result


def reachable(subscriptions: Iterable[Subscription]) -> dict[str, set[str]]:
    """Return for each component those that its tuples may reach."""
    direct: dict[str, set[str]] = {}
    for subscription in subscriptions:
        direct.setdefault(subscription.source, set()).add(subscription.consumer)
    return {name: _closure(direct, name) for name in direct}


def _closure(direct: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for following in direct.get(todo.pop(), ()):
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return seen


def graph_of(topology: object, environment: str | None = None) -> Graph:
    """Return the graph of a Topology class or instance, in an environment; return a Graph unchanged."""
    if isinstance(topology, Graph):
        if environment is not None:
            raise TopologyError(
                f"topology {topology.name}: a Graph has one environment; pass the Topology class, or the result of "
                f"graph(environment={environment!r})"
            )
        return topology
    graph = getattr(topology, "graph", None)
    if not callable(graph):
        raise TopologyError(f"expected a Topology class or a Graph, got {topology!r}")
    return graph() if environment is None else graph(environment)  # type: ignore[no-any-return]
