"""What notebooks show of topologies, pipelines and consumers, in a browser: all within its box, in light and dark."""

from __future__ import annotations

import itertools

import pytest

from acker.observe.svg import Box, Edge, layers_of, svg
from acker.spark.pipelines.counters import ComponentCounters
from acker.spark.pipelines.pipeline_graph import PipelineGraph
from acker.topology import Bolt, Grouping, Spout, Topology

SCRIPT = "<script>document.title='run'</script>"

# The texts and boxes that reach out of the drawing, the texts that reach out of their box, and the pairs of boxes that
# overlap. Coordinates are rounded in the drawing.
STRAY = """() => {
    const inside = (one, other) => one.left >= other.left - 1 && one.right <= other.right + 1
        && one.top >= other.top - 1 && one.bottom <= other.bottom + 1;
    const drawing = document.querySelector("svg").getBoundingClientRect();
    const boxes = [...document.querySelectorAll("g:has(> rect)")];
    const place = (each) => each.getBoundingClientRect();
    const stray = [...document.querySelectorAll("svg text, svg rect")].filter((each) => !inside(place(each), drawing));
    for (const box of boxes) {
        const rect = place(box.querySelector("rect"));
        stray.push(...[...box.querySelectorAll("text")].filter((text) => !inside(place(text), rect)));
        stray.push(...boxes.filter((other) => {
            const it = place(other.querySelector("rect"));
            return other !== box && it.left < rect.right && rect.left < it.right
                && it.top < rect.bottom && rect.top < it.bottom;
        }));
    }
    return stray.map((each) => each.textContent);
}"""


class Lines(Spout):
    outputs = ("line",)

    def next_tuple(self):
        """Emit nothing."""


class Split(Bolt):
    outputs = ("word", "number")

    def process(self, tup):
        """Emit nothing."""


class Words(Topology):
    """A loop of two bolts, one of a bolt with itself, an edge past a layer, and a long name."""

    lines = Lines.spec()
    more_lines = Lines.spec()
    split = Split.spec(inputs=[lines, "join"], par=2)
    a_rather_long_name_of_a_component = Split.spec(inputs={split: Grouping.fields("word")})
    third = Split.spec(inputs=[split, more_lines])
    join = Split.spec(
        inputs={
            "a_rather_long_name_of_a_component": Grouping.fields("word", "number"),
            "third": Grouping.all(),
            lines: Grouping.shuffle(),
            "join": Grouping.shuffle(),
        }
    )


@pytest.fixture
def show(browser):
    """Show a cell of a notebook, of a width and in colours."""
    contexts = []

    def open_cell(html, *, dark=False, width=900):
        context = browser.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        colours = "color:#ddd;background:#111" if dark else "color:#111;background:#fff"
        page.set_content(f"<!doctype html><title>cell</title><body style='{colours}'>{html}")
        return page

    yield open_cell
    for context in contexts:
        context.close()


@pytest.mark.parametrize("dark", [False, True])
def test_a_topology_is_drawn_with_names_and_groupings(show, dark: bool) -> None:
    page = show(Words._repr_html_(), dark=dark)
    assert page.evaluate(STRAY) == []
    drawn = page.locator("svg").text_content()
    assert "fields(word)" in drawn and "split" in drawn and "bolt, 2 tasks" in drawn
    assert page.locator("svg path[stroke-dasharray='4 3']").count() == 2, "the edges that lead back"
    assert page.locator("table caption").text_content() == "Words"
    colour = page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
    assert colour == ("rgb(221, 221, 221)" if dark else "rgb(17, 17, 17)")


def test_a_drawing_wider_than_its_cell_is_scaled(show) -> None:
    boxes = {f"part {number}": Box("bolt", [f"part {number}", "Part"]) for number in range(10)}
    names = list(boxes)
    page = show(svg("ten", boxes, [Edge(*pair, "shuffle") for pair in itertools.pairwise(names)]), width=500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 500
    assert page.evaluate(STRAY) == []


def test_hostile_names_are_text(show) -> None:
    name = f"{SCRIPT}\"'&\x00\x1b]\N{RIGHT-TO-LEFT OVERRIDE}" + "\N{CJK UNIFIED IDEOGRAPH-6F22}" * 40
    page = show(svg(name, {name: Box("spout", [name, name])}, [Edge(name, name, name)]))
    assert page.title() == "cell" and page.locator("script").count() == 0
    assert page.evaluate(STRAY) == []
    assert SCRIPT in page.locator("svg title").first.text_content()


def test_a_component_stands_behind_all_that_it_reads() -> None:
    edges = [Edge("a", "c"), Edge("a", "b"), Edge("b", "c"), Edge("c", "b"), Edge("c", "c")]
    assert layers_of(["a", "b", "c"], edges[:3]) == {"a": 0, "b": 1, "c": 2}
    assert layers_of(["c", "b", "a"], edges) == {"a": 0, "c": 1, "b": 2}, "a loop is cut at one place"


def test_a_pipeline_is_drawn_with_its_groupings_and_counts(show) -> None:
    left = PipelineGraph().add("lines").add("split").step("fields(word)")
    right = PipelineGraph().add("lines").add("<b>")
    graph = left.union(right).add("count")
    counts = {"count": ComponentCounters(1_000, 1, 2, 1_000, 0, {})}
    names = ["lines", "split", "<b>", "count"]
    page = show(graph.drawing({"lines"}, names, counts))
    assert page.evaluate(STRAY) == []
    drawn = page.locator("svg").text_content()
    assert "1,000 rows read" in drawn and "1 row emitted" in drawn and "2 failed" in drawn and "<b>" in drawn
    titles = page.locator("svg g > title").all_text_contents()
    edges = ["lines to split", "lines to <b>", "split to count: fields(word)", "<b> to count"]
    assert [title for title in titles if " to " in title] == edges
