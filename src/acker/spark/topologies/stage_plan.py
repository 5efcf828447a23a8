"""The stages of a topology on Spark: which bolts run in one Spark task, and where tuples are shuffled between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from acker.errors import TopologyError
from acker.topology.bolt import BatchingBolt
from acker.topology.graph import Graph, Node
from acker.topology.join_bolt import JoinBolt
from acker.topology.stateful import StatefulBolt

# Groupings that leave the choice of the task to the runtime.
LOCAL_KINDS: Final = frozenset({"shuffle", "none", "local_or_shuffle"})


@dataclass(frozen=True)
class StagePlan:
    """Where each component of a topology runs.

    Stage 0 is that of spouts with a DataFrame, and of the bolts that run beside them. Each further stage begins with a
    shuffle.

    Attributes
    ----------
    stage_of : dict of str to int
        Component -> its stage.
    beside : frozenset of str
        The bolts that run beside the components they read: their tuples are not shuffled, and whichever Spark task
        made the tuples runs one of the bolt's tasks.
    order : tuple of str
        The components, each after those that it reads.
    """

    stage_of: dict[str, int]
    beside: frozenset[str]
    order: tuple[str, ...]

    @property
    def last(self) -> int:
        """The number of the last stage."""
        return max(self.stage_of.values())

    def components(self, stage: int) -> list[str]:
        """Return the components of a stage, each after those that it reads."""
        return [name for name in self.order if self.stage_of[name] == stage]


def is_stateful(node: Node) -> bool:
    """Return whether a component has state that outlives a micro-batch."""
    return issubclass(node.component, StatefulBolt)


def plan_stages(graph: Graph) -> StagePlan:
    """Cut a topology into stages.

    Raises
    ------
    TopologyError
        The topology has a loop, or a join that holds tuples.
    """
    _refuse_loops(graph)
    _refuse_anchored_joins(graph)
    order = _sorted(graph)
    stage_of: dict[str, int] = {}
    beside: set[str] = set()
    for name in order:
        node = graph.nodes[name]
        if node.kind == "spout":
            stage_of[name] = 0
            continue
        stages = {stage_of[subscription.source] for subscription in node.inputs}
        if len(stages) == 1 and _may_run_beside(node):
            stage_of[name] = stages.pop()
            beside.add(name)
        else:
            stage_of[name] = 1 + max(stages)
    return StagePlan(stage_of, frozenset(beside), tuple(order))


def _may_run_beside(node: Node) -> bool:
    # Which tuples meet in a batch, or in one task's state, must not depend on how Spark cut its partitions.
    if is_stateful(node) or issubclass(node.component, BatchingBolt):
        return False
    return all(subscription.grouping.kind in LOCAL_KINDS for subscription in node.inputs)


def _refuse_loops(graph: Graph) -> None:
    if graph.loops:
        edges = ", ".join(f"{source} -> {consumer}" for source, consumer in sorted(graph.loops))
        raise TopologyError(
            f"topology {graph.name}: the edges {edges} form a loop, and Spark's plans have none; let the spout emit"
            " such tuples again, or run this topology with acker.local"
        )


def _refuse_anchored_joins(graph: Graph) -> None:
    for node in graph.bolts:
        if issubclass(node.component, JoinBolt) and node.component.anchored:
            raise TopologyError(
                f"topology {graph.name}, component {node.name!r}: {node.component.__name__}.anchored holds tuples over"
                " micro-batches, in which all trees end; remove it, or run this topology with acker.local"
            )


def _sorted(graph: Graph) -> list[str]:
    """Return the components, each after those that it reads, otherwise in the order of definition."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            for subscription in graph.nodes[name].inputs:
                visit(subscription.source)
            order.append(name)

    for name in graph.nodes:
        visit(name)
    return order
