"""Drawings: the whole text of small ones, and no overlaps in many random ones."""

import itertools
import random
import xml.etree.ElementTree as ET

import pytest

from acker.topology import Bolt, Grouping, Spout, Stream, Topology
from acker.topology.drawing import dot, mermaid, svg
from acker.topology.layout import MARGIN, layout

NAMESPACE = "{http://www.w3.org/2000/svg}"


class Lines(Spout):
    outputs = ["line"]

    def next_tuple(self):
        pass


class Work(Bolt):
    outputs = ["word", "n", Stream(["line", "error"], name="errors"), Stream(["word"], name="again")]

    def process(self, tup):
        pass


class Sink(Bolt):
    def process(self, tup):
        pass


class Looping(Topology):
    lines = Lines.spec(par=2)
    split = Work.spec(inputs=["lines", "count:again"], par=4, executors=2)
    count = Work.spec(
        inputs={split: Grouping.fields("word"), split["errors"]: Grouping.all, "count:again": Grouping.none}
    )
    log = Sink.spec(inputs=[split["errors"]])


def test_dot():
    assert dot(Looping.graph()) == (
        'digraph "Looping" {\n'
        "  rankdir=LR;\n"
        '  node [fontname="Helvetica", style=filled];\n'
        '  edge [fontname="Helvetica", fontsize=10];\n'
        '  "lines" [shape=ellipse, fillcolor="#d9f2e6", label="lines\\nLines\\nspout, 2 tasks"];\n'
        '  "split" [shape=box, fillcolor="#e3ecfa", label="split\\nWork\\nbolt, 4 tasks on 2 threads"];\n'
        '  "count" [shape=box, fillcolor="#e3ecfa", label="count\\nWork\\nbolt, 1 task"];\n'
        '  "log" [shape=box, fillcolor="#e3ecfa", label="log\\nSink\\nbolt, 1 task"];\n'
        '  "lines" -> "split" [label="shuffle"];\n'
        '  "count" -> "split" [label="again: shuffle", style=dashed];\n'
        '  "split" -> "count" [label="fields(word)", style=dashed];\n'
        '  "split" -> "count" [label="errors: all", style=dashed];\n'
        '  "count" -> "count" [label="again: none", style=dashed];\n'
        '  "split" -> "log" [label="errors: shuffle"];\n'
        "}\n"
    )


def test_mermaid():
    assert mermaid(Looping.graph()) == (
        "flowchart LR\n"
        '  n0(["lines<br/>Lines<br/>spout, 2 tasks"])\n'
        '  n1["split<br/>Work<br/>bolt, 4 tasks on 2 threads"]\n'
        '  n2["count<br/>Work<br/>bolt, 1 task"]\n'
        '  n3["log<br/>Sink<br/>bolt, 1 task"]\n'
        '  n0 -->|"shuffle"| n1\n'
        '  n2 -.->|"again: shuffle"| n1\n'
        '  n1 -.->|"fields(word)"| n2\n'
        '  n1 -.->|"errors: all"| n2\n'
        '  n2 -.->|"again: none"| n2\n'
        '  n1 -->|"errors: shuffle"| n3\n'
    )


def test_svg_holds_every_text_and_is_well_formed():
    root = ET.fromstring(svg(Looping.graph()))
    texts = [element.text for element in root.iter(f"{NAMESPACE}text")]
    for expected in (
        "lines",
        "Work",
        "bolt, 4 tasks on 2 threads",
        "shuffle",
        "again: none",
        "fields(word)",
        "errors: all",
    ):
        assert expected in texts
    titles = [element.text for element in root.iter(f"{NAMESPACE}title")]
    assert titles[0] == "Looping"
    assert "default: word, n\nerrors: line, error\nagain: word" in titles
    assert "emits nothing" in titles
    assert svg(Looping.graph()) == svg(Looping.graph())


def test_names_are_escaped():
    odd = 'a "b" <c> & #\\`'

    def reader(values, tasks):
        return tasks

    reader.__name__ = "<lambda>"
    specs = {"x": Lines.spec(odd), "y": Sink.spec(inputs={odd: Grouping.custom(reader)})}
    graph = type(Topology)("T", (Topology,), specs).graph()
    assert 'a "b" <c> & #\\`' in [element.text for element in ET.fromstring(svg(graph)).iter(f"{NAMESPACE}text")]
    assert '"a \\"b\\" <c> & #\\\\`" -> "y" [label="custom(<lambda>)"];' in dot(graph)
    assert '(["a #34;b#34; #60;c#62; #38; #35;\\#96;<br/>Lines<br/>spout, 1 task"])' in mermaid(graph)


def random_graph(seed):
    rng = random.Random(seed)
    specs = {f"spout{number}": Lines.spec(par=rng.randint(1, 3)) for number in range(rng.randint(1, 3))}
    bolts = [f"bolt{number}" + "x" * rng.randrange(12) for number in range(rng.randint(1, 14))]
    fed = list(specs)
    for name in bolts:
        inputs = {rng.choice(fed): Grouping.shuffle}  # from a spout, directly or by way of others
        for other in rng.sample(bolts, min(len(bolts), rng.randrange(4))):
            for stream in rng.sample(["default", "errors", "again"], rng.randint(1, 2)):
                inputs.setdefault(f"{other}:{stream}" if stream != "default" else other, rng.choice(
                    [Grouping.shuffle, Grouping.all, Grouping.global_]))  # fmt: skip
        specs[name] = Work.spec(inputs=inputs, par=rng.randint(1, 4))
        fed.append(name)
    return type(Topology)("T", (Topology,), specs).graph()


