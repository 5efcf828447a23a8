"""The graph of a tracked pipeline: which component reads the rows of which, and its drawing for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from acker.observe.summary import quantity
from acker.observe.svg import Box, Edge, svg
from acker.spark.pipelines.counters import ComponentCounters


@dataclass(frozen=True)
class PipelineGraph:
    """The edges of a pipeline; each method returns a new graph.

    Attributes
    ----------
    edges : tuple of Edge
    ends : dict of str to str
        The components whose rows the next one reads -> the steps and groupings of these rows since.
    """

    edges: tuple[Edge, ...] = ()
    ends: Mapping[str, str] = field(default_factory=dict)

    def add(self, component: str) -> PipelineGraph:
        """Let a component read all rows."""
        read = (Edge(end, component, grouping) for end, grouping in self.ends.items())
        return PipelineGraph((*self.edges, *read), {component: ""})

    def step(self, text: str) -> PipelineGraph:
        """Add a step, or a grouping, between these components and the next one."""
        return replace(self, ends={end: f"{label} > {text}" if label else text for end, label in self.ends.items()})

    def union(self, other: PipelineGraph) -> PipelineGraph:
        """Let the next component read the rows of both."""
        return PipelineGraph(tuple(dict.fromkeys((*self.edges, *other.edges))), {**self.ends, **other.ends})

    def lines(self) -> list[str]:
        """Return the edges as lines of text, and the ends."""
        edges = [f"{edge.source} > {edge.label} > {edge.consumer}".replace(">  >", ">") for edge in self.edges]
        return [*edges, *(f"{end} > {label}" if label else end for end, label in self.ends.items())]

    def drawing(
        self, spouts: Iterable[str], components: Iterable[str], counters: Mapping[str, ComponentCounters] | None
    ) -> str:
        """Return the graph as SVG, with the counts of an evaluation if they are known."""
        boxes = {}
        for name in components:
            kind = "spout" if name in spouts else "bolt"
            told = [] if counters is None or name not in counters else _lines_of(counters[name], kind)
            boxes[name] = Box(kind, [name, kind, *told])
        return svg("the tracked pipeline", boxes, self.edges)


def _lines_of(counts: ComponentCounters, kind: str) -> list[str]:
    read = [] if kind == "spout" else [f"{quantity(counts.executed, 'row')} read"]
    failed = [f"{counts.failed:,} failed"] if counts.failed else []
    return [*read, f"{quantity(counts.emitted, 'row')} emitted", *failed]
