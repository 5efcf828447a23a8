"""A drawing of components and of the edges between them, as SVG for notebooks.

It takes its colours from the text around it, so it fits light and dark themes, and it needs no script, font or network.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

_CHARACTER: Final = 7.8
_LINE: Final = 17
_PAD: Final = 12
_SPACE: Final = 22
_TEXT_MAX: Final = 30
# A label begins so far behind its box, above its edge, whose height is that at this share of its way.
_LABEL_AT: Final = 10
_LABEL_SHARE: Final = 0.3
# For an edge that leads back, or past a layer: it goes around all boxes, on a lane below them.
_LANE: Final = 18
_ASIDE: Final = 8


class Box(NamedTuple):
    """A component: its kind, and its lines of text, of which the first is its name."""

    kind: str
    lines: Sequence[str]


class Edge(NamedTuple):
    """The way of tuples from a component to one that reads them."""

    source: str
    consumer: str
    label: str = ""


class _Position(NamedTuple):
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def svg(name: str, boxes: Mapping[str, Box], edges: Sequence[Edge]) -> str:
    """Return the drawing as an element for HTML; all text is escaped, and long texts are in titles whole.

    Parameters
    ----------
    name : str
        Of the drawing, for screen readers.
    boxes : dict of name to Box
    edges : sequence of Edge
        One for each pair of components. One that leads back, to its own or an earlier layer, is dashed.
    """
    layers = layers_of(list(boxes), edges)
    places = _places(boxes, edges, layers)
    bottom = max((place.y + place.height for place in places.values()), default=0)
    width = max((place.x + place.width for place in places.values()), default=0) + _PAD
    parts, around = [], 0
    for edge in edges:
        ends = places[edge.source], places[edge.consumer]
        ahead = layers[edge.consumer] - layers[edge.source]
        if ahead == 1:
            parts.append(_straight(edge, *ends))
        else:
            around += 1
            parts.append(_around(edge, *ends, bottom + _LANE * around, is_back=ahead < 1))
    parts += (_box(box, places[each]) for each, box in boxes.items())
    height = bottom + _LANE * around + _PAD
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_escaped(name)}" width="{width:.0f}"'
        f' height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        ' style="max-width:100%;height:auto" fill="none" stroke="currentColor" font-family="sans-serif"'
        f' font-size="12">{"".join(parts)}</svg>'
    )


def layers_of(names: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """Return the layer of each component: one more than the last of those that it reads; a loop is cut somewhere."""
    sources: dict[str, set[str]] = {name: set() for name in names}
    for edge in edges:
        if edge.source != edge.consumer:
            sources[edge.consumer].add(edge.source)
    layers: dict[str, int] = {}
    left = list(names)
    while left:
        name = next((each for each in left if sources[each] <= layers.keys()), left[0])
        left.remove(name)
        layers[name] = max((layers[each] + 1 for each in sources[name] if each in layers), default=0)
    return layers


def _places(boxes: Mapping[str, Box], edges: Sequence[Edge], layers: Mapping[str, int]) -> dict[str, _Position]:
    """Place each layer in a column; each gap is as wide as its longest label."""
    columns: list[list[str]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for name in boxes:
        columns[layers[name]].append(name)
    heights = {name: _LINE * len(box.lines) + _PAD for name, box in boxes.items()}
    tallest = max((_stacked(heights[name] for name in column) for column in columns), default=0)
    places: dict[str, _Position] = {}
    x = float(_PAD)
    for column in columns:
        width = 2 * _PAD + max(_width(line) for name in column for line in boxes[name].lines)
        y = _PAD + (tallest - _stacked(heights[name] for name in column)) / 2
        for name in column:
            places[name] = _Position(x, y, width, heights[name])
            y += heights[name] + _SPACE
        labels = [_width(edge.label) for edge in edges if edge.source in column and edge.label]
        x += width + max(labels, default=0) + 3 * _LABEL_AT
    return places


def _stacked(heights: Iterable[float]) -> float:
    found = list(heights)
    return sum(found) + _SPACE * (len(found) - 1)


def _box(box: Box, place: _Position) -> str:
    styles = ['font-weight="bold"', *['opacity=".75"'] * (len(box.lines) - 1)]
    lines = "".join(
        f'<text x="{place.x + _PAD:.0f}" y="{place.y + _LINE * number + 1:.0f}" stroke="none" fill="currentColor"'
        f" {style}>{_escaped(_shortened(line))}</text>"
        for number, (line, style) in enumerate(zip(box.lines, styles, strict=True), 1)
    )
    return (
        f"<g><title>{_escaped('; '.join(box.lines))}</title>"
        f'<rect x="{place.x:.0f}" y="{place.y:.0f}" width="{place.width:.0f}" height="{place.height:.0f}"'
        f' rx="{16 if box.kind == "spout" else 5}" fill="currentColor" fill-opacity=".07"/>{lines}</g>'
    )


def _straight(edge: Edge, source: _Position, consumer: _Position) -> str:
    x, end = source.x + source.width, consumer.x
    line = f"M{x:.0f} {source.middle:.0f}L{end:.0f} {consumer.middle:.0f}"
    y = source.middle + _LABEL_SHARE * (consumer.middle - source.middle) - 5
    return _edge(edge, line, consumer, x + _LABEL_AT, y)


def _around(edge: Edge, source: _Position, consumer: _Position, lane: float, *, is_back: bool) -> str:
    x, end = source.x + source.width + _ASIDE, consumer.x - _ASIDE
    line = f"M{x - _ASIDE:.0f} {source.middle:.0f}H{x:.0f}V{lane:.0f}H{end:.0f}V{consumer.middle:.0f}H{consumer.x:.0f}"
    return _edge(edge, line, consumer, min(x, end) + _LABEL_AT, lane - 4, dashes="4 3" if is_back else "none")


def _edge(edge: Edge, line: str, consumer: _Position, x: float, y: float, dashes: str = "none") -> str:
    title = f"{edge.source} to {edge.consumer}" + (f": {edge.label}" if edge.label else "")
    label = f'<text x="{x:.0f}" y="{y:.0f}" stroke="none" fill="currentColor">{_escaped(_shortened(edge.label))}</text>'
    head = f'<path d="M{consumer.x:.0f} {consumer.middle:.0f}l-8 -4v8z" stroke="none" fill="currentColor"/>'
    return (
        f'<g><title>{_escaped(title)}</title><path d="{line}" opacity=".5" stroke-dasharray="{dashes}"/>{head}'
        f"{label if edge.label else ''}</g>"
    )


def _width(text: str) -> float:
    """Return about how wide a text is; signs of East Asia take two places."""
    shown = _shortened(text)
    return _CHARACTER * sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in shown)


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"


def _escaped(text: str) -> str:
    from html import escape  # Not with this module, as in `acker._engine.notebook`.

    # A control character is no part of a document; a viewer would refuse the drawing.
    return escape("".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text))
