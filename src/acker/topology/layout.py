"""The layout of a drawing: layers from left to right, after Sugiyama, Tagawa and Toda (1981).

Columns of boxes alternate with columns of labels. An edge has its own place in each column between its ends, so that it
crosses no box, and its label has a place too, so that labels never overlap. Curves lie between the columns.

No library does this instead: grandalf and igraph are under the GPL, networkx places points without sizes or routes,
Graphviz is a program, and the layered layouts under permissive licences (fast-sugiyama, graphlay, graph-layout) are
young and compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from acker.topology.graph import Graph, Node, Subscription
from acker.topology.streams import DEFAULT_STREAM

Point = tuple[float, float]

# Sizes in pixels. Widths of characters are upper estimates for a sans-serif font of 13 and 11 pixels.
NAME_CHAR, TEXT_CHAR, LINE = 8.5, 6.6, 15.0
BOX_PAD, LABEL_PAD = 14.0, 5.0
COLUMN_GAP, BOX_GAP, LANE_GAP = 34.0, 30.0, 12.0
PORT_GAP, MARGIN, LOOP_HEIGHT = 14.0, 16.0, 26.0
_SWEEPS = 12


@dataclass(frozen=True, slots=True)
class Box:
    """The box of a component; x and y are its upper left corner."""

    node: Node
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Edge:
    """The edge from a component to one that reads it.

    Attributes
    ----------
    lines : tuple of str
        The label, one line a subscription.
    label : tuple of float
        x and y of the label's centre, its width and its height.
    points : tuple of (x, y)
        From the source's box to the consumer's. Every second segment, starting with the first, is a curve that is
        horizontal at both ends; the others are straight. For an edge from a box to itself: its two ends.
    on_cycle : bool
    """

    source: str
    consumer: str
    lines: tuple[str, ...]
    label: tuple[float, float, float, float]
    points: tuple[Point, ...]
    on_cycle: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes and places of all parts of a drawing."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def box_lines(node: Node) -> tuple[str, ...]:
    """Return the text of a box: name, class, and the numbers of tasks and threads."""
    tasks = "1 task" if node.par == 1 else f"{node.par} tasks"
    if node.executors != node.par:
        tasks += " on 1 thread" if node.executors == 1 else f" on {node.executors} threads"
    return node.name, node.component.__name__, f"{node.kind}, {tasks}"


def label_line(subscription: Subscription) -> str:
    """Return what an edge says: the grouping, and the stream unless it is the default one."""
    stream = "" if subscription.stream == DEFAULT_STREAM else f"{subscription.stream}: "
    return f"{stream}{subscription.grouping}"


@dataclass(eq=False, slots=True)
class _Item:
    """Something with a place in a column: a box, a label, or an edge that passes (neither)."""

    width: float
    height: float
    gap: float
    spare: float = 0.0  # of the height, what stays empty below
    before: list[_Item] = field(default_factory=list)  # neighbours in the column on the left
    after: list[_Item] = field(default_factory=list)
    place: int = 0  # in its column, from above
    y: float = 0.0  # of its centre


@dataclass(eq=False, slots=True)
class _Chain:
    """The path of an edge through the columns, from left to right, whichever way it points."""

    subscriptions: list[Subscription]
    left: _Item
    right: _Item
    backward: bool
    first_column: int
    items: list[_Item]
    label: _Item


def layout(graph: Graph) -> Layout:
    """Place the boxes and edges of a graph."""
    return _Layouter(graph).layout()


class _Layouter:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._edges: dict[tuple[str, str], list[Subscription]] = {}
        for subscription in graph.subscriptions:
            self._edges.setdefault((subscription.source, subscription.consumer), []).append(subscription)
        self._backward = _backward_edges(list(graph.nodes), list(self._edges))
        self._ranks = _ranks(list(graph.nodes), [edge for edge in self._edges if edge not in self._backward])
        self._columns: list[list[_Item]] = [[] for _ in range(2 * max(self._ranks.values(), default=0) + 1)]
        self._boxes = {name: self._box(node) for name, node in graph.nodes.items()}
        self._chains = [self._chain(*edge) for edge in self._edges if edge[0] != edge[1]]

    def layout(self) -> Layout:
        _order(self._columns)
        _settle(self._columns)
        top = min((item.y - item.height / 2 for column in self._columns for item in column), default=0.0)
        bottom = max(
            (item.y + item.height / 2 - item.spare for column in self._columns for item in column), default=0.0
        )
        for item in itertools.chain.from_iterable(self._columns):
            item.y += MARGIN - top
        lefts = [MARGIN]
        widths = [max((item.width for item in column), default=0.0) for column in self._columns]
        for width in widths:
            lefts.append(lefts[-1] + width + COLUMN_GAP)
        spans = [(left, left + width) for left, width in zip(lefts, widths, strict=False)]
        boxes = {name: self._place_box(name, spans) for name in self._boxes}
        edges = [*self._place_chains(boxes, spans), *self._place_loops(boxes)]
        order = list(self._edges)
        edges.sort(key=lambda edge: order.index((edge.source, edge.consumer)))
        return Layout(lefts[-1] - COLUMN_GAP + MARGIN, bottom - top + 2 * MARGIN, tuple(boxes.values()), tuple(edges))

    def _box(self, node: Node) -> _Item:
        name, *others = box_lines(node)
        loop_width, loop = self._loop_size(node.name)
        texts = [len(name) * NAME_CHAR, *(len(text) * TEXT_CHAR for text in others)]
        width = max(max(texts) + 2 * BOX_PAD, loop_width)
        ins = sum(source != node.name for source, consumer in self._edges if consumer == node.name)
        outs = sum(consumer != node.name for source, consumer in self._edges if source == node.name)
        height = max((1 + len(others)) * LINE + BOX_PAD, (max(ins, outs) + 1) * PORT_GAP)
        # A loop is drawn above its box; the same space is left free below, so that the box is in the middle.
        item = _Item(width, height + 2 * loop, BOX_GAP, loop)
        self._columns[2 * self._ranks[node.name]].append(item)
        return item

    def _loop_size(self, name: str) -> tuple[float, float]:
        """Return the width and height of the loop above a box that reads itself."""
        subscriptions = self._edges.get((name, name))
        if subscriptions is None:
            return 0.0, 0.0
        width, height = _label_size(subscriptions)
        return width, height + LOOP_HEIGHT

    def _chain(self, source: str, consumer: str) -> _Chain:
        subscriptions = self._edges[source, consumer]
        backward = (source, consumer) in self._backward
        left, right = (consumer, source) if backward else (source, consumer)
        first, last = 2 * self._ranks[left] + 1, 2 * self._ranks[right] - 1
        items = [_Item(0.0, 0.0, LANE_GAP) for _ in range(first, last + 1)]
        # Next to the consumer, which chooses the grouping.
        label = items[0] if backward else items[-1]
        label.width, label.height = _label_size(subscriptions)
        for one, other in itertools.pairwise([self._boxes[left], *items, self._boxes[right]]):
            one.after.append(other)
            other.before.append(one)
        for column, item in enumerate(items, first):
            self._columns[column].append(item)
        return _Chain(subscriptions, self._boxes[left], self._boxes[right], backward, first, items, label)

    def _place_box(self, name: str, spans: Sequence[tuple[float, float]]) -> Box:
        item, node = self._boxes[name], self._graph.nodes[name]
        left, right = spans[2 * self._ranks[name]]
        height = item.height - 2 * item.spare
        x = (left + right - item.width) / 2
        return Box(node, box_lines(node), x, item.y - height / 2, item.width, height)

    def _place_chains(self, boxes: dict[str, Box], spans: Sequence[tuple[float, float]]) -> Iterable[Edge]:
        box_of = {id(item): boxes[name] for name, item in self._boxes.items()}
        # The ports of a box are in the order of the next items of their edges, so that edges do not cross there.
        starts = _ports([(chain, chain.left, chain.items[0]) for chain in self._chains], box_of)
        ends = _ports([(chain, chain.right, chain.items[-1]) for chain in self._chains], box_of)
        for chain in self._chains:
            left, right = box_of[id(chain.left)], box_of[id(chain.right)]
            points: list[Point] = [(left.x + left.width, starts[id(chain)])]
            for column, item in enumerate(chain.items, chain.first_column):
                points += [(spans[column][0], item.y), (spans[column][1], item.y)]
            points.append((right.x, ends[id(chain)]))
            column = chain.first_column + chain.items.index(chain.label)
            center = (spans[column][0] + spans[column][1]) / 2
            label = (center, chain.label.y, chain.label.width, chain.label.height)
            yield self._edge(chain.subscriptions, label, points[::-1] if chain.backward else points)

    def _place_loops(self, boxes: dict[str, Box]) -> Iterable[Edge]:
        for (source, consumer), subscriptions in self._edges.items():
            if source == consumer:
                box = boxes[source]
                width, height = _label_size(subscriptions)
                label = (box.x + box.width / 2, box.y - LOOP_HEIGHT - height / 2, width, height)
                ends = [(box.x + box.width * 0.75, box.y), (box.x + box.width * 0.25, box.y)]
                yield self._edge(subscriptions, label, ends)

    def _edge(
        self, subscriptions: Sequence[Subscription], label: tuple[float, float, float, float], points: Iterable[Point]
    ) -> Edge:
        source, consumer = subscriptions[0].source, subscriptions[0].consumer
        lines = tuple(map(label_line, subscriptions))
        return Edge(source, consumer, lines, label, tuple(points), (source, consumer) in self._graph.loops)


def _label_size(subscriptions: Sequence[Subscription]) -> Point:
    longest = max(len(label_line(subscription)) for subscription in subscriptions)
    return longest * TEXT_CHAR + 2 * LABEL_PAD, len(subscriptions) * LINE + LABEL_PAD


def _backward_edges(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return edges without which the graph has no cycle: the back edges of a depth-first search."""
    following: dict[str, list[str]] = {name: [] for name in names}
    for source, consumer in edges:
        following[source].append(consumer)
    backward: set[tuple[str, str]] = set()
    done: set[str] = set()
    for root in names:
        if root in done:
            continue
        # Not recursive, so that a chain of a thousand bolts is possible.
        path = {root: iter(following[root])}
        while path:
            name = next(reversed(path))
            consumer = next(path[name], "")
            if not consumer:
                del path[name]
                done.add(name)
            elif consumer in path:
                backward.add((name, consumer))
            elif consumer not in done:
                path[consumer] = iter(following[consumer])
    return backward


