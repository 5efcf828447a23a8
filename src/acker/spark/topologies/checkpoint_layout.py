"""Checkpoints for a topology that has changed since: tasks with other numbers, and changes that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from acker.errors import CheckpointError
from acker.spark.topologies.event_times import move_times
from acker.spark.topologies.journal import BatchCommit, BatchPlan, Shape
from acker.spark.topologies.stage_plan import LOCAL_KINDS, StagePlan, is_stateful
from acker.topology.graph import Graph, Node
from acker.topology.groupings import Grouping
from acker.topology.windowed import WindowedBolt


def tasks_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the tasks of each component."""
    return {name: tuple(node.tasks) for name, node in graph.nodes.items()}


def layout_of(graph: Graph, stages: StagePlan) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return the stage and the tasks of each component."""
    return {name: (stages.stage_of[name], tasks) for name, tasks in tasks_of(graph).items()}


def shapes_of(graph: Graph) -> dict[str, Shape]:
    """Return for each bolt with state how tuples come to its tasks, and its windows."""
    return {
        name: (
            {(each.source, each.stream): _grouping_text(each.grouping) for each in node.inputs},
            _windows_text(node.component) if issubclass(node.component, WindowedBolt) else None,
        )
        for name, node in graph.nodes.items()
        if is_stateful(node)
    }


def _grouping_text(grouping: Grouping) -> str:
    """Return a text that is the same for groupings that choose the same tasks, and in each process."""
    if grouping.kind in LOCAL_KINDS:
        return "shuffle"
    if grouping.kind == "custom":
        return f"custom({getattr(grouping.fn, '__qualname__', type(grouping.fn).__qualname__)})"
    return str(grouping)


def _windows_text(component: type[WindowedBolt]) -> str:
    window = component.window
    if window.kind == "count":
        return f"{window.length} tuples every {window.step}"
    time = "arrival" if component.timestamp_field is None else "event time"
    return f"{window.length / 1000:g} s every {window.step / 1000:g} s, by {time}"


def _check_shape(node: Node, before: Shape, now: Shape) -> None:
    """Refuse other groupings and windows than those that a bolt's state was made by."""
    name, (groupings, windows), (groupings_now, windows_now) = node.name, before, now
    if windows is not None and windows != windows_now:
        told = "it has no windows" if windows_now is None else f"they are of {windows_now}"
        raise CheckpointError(
            f"component {name!r}: the checkpoint has the state of windows of {windows}, and {told} now; change it back,"
            " or begin with a new checkpoint"
        )
    gone = [(each, text) for each, text in groupings.items() if each not in groupings_now]
    for (source, stream), text in groupings_now.items():
        # A component that replaces another has to send as that one did; a further one may send as it likes.
        known = groupings.get((source, stream))
        others = [each for _, each in gone] if known is None else [known]
        if node.par > 1 and others and text not in others:
            input_before = f"of {source}:{stream}" if known is not None else f"of {gone[0][0][0]}:{gone[0][0][1]}"
            raise CheckpointError(
                f"component {name!r}: the checkpoint has its state with the grouping {others[0]} {input_before}, and it"
                f" reads {source}:{stream} by {text} now, so the state of a key would be in two tasks; change it back,"
                " or begin with a new checkpoint"
            )


def move_commit(commit: BatchCommit, graph: Graph) -> BatchCommit:
    """Return a commit in which the components have the tasks of a topology.

    Raises
    ------
    CheckpointError
        The state of a component, or the tuples of a spout, would be lost; or a component would take the state for
        that of other keys or windows.
    """
    owners = {task: (name, index) for name, tasks in commit.tasks.items() for index, task in enumerate(tasks)}
    shapes = shapes_of(graph)
    chains = {}
    for task, chain in commit.chains.items():
        name, index = owners[task]
        node = graph.nodes.get(name)
        if node is None or not is_stateful(node):
            raise CheckpointError(
                f"component {name!r}: the checkpoint has its state, and this topology has no bolt with state of that"
                " name; keep the name, or begin with a new checkpoint"
            )
        if node.par != len(commit.tasks[name]):
            raise CheckpointError(
                f"component {name!r}: the checkpoint has the state of {len(commit.tasks[name])} tasks, and par is"
                f" {node.par} now; keep the number, or begin with a new checkpoint"
            )
        if name in commit.shapes:
            _check_shape(node, commit.shapes[name], shapes[name])
        chains[node.tasks[index]] = chain

    def moved(task: int) -> int | None:
        name, index = owners[task]
        node = graph.nodes.get(name)
        return None if node is None or node.kind != "spout" else node.tasks[index % node.par]

    entries = []
    for entry in commit.entries:
        now = moved(entry.task)
        if now is None:
            raise CheckpointError(
                f"component {owners[entry.task][0]!r}: the checkpoint has the tuple {entry.tup_id!r} of this spout, and"
                " the topology has no such spout; keep the name, or begin with a new checkpoint"
            )
        entries.append(replace(entry, task=now))
    acked = [(now, tup_id) for task, tup_id in commit.acked if (now := moved(task)) is not None]
    times = move_times(commit.times, graph, moved)
    ended = {name: end for name, end in commit.ended.items() if name in times}
    return BatchCommit(chains, entries, acked, tasks_of(graph), shapes, times, ended)


def check_plans(plans: Mapping[int, BatchPlan], graph: Graph, stages: StagePlan) -> None:
    """Refuse what was planned for a topology of other components.

    Raises
    ------
    CheckpointError
        The tuples are addressed to tasks that this topology does not have.
    """
    layout = layout_of(graph, stages)
    for number, plan in plans.items():
        if plan.layout != layout:
            changed = sorted(name for name in {*plan.layout, *layout} if plan.layout.get(name) != layout.get(name))
            raise CheckpointError(
                f"micro-batch {number}: it was planned, and did not end, when the components {', '.join(changed)} had"
                " other names, numbers of tasks or inputs; run that topology until it is drained, or begin with a new"
                " checkpoint"
            )