def sampled(points):
    """Yield points along an edge, in the same shape as the drawing's: curves and straight lines by turns."""
    for number, ((x0, y0), (x1, y1)) in enumerate(itertools.pairwise(points)):
        for step in range(21):
            t = step / 20
            if number % 2:
                yield x0 + (x1 - x0) * t, y0 + (y1 - y0) * t
            else:
                middle, u = (x0 + x1) / 2, 1 - t
                x = u**3 * x0 + 3 * u * t * middle + t**3 * x1
                yield x, (u**3 + 3 * u * u * t) * y0 + (3 * u * t * t + t**3) * y1


def overlap(one, other):
    (x, y, width, height), (a, b, c, d) = one, other
    return x < a + c - 0.01 and a < x + width - 0.01 and y < b + d - 0.01 and b < y + height - 0.01


@pytest.mark.parametrize("seed", range(40))
def test_nothing_lies_on_anything_else(seed):
    graph = random_graph(seed)
    placed = layout(graph)
    boxes = {box.node.name: (box.x, box.y, box.width, box.height) for box in placed.boxes}
    labels = [(x - w / 2, y - h / 2, w, h) for x, y, w, h in (edge.label for edge in placed.edges)]
    assert list(boxes) == list(graph.nodes)
    for one, other in itertools.combinations([*boxes.values(), *labels], 2):
        assert not overlap(one, other)
    for x, y, width, height in [*boxes.values(), *labels]:
        assert x >= MARGIN - 0.01 and y >= MARGIN - 0.01
        assert x + width <= placed.width - MARGIN + 0.01 and y + height <= placed.height - MARGIN + 0.01
    for edge in placed.edges:
        inner = [(x + 0.01, y + 0.01, width - 0.02, height - 0.02) for x, y, width, height in boxes.values()]
        if edge.source == edge.consumer:
            continue
        for px, py in sampled(edge.points):
            assert not any(x < px < x + width and y < py < y + height for x, y, width, height in inner), edge


@pytest.mark.parametrize("seed", range(40))
def test_edges_begin_and_end_at_their_boxes(seed):
    graph = random_graph(seed)
    placed = layout(graph)
    boxes = {box.node.name: box for box in placed.boxes}
    pairs = {(s.source, s.consumer): [] for s in graph.subscriptions}
    for subscription in graph.subscriptions:
        pairs[subscription.source, subscription.consumer].append(subscription)
    assert [(edge.source, edge.consumer) for edge in placed.edges] == list(pairs)
    ports = []
    for edge in placed.edges:
        assert len(edge.lines) == len(pairs[edge.source, edge.consumer])
        assert edge.on_cycle == ((edge.source, edge.consumer) in graph.loops)
        for (x, y), name in ((edge.points[0], edge.source), (edge.points[-1], edge.consumer)):
            box = boxes[name]
            if edge.source == edge.consumer:
                assert y == box.y and box.x < x < box.x + box.width
            else:
                assert x in {box.x, box.x + box.width} and box.y < y < box.y + box.height
            ports.append((name, round(x, 3), round(y, 3)))
    assert len(set(ports)) == len(ports)  # no two edges touch a box at one point


def test_a_chain_is_straight():
    class Chain(Topology):
        lines = Lines.spec()
        first = Work.spec(inputs=[lines])
        second = Work.spec(inputs=[first])

    placed = layout(Chain.graph())
    heights = {round(y, 6) for edge in placed.edges for _, y in edge.points}
    assert len(heights) == 1
    assert [box.x for box in placed.boxes] == sorted({box.x for box in placed.boxes})


def test_a_tree_has_no_crossings():
    """Defined in an order that crosses, were it kept."""

    class Tree(Topology):
        lines = Lines.spec()
        a = Work.spec(inputs=[lines])
        b = Work.spec(inputs=[lines])
        b1 = Work.spec(inputs=[b])
        a1 = Work.spec(inputs=[a])
        b2 = Work.spec(inputs=[b])
        a2 = Work.spec(inputs=[a])

    ys = {box.node.name: box.y for box in layout(Tree.graph()).boxes}
    assert (ys["a"] < ys["b"]) == (max(ys["a1"], ys["a2"]) < min(ys["b1"], ys["b2"]))


def test_one_spout_alone_and_a_long_chain():
    single = layout(type(Topology)("T", (Topology,), {"lines": Lines.spec()}).graph())
    assert len(single.boxes) == 1 and not single.edges
    specs = {"bolt0": Lines.spec()}
    for number in range(1, 300):
        specs[f"bolt{number}"] = Work.spec(inputs=[f"bolt{number - 1}"])
    placed = layout(type(Topology)("T", (Topology,), specs).graph())
    assert len(placed.edges) == 299