def _ranks(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the length of the longest path to each component; the edges have no cycle."""
    ranks = dict.fromkeys(names, 0)
    missing = dict.fromkeys(names, 0)
    following: dict[str, list[str]] = {name: [] for name in names}
    for source, consumer in edges:
        missing[consumer] += 1
        following[source].append(consumer)
    ready = [name for name in names if not missing[name]]
    while ready:
        name = ready.pop()
        for consumer in following[name]:
            ranks[consumer] = max(ranks[consumer], ranks[name] + 1)
            missing[consumer] -= 1
            if not missing[consumer]:
                ready.append(consumer)
    return ranks


def _order(columns: Sequence[list[_Item]]) -> None:
    """Sort each column by the places of its neighbours, in both directions; keep the one with fewest crossings."""
    best = [list(column) for column in columns]
    fewest = None
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for column in columns if forward else reversed(columns):
            for place, item in enumerate(column):
                item.place = place
            column.sort(key=lambda item: _mean([n.place for n in (item.before if forward else item.after)], item.place))
            for place, item in enumerate(column):
                item.place = place
        crossings = sum(map(_crossings, columns))
        if fewest is None or crossings < fewest:
            best, fewest = [list(column) for column in columns], crossings
        if not crossings:
            break
    for column, items in zip(columns, best, strict=True):
        column[:] = items
        for place, item in enumerate(column):
            item.place = place


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _crossings(column: Sequence[_Item]) -> int:
    """Return the number of crossings between a column and the next."""
    ends = [other.place for item in column for other in sorted(item.after, key=lambda other: other.place)]
    return sum(above > below for above, below in itertools.combinations(ends, 2))


def _settle(columns: Sequence[Sequence[_Item]]) -> None:
    """Set each item's y near its neighbours', in the order of its column and without overlaps."""
    for column in columns:
        _place(column, [0.0] * len(column))
    for sweep in range(_SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            _place(column, [_mean([n.y for n in (*item.before, *item.after)], item.y) for item in column])


def _place(column: Sequence[_Item], wanted: Sequence[float]) -> None:
    """Place items as near as possible to the wanted places: least squares, by pooling adjacent violators."""
    offsets = [0.0]
    for above, below in itertools.pairwise(column):
        offsets.append(offsets[-1] + (above.height + below.height) / 2 + max(above.gap, below.gap))
    pools: list[tuple[float, int]] = []  # (mean of wanted - offset, how many items)
    for want, offset in zip(wanted, offsets, strict=False):
        mean, count = want - offset, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        pools.append((mean, count))
    means = itertools.chain.from_iterable(itertools.repeat(mean, count) for mean, count in pools)
    for item, mean, offset in zip(column, means, offsets, strict=False):
        item.y = mean + offset


def _ports(touches: Iterable[tuple[_Chain, _Item, _Item]], box_of: dict[int, Box]) -> dict[int, float]:
    """Return the y at which each chain touches the box at its end."""
    by_box: dict[int, list[tuple[_Chain, _Item]]] = {}
    for chain, item, following in touches:
        by_box.setdefault(id(item), []).append((chain, following))
    ports = {}
    for key, chains in by_box.items():
        box = box_of[key]
        for number, (chain, _) in enumerate(sorted(chains, key=lambda pair: pair[1].y), 1):
            ports[id(chain)] = box.y + box.height * number / (len(chains) + 1)
    return ports
