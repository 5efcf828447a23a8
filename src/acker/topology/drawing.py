"""Drawings of a topology: Graphviz dot, Mermaid, and SVG that needs no other program."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable

from acker.topology.graph import Graph
from acker.topology.layout import LINE, LOOP_HEIGHT, Box, Edge, Point, box_lines, label_line, layout
from acker.topology.streams import Stream

_ARROW = 8.0
_FILLS = {"spout": "#d9f2e6", "bolt": "#e3ecfa"}

# With a background, so that it is readable on any page; light or dark as the system is. Plain colours, since programs
# other than browsers know no CSS variables.
_STYLE = f"""<style>
.acker-topology text{{fill:#1f2933}} .acker-topology .ground{{fill:#fff}} .acker-topology .label{{fill:#fff}}
.acker-topology .spout{{fill:{_FILLS["spout"]};stroke:#2f855a}}
.acker-topology .bolt{{fill:{_FILLS["bolt"]};stroke:#3c6fb4}}
.acker-topology .line{{fill:none;stroke:#7b8794}} .acker-topology .arrow{{fill:#7b8794}}
.acker-topology .line.loop{{stroke:#c05621}} .acker-topology .arrow.loop{{fill:#c05621}}
@media (prefers-color-scheme:dark){{
.acker-topology text{{fill:#e6eaee}} .acker-topology .ground{{fill:#1b2127}} .acker-topology .label{{fill:#1b2127}}
.acker-topology .spout{{fill:#173d2c;stroke:#58c48a}} .acker-topology .bolt{{fill:#1d3557;stroke:#79aeea}}
.acker-topology .line{{stroke:#98a2ac}} .acker-topology .arrow{{fill:#98a2ac}}
.acker-topology .line.loop{{stroke:#f0a060}} .acker-topology .arrow.loop{{fill:#f0a060}}}}
</style>"""


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


def svg(graph: Graph) -> str:
    """Return a drawing of a topology as SVG; edges on a cycle are dashed and orange.

    A box shows what its component emits when the pointer is on it. The text needs no other file and may be part of an
    HTML page. Colours follow the system's choice of light or dark.
    """
    placed = layout(graph)
    width, height = f"{placed.width:.0f}", f"{placed.height:.0f}"
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" class="acker-topology" font-family="Helvetica, Arial, sans-serif" text-anchor="middle">'
    )
    parts = [
        start,
        f"<title>{html.escape(graph.name)}</title>",
        _STYLE,
        f'<rect class="ground" width="{width}" height="{height}" rx="6"/>',
        *map(_svg_line, placed.edges),
        *map(_svg_label, placed.edges),
        *map(_svg_box, placed.boxes),
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def _svg_line(edge: Edge) -> str:
    kind, dashes = (" loop", ' stroke-dasharray="5 3"') if edge.on_cycle else ("", "")
    way, arrow = _self_loop(edge.points) if edge.source == edge.consumer else _way(edge.points)
    return f'<path class="line{kind}" d="{way}" stroke-width="1.5"{dashes}/>\n<path class="arrow{kind}" d="{arrow}"/>'


def _way(points: tuple[Point, ...]) -> tuple[str, str]:
    """Return the path of an edge up to its arrow, and the path of the arrow."""
    tip_x, tip_y = points[-1]
    direction = 1.0 if points[-1][0] > points[-2][0] else -1.0
    stops = [*points[:-1], (tip_x - direction * _ARROW, tip_y)]
    way = [f"M{_at(stops[0])}"]
    for number, (one, other) in enumerate(itertools.pairwise(stops)):
        middle = (one[0] + other[0]) / 2
        curve = number % 2 == 0
        way.append(f"C{_at((middle, one[1]))} {_at((middle, other[1]))} {_at(other)}" if curve else f"L{_at(other)}")
    back = tip_x - direction * (_ARROW + 1)
    return " ".join(way), _triangle(points[-1], (back, tip_y - 4), (back, tip_y + 4))


def _self_loop(points: tuple[Point, ...]) -> tuple[str, str]:
    (start_x, top), (end_x, _) = points
    peak = top - LOOP_HEIGHT * 4 / 3  # a curve reaches three quarters of the way to its control points
    end = top - _ARROW
    way = f"M{_at((start_x, top))} C{_at((start_x, peak))} {_at((end_x, peak))} {_at((end_x, end))}"
    return way, _triangle((end_x, top), (end_x - 4, end - 1), (end_x + 4, end - 1))


def _triangle(*points: Point) -> str:
    return "M" + " L".join(map(_at, points)) + " Z"


def _at(point: Point) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


def _svg_label(edge: Edge) -> str:
    x, y, width, height = edge.label
    return (
        f'<rect class="label" x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="4" fill-opacity="0.92"/>\n{_svg_text(edge.lines, x, y, bold_first=False)}'
    )


def _svg_box(box: Box) -> str:
    radius = box.height / 2 if box.node.kind == "spout" else 5.0
    emits = "\n".join(map(_describe_stream, box.node.streams.values()))
    return (
        f"<g><title>{html.escape(emits or 'emits nothing')}</title>\n"
        f'<rect class="{box.node.kind}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{min(radius, 24.0):.1f}" stroke-width="1.5"/>\n'
        f"{_svg_text(box.lines, box.x + box.width / 2, box.y + box.height / 2, bold_first=True)}</g>"
    )


def _describe_stream(stream: Stream) -> str:
    return f"{stream.name}: {', '.join(stream.fields)}" + (" (direct)" if stream.direct else "")


def _svg_text(lines: Iterable[str], x: float, y: float, *, bold_first: bool) -> str:
    texts = list(lines)
    first = y - (len(texts) - 1) * LINE / 2 + 4  # the baseline is below the middle of a line
    rows = []
    for number, text in enumerate(texts):
        style = 'font-size="13" font-weight="bold"' if bold_first and number == 0 else 'font-size="11"'
        rows.append(f'<text x="{x:.1f}" y="{first + number * LINE:.1f}" {style}>{html.escape(text)}</text>')
    return "\n".join(rows)
