"""The drawing of a topology's definition, as a frozen page."""

from __future__ import annotations

from typing import Any

from acker.observe.readings import reading, table
from acker.topology.graph import Graph, Node, Subscription, label_line
from acker.ui.frozen import freeze


def graph_html(graph: Graph) -> str:
    """Return a page that draws a topology: its components, and how their tuples are grouped."""
    return freeze(graph_view(graph))


def graph_view(graph: Graph) -> dict[str, Any]:
    """Return the definition of a topology as a reading of the live page."""
    tasks = sum(node.par for node in graph.nodes.values())
    edges: dict[tuple[str, str], list[Subscription]] = {}
    for each in graph.subscriptions:
        edges.setdefault((each.source, each.consumer), []).append(each)
    text = f"Spouts: {len(graph.spouts):,}. Bolts: {len(graph.bolts):,}. Tasks: {tasks:,}."
    return reading(
        "graph",
        graph.name,
        "definition",
        {"tone": "idle", "text": text},
        is_last=True,
        tiles=[],
        graph={
            "hint": "An edge says how tuples are grouped. Dashed edges lie on a cycle.",
            "nodes": [_node(node) for node in graph.nodes.values()],
            "edges": [_edge(graph, each) for each in edges.values()],
        },
        tables=[_components(graph), _subscriptions(graph)],
    )


def _node(node: Node) -> dict[str, Any]:
    return {"name": node.name, "kind": node.kind, "tasks": node.par, "about": node.component.__name__}


def _edge(graph: Graph, subscriptions: list[Subscription]) -> dict[str, Any]:
    source, consumer = subscriptions[0].source, subscriptions[0].consumer
    return {
        "from": source,
        "to": consumer,
        "streams": [f"{each.stream}: {each.grouping}" for each in subscriptions],
        "label": "; ".join(map(label_line, subscriptions)),
        "kind": "loop" if (source, consumer) in graph.loops else "",
        "rate": None,
    }


def _components(graph: Graph) -> dict[str, Any]:
    columns = [("Component", None), ("Kind", None), ("Class", None), ("Tasks", ""), ("Threads", ""), ("Emits", None)]
    rows = [
        [
            node.name,
            node.kind,
            node.component.__name__,
            node.par,
            node.executors,
            "; ".join(f"{stream.name}: {', '.join(stream.fields)}" for stream in node.streams.values()),
        ]
        for node in graph.nodes.values()
    ]
    return table("components", "Components", columns, rows)


def _subscriptions(graph: Graph) -> dict[str, Any]:
    columns = [("Subscription", None), ("Grouping", None)]
    rows = [[f"{each.consumer} reads {each.source}:{each.stream}", str(each.grouping)] for each in graph.subscriptions]
    return table("subscriptions", "Subscriptions", columns, rows)
