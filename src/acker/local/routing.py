"""Routes: the tasks that receive an emitted tuple, chosen for each stream when the topology starts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from acker._flow import (
    AllGrouping,
    CombinedGrouping,
    CustomGrouping,
    FieldsGrouping,
    Outlet,
    Route,
    ShuffleGrouping,
    StreamGrouping,
)
from acker.errors import TopologyError
from acker.local.batch_routes import AllRows, BatchGrouping, BatchRoute, ByHash, ByRow, SlicesInTurn, emits_to
from acker.topology.graph import Graph, Subscription
from acker.topology.hashing import stable_hash
from acker.topology.streams import Stream
from acker.topology.tuples import TupleSource

# The most frequent types of keys, which always have a stable hash.
_HASHABLE: Final = frozenset({str, int})


def make_route(
    graph: Graph,
    source: TupleSource,
    stream: Stream,
    outlet_of: Callable[[int, Subscription], Outlet],
    rng: random.Random,
    bytes_max: int | None = None,
) -> Route:
    """Make the route of a stream of one task.

    Parameters
    ----------
    outlet_of : callable
        (task id, subscription) -> the outlet to that task.
    rng : random.Random
        Chooses where shuffles start, so that not all tasks send their first tuple to the same task.
    bytes_max : int, optional
        The limit of an emitted batch.
    """
    choosers: list[StreamGrouping] = []
    batch_groupings: list[BatchGrouping] = []
    direct: dict[int, Outlet] = {}
    for subscription in graph.consumers(source.component, source.stream):
        tasks = graph.nodes[subscription.consumer].tasks
        outlets = [outlet_of(task, subscription) for task in tasks]
        if subscription.grouping.kind == "direct":
            direct.update(zip(tasks, outlets, strict=True))
        else:
            chosen, for_batches = _chooser(subscription, source, stream, outlets, rng)
            choosers.append(chosen)
            batch_groupings.append(for_batches)
    chooser = choosers[0] if len(choosers) == 1 else CombinedGrouping(choosers) if choosers else AllGrouping([])
    route = Route(source, chooser, stream.direct, direct)
    route.batches = BatchRoute(source, stream, batch_groupings, bytes_max)
    return route


def _chooser(
    subscription: Subscription, source: TupleSource, stream: Stream, outlets: Sequence[Outlet], rng: random.Random
) -> tuple[StreamGrouping, BatchGrouping]:
    """Return what chooses the tasks for a tuple, and for the rows of a batch: the same function of the same values."""
    grouping = subscription.grouping
    where = f"{emits_to(source)} for {subscription.consumer}"
    if grouping.kind in ("custom", "partial_key"):
        choose = (
            _custom(subscription, outlets)
            if grouping.kind == "custom"
            else _by_partial_key([stream.fields.index(name) for name in grouping.names], outlets)
        )
        return CustomGrouping(choose), ByRow(choose, source, where)
    if grouping.kind == "all":
        return AllGrouping(outlets), AllRows(outlets)
    if grouping.kind == "global" or (len(outlets) == 1 and grouping.kind != "fields"):
        return AllGrouping(outlets[:1]), AllRows(outlets[:1])
    if grouping.kind == "fields":
        positions = [stream.fields.index(name) for name in grouping.names]
        return _by_fields(positions, outlets), ByHash(outlets, grouping.names, where)
    # Shuffle, none, local_or_shuffle: in one process every task is local. Round robin is as even as possible.
    begin = rng.randrange(len(outlets))
    return ShuffleGrouping(outlets, begin), SlicesInTurn(outlets, begin)


def _by_fields(positions: Sequence[int], outlets: Sequence[Outlet]) -> StreamGrouping:
    if len(positions) == 1:
        return FieldsGrouping(outlets, positions[0], stable_hash)
    if len(outlets) == 1:
        return CustomGrouping(_only(positions, outlets[0]))

    def choose(values: tuple[object, ...]) -> list[Outlet]:
        return [outlets[stable_hash(*[values[position] for position in positions]) % len(outlets)]]

    return CustomGrouping(choose)


def _by_partial_key(
    positions: Sequence[int], outlets: Sequence[Outlet]
) -> Callable[[tuple[object, ...]], list[Outlet]]:
    """Choose the less loaded one of a key's two tasks, as Storm's PartialKeyGrouping does."""
    if len(outlets) == 1:
        return _only(positions, outlets[0])
    sent = [0] * len(outlets)

    def choose(values: tuple[object, ...]) -> list[Outlet]:
        key = stable_hash(*[values[position] for position in positions])
        # Two digits of the hash, which are independent of each other.
        first, second = key % len(outlets), key // len(outlets) % len(outlets)
        if second == first:
            second = (second + 1) % len(outlets)
        chosen = second if sent[second] < sent[first] else first
        sent[chosen] += 1
        return [outlets[chosen]]

    return choose


def _only(positions: Sequence[int], outlet: Outlet) -> Callable[[tuple[object, ...]], list[Outlet]]:
    """Return a function that chooses the only task, and refuses keys without a hash as with several tasks."""

    def choose(values: tuple[object, ...]) -> list[Outlet]:
        for position in positions:
            if type(values[position]) not in _HASHABLE:
                stable_hash(values[position])
        return [outlet]

    return choose


def _custom(subscription: Subscription, outlets: Sequence[Outlet]) -> Callable[[tuple[object, ...]], list[Outlet]]:
    by_task = {outlet.task: outlet for outlet in outlets}
    tasks = tuple(by_task)
    function = subscription.grouping.fn
    assert function is not None
    where = f"{subscription.consumer}: its custom grouping of {subscription.source}[{subscription.stream!r}]"

    def choose(values: tuple[object, ...]) -> list[Outlet]:
        returned: object = function(values, tasks)
        if not isinstance(returned, Iterable) or isinstance(returned, str):
            raise TopologyError(f"{where} returned {returned!r}; expected a list of some of {list(tasks)}, or []")
        chosen = list(returned)
        try:
            return [by_task[task] for task in chosen]
        except (KeyError, TypeError):
            unknown = next(task for task in chosen if task not in tasks)
            raise TopologyError(f"{where} chose task {unknown!r}; expected some of {list(tasks)}") from None

    return choose
