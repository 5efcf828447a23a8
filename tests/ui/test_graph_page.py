"""The drawing of a definition in a real browser."""

from __future__ import annotations

import itertools

from playwright.sync_api import expect

from acker.topology import Bolt, Grouping, Spout, Stream, Topology
from acker.ui.graph_page import graph_html, graph_view

ODD = "</script><script>document.title = 'stolen'</script>"
expect.set_options(timeout=120_000)


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
    lines = Lines.spec(ODD, par=2)
    split = Work.spec(inputs=[lines, "count:again"], par=4, executors=2)
    count = Work.spec(
        inputs={split: Grouping.fields("word"), split["errors"]: Grouping.all, "count:again": Grouping.none}
    )
    log = Sink.spec(inputs=[split["errors"]])


def test_each_edge_says_how_its_tuples_are_grouped() -> None:
    view = graph_view(Looping.graph())
    assert view["headline"]["text"] == "Spouts: 1. Bolts: 3. Tasks: 8."
    edges = {(edge["from"], edge["to"]): (edge["label"], edge["kind"]) for edge in view["graph"]["edges"]}
    assert edges == {
        (ODD, "split"): ("shuffle", ""),
        ("count", "split"): ("again: shuffle", "loop"),
        ("split", "count"): ("fields(word); errors: all", "loop"),
        ("count", "count"): ("again: none", "loop"),
        ("split", "log"): ("errors: shuffle", ""),
    }
    components, subscriptions = (table["rows"] for table in view["tables"])
    assert components[1] == ["split", "bolt", "Work", 4, 2, "default: word, n; errors: line, error; again: word"]
    assert ["count reads split:errors", "all"] in subscriptions and len(subscriptions) == 6


def test_the_drawing_has_every_component_and_edge_and_none_lies_on_another(visit, tmp_path) -> None:
    path = tmp_path / "graph.html"
    path.write_text(graph_html(Looping.graph()), encoding="utf-8")
    page = visit(path.as_uri())
    expect(page.locator("#drawing .node")).to_have_count(4)
    expect(page.locator("#drawing .edge.loop")).to_have_count(3)
    assert sorted(page.locator("#drawing .edge text").all_text_contents()) == sorted(
        ["shuffle", "again: shuffle", "fields(word); errors: all", "again: none", "errors: shuffle"]
    )
    assert page.title() == "Looping \N{MIDDLE DOT} acker"
    boxes = [each.bounding_box() for each in page.locator("#drawing .node rect.box").all()]
    for one, other in itertools.combinations(boxes, 2):
        apart = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
        assert apart or one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
    around = page.locator("#drawing .edge", has_text="again: none").locator("path").bounding_box()
    count = boxes[[*Looping.graph().nodes].index("count")]
    assert count["x"] < around["x"] and around["x"] + around["width"] < count["x"] + count["width"]
    assert around["y"] >= count["y"] + count["height"] - 5  # the ends of lines are as wide as their strokes
    expect(page.locator("#components")).to_be_hidden()
