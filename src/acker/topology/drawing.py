"""Drawings of a topology for other programs: Graphviz dot and Mermaid."""

from __future__ import annotations

from acker.topology.graph import Graph, box_lines, label_line

_FILLS = {"spout": "#d9f2e6", "bolt": "#e3ecfa"}


def dot(graph: Graph) -> str:
    r"""Return a topology in Graphviz's language; edges on a cycle are dashed.

    Examples
    --------
    >>> from acker.topology import Bolt, Spout, Topology
    >>> from acker.topology.drawing import dot
    >>> class Lines(Spout):
    ...     outputs = ["line"]
    ...     def next_tuple(self): ...
    >>> class Split(Bolt):
    ...     outputs = ["word"]
    ...     def process(self, tup): ...
    >>> class Words(Topology):
    ...     lines = Lines.spec()
    ...     split = Split.spec(inputs=[lines], par=2)
    >>> print(dot(Words.graph()), end="")
    digraph "Words" {
      rankdir=LR;
      node [fontname="Helvetica", style=filled];
      edge [fontname="Helvetica", fontsize=10];
      "lines" [shape=ellipse, fillcolor="#d9f2e6", label="lines\nLines\nspout, 1 task"];
      "split" [shape=box, fillcolor="#e3ecfa", label="split\nSplit\nbolt, 2 tasks"];
      "lines" -> "split" [label="shuffle"];
    }
    """
    lines = [
        f"digraph {_quote(graph.name)} {{",
        "  rankdir=LR;",
        '  node [fontname="Helvetica", style=filled];',
        '  edge [fontname="Helvetica", fontsize=10];',
    ]
    for node in graph.nodes.values():
        shape = "ellipse" if node.kind == "spout" else "box"
        label = _quote(*box_lines(node))
        lines.append(f'  {_quote(node.name)} [shape={shape}, fillcolor="{_FILLS[node.kind]}", label={label}];')
    for subscription in graph.subscriptions:
        style = ", style=dashed" if (subscription.source, subscription.consumer) in graph.loops else ""
        ends = f"{_quote(subscription.source)} -> {_quote(subscription.consumer)}"
        lines.append(f"  {ends} [label={_quote(label_line(subscription))}{style}];")
    return "\n".join([*lines, "}", ""])


def _quote(*lines: str) -> str:
    """Return lines as one quoted string of dot."""
    return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


def mermaid(graph: Graph) -> str:
    """Return a topology as a Mermaid flowchart, for Markdown; edges on a cycle are dotted."""
    ids = {name: f"n{number}" for number, name in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for node in graph.nodes.values():
        label = "<br/>".join(map(_entities, box_lines(node)))
        lines.append(f'  {ids[node.name]}(["{label}"])' if node.kind == "spout" else f'  {ids[node.name]}["{label}"]')
    for subscription in graph.subscriptions:
        arrow = "-.->" if (subscription.source, subscription.consumer) in graph.loops else "-->"
        label = _entities(label_line(subscription))
        lines.append(f'  {ids[subscription.source]} {arrow}|"{label}"| {ids[subscription.consumer]}')
    return "\n".join([*lines, ""])


def _entities(text: str) -> str:
    """Return text with the characters that mean something in Mermaid as entities."""
    for character in '#"<>`&':  # the number sign first, since the entities contain it
        text = text.replace(character, f"#{ord(character)};")
    return text
