"""What a checkpoint says about tasks, for a topology whose tasks may have other numbers by now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from acker.errors import CheckpointError
from acker.spark.topologies.journal import BatchCommit, BatchPlan
from acker.spark.topologies.stage_plan import StagePlan, is_stateful
from acker.topology.graph import Graph


def tasks_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the tasks of each component."""
    return {name: tuple(node.tasks) for name, node in graph.nodes.items()}


def layout_of(graph: Graph, stages: StagePlan) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return the stage and the tasks of each component."""
    return {name: (stages.stage_of[name], tasks) for name, tasks in tasks_of(graph).items()}


def move_commit(commit: BatchCommit, graph: Graph) -> BatchCommit:
    """Return a commit in which the components have the tasks of a topology.

    Raises
    ------
    CheckpointError
        The state of a component, or the tuples of a spout, would be lost.
    """
    owners = {task: (name, place) for name, tasks in commit.tasks.items() for place, task in enumerate(tasks)}
    chains = {}
    for task, chain in commit.chains.items():
        name, place = owners[task]
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
        chains[node.tasks[place]] = chain

    def moved(task: int) -> int | None:
        name, place = owners[task]
        node = graph.nodes.get(name)
        return None if node is None or node.kind != "spout" else node.tasks[place % node.par]

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
    return BatchCommit(chains, entries, acked, tasks_of(graph))


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
