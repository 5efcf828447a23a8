"""Which tasks hear of an emitted tuple: one function for each stream, made once when the topology starts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from acker.errors import TopologyError
from acker.local.queues import Outlet
from acker.topology.graph import Graph, Subscription
from acker.topology.streams import Stream, stable_hash
from acker.topology.tuples import Source, Tuple

# How many keys a grouping by fields remembers the task of.
_KNOWN_MAX = 16_384

Choice = Sequence[Outlet]
Choose = Callable[[tuple[object, ...]], Choice]


@dataclass(slots=True)
class Route:
    """One stream of one task: what its tuples look like and where they go.

    Attributes
    ----------
    choose : callable
        values -> the outlets of one emitted tuple.
    direct : dict
        Task id -> outlet, of the tasks that subscribed to a direct stream.
    emitted : int
        Calls of emit.
    """

    source: Source
    width: int
    make_values: Callable[[Iterable[object]], tuple[object, ...]]
    make: Callable[[tuple[object, ...], Source, dict[int, int] | None], Tuple]
    choose: Choose
    is_direct: bool
    direct: Mapping[int, Outlet]
    emitted: int = 0


def make_route(
    graph: Graph, source: Source, stream: Stream, outlet_of: Callable[[int, Subscription], Outlet], rng: random.Random
) -> Route:
    """Make the route of a stream of one task.

    Parameters
    ----------
    outlet_of : callable
        (task id, subscription) -> the way to that task.
    rng : random.Random
        Says where shuffles begin, so that not all tasks send their first tuple to the same one.
    """
    choosers: list[Choose] = []
    direct: dict[int, Outlet] = {}
    for subscription in graph.consumers(source.component, source.stream):
        tasks = graph.nodes[subscription.consumer].tasks
        outlets = [outlet_of(task, subscription) for task in tasks]
        if subscription.grouping.kind == "direct":
            direct.update(zip(tasks, outlets, strict=True))
        else:
            choosers.append(_chooser(subscription, stream, outlets, rng))
    width = len(source.fields)
    choose = _undirected(source) if stream.direct else _merged(choosers)
    return Route(source, width, source.make_values, source.tuple_type, choose, stream.direct, direct)


def _undirected(source: Source) -> Choose:
    def choose(_: tuple[object, ...]) -> Choice:
        raise TopologyError(
            f"{source.component}: emits to stream {source.stream!r}, which is direct, without direct_task"
        )

    return choose


def _merged(choosers: Sequence[Choose]) -> Choose:
    if not choosers:
        return lambda _: ()
    if len(choosers) == 1:
        return choosers[0]
    return lambda values: [outlet for choose in choosers for outlet in choose(values)]


def _chooser(subscription: Subscription, stream: Stream, outlets: Sequence[Outlet], rng: random.Random) -> Choose:
    grouping = subscription.grouping
    if grouping.kind == "all":
        return lambda _: outlets
    if grouping.kind == "custom":
        return _custom(subscription, outlets)
    alone = [(outlet,) for outlet in outlets]
    if grouping.kind == "global" or len(outlets) == 1:
        first = alone[0]
        return lambda _: first
    if grouping.kind == "fields":
        return _by_fields([stream.fields.index(name) for name in grouping.names], alone)
    # Shuffle, none, local_or_shuffle: in one process every task is local. Round robin is as even as can be.
    begin = rng.randrange(len(alone))
    following = itertools.cycle(alone[begin:] + alone[:begin]).__next__
    return lambda _: following()


def _by_fields(positions: Sequence[int], alone: Sequence[Choice]) -> Choose:
    count = len(alone)
    if len(positions) > 1:
        return lambda values: alone[stable_hash(*[values[position] for position in positions]) % count]
    position = positions[0]
    # Most keys are text, and most of them come again. Only text: 1 and True are one key of a dict.
    known: dict[str, Choice] = {}

    def choose(values: tuple[object, ...]) -> Choice:
        value = values[position]
        if type(value) is not str:
            return alone[stable_hash(value) % count]
        found = known.get(value)
        if found is None:
            if len(known) >= _KNOWN_MAX:
                known.clear()
            found = known[value] = alone[stable_hash(value) % count]
        return found

    return choose


def _custom(subscription: Subscription, outlets: Sequence[Outlet]) -> Choose:
    by_task = {outlet.task: outlet for outlet in outlets}
    tasks = tuple(by_task)
    function = subscription.grouping.fn
    assert function is not None

    def choose(values: tuple[object, ...]) -> Choice:
        chosen = list(function(values, tasks))
        try:
            return [by_task[task] for task in chosen]
        except KeyError as unknown:
            raise TopologyError(
                f"{subscription.consumer}: its custom grouping of {subscription.source}[{subscription.stream!r}] "
                f"chose task {unknown.args[0]!r}; expected some of {list(tasks)}"
            ) from None

    return choose
