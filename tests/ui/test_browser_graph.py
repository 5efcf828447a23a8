"""The drawing of the page in a real browser: every layer can be seen, and back-pressure is."""

from __future__ import annotations

import itertools
import re

import pytest
from playwright.sync_api import expect

from acker.observe.readings import tile
from tests.ui.fakes import fake_edge, fake_node, fake_view

expect.set_options(timeout=120_000)


def layers_view(count: int, **changes):
    """Return a reading of a chain: its queues fill up towards the end, whose component is busy."""
    nodes = [fake_node("source", "spout", rate=123_456.0, tasks=64, latency={"p50_ms": 1.0, "p99_ms": 123_456.0})]
    for number in range(1, count):
        fill = 90 if number == count - 1 else 5
        name = f"component_number_{number:03}_漢字漢字漢字"
        nodes.append(fake_node(name, queue=fill, busy=1.0 if number == count - 1 else 0.1, **changes))
    edges = [fake_edge(one["name"], other["name"]) for one, other in itertools.pairwise(nodes)]
    return fake_view(graph={"nodes": nodes, "edges": edges})


# The texts of the drawing that reach out of their component or out of the drawing, and parts of the page that reach out
# of their section.
STRAY = """() => {
    const place = (each) => each.getBoundingClientRect();
    const inside = (one, other) => one.left >= other.left - 1 && one.right <= other.right + 1;
    const stray = [];
    const drawing = place(document.querySelector("#drawing svg"));
    for (const node of document.querySelectorAll("#drawing .node")) {
        const box = place(node.querySelector("rect.box"));
        stray.push(...[...node.querySelectorAll("text:not(.tag)")].filter((text) => !inside(place(text), box)));
        if (!inside(box, drawing)) stray.push(node);
    }
    const labels = [...document.querySelectorAll("#drawing .edge text")];
    stray.push(...labels.filter((text) => !inside(place(text), drawing)));
    const parts = [...document.querySelectorAll("main > section > *, .chart > *, .tile > *")];
    const seen = parts.filter((part) => part.getClientRects().length);
    stray.push(...seen.filter((part) => !inside(place(part), place(part.parentElement))));
    return stray.map((each) => each.textContent || each.id);
}"""


@pytest.mark.parametrize(
    ("layers", "width", "scheme"),
    [
        (5, 1280, "light"),
        (10, 375, "dark"),
        pytest.param(5, 375, "dark", marks=pytest.mark.slow),
        pytest.param(10, 1280, "dark", marks=pytest.mark.slow),
        pytest.param(10, 800, "light", marks=pytest.mark.slow),
    ],
)
def test_every_layer_can_be_seen(visit, source, server, layers: int, width: int, scheme: str) -> None:
    source.now = layers_view(layers)
    page = visit(server.url, width=width, color_scheme=scheme)
    expect(page.locator("#drawing .node")).to_have_count(layers)
    assert page.evaluate(STRAY) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = "(({ scrollWidth, clientWidth, scrollHeight, clientHeight }) => [scrollWidth - clientWidth,"
    sideways, down = page.evaluate(f"{sizes} scrollHeight - clientHeight])(document.getElementById('drawing'))")
    hint = page.locator("#graph-goes-on")
    if sideways > 0 or down > 0:
        expect(hint).to_be_visible()
        expect(hint).to_have_text(f"The drawing goes on: scroll it {'sideways' if sideways > 0 else 'down'}.")
    else:
        expect(hint).to_be_hidden()
    if (layers, width) == (5, 1280):
        assert sideways <= 0, "five layers fit into a common window"


@pytest.mark.slow
def test_back_pressure_is_shown_by_colour_sign_and_word(visit, source, server) -> None:
    source.now = layers_view(4)
    page = visit(server.url)
    expect(page.locator("#drawing .node")).to_have_count(4)
    signs = [["idle", "○"], ["idle", "○"], ["pressed", "■"], ["busy", "●"]]
    shown = "(nodes) => nodes.map((each) => [/load-(\\w+)/.exec(each.getAttribute('class'))[1],"
    assert page.locator("#drawing .node").evaluate_all(f"{shown} each.querySelector('.sign').textContent])") == signs
    expect(page.locator("#drawing .edge.pressed")).to_have_count(1)
    expect(page.locator("#drawing .edge.pressed title")).to_have_text(re.compile("is 90 % full"))
    expect(page.locator("#graph-legend")).to_contain_text("back-pressured: a queue behind it is at least half full")
    source.now = fake_view()
    expect(page.locator("#drawing .edge.pressed")).to_have_count(0)


def test_a_bolt_whose_time_is_told_later_is_at_work_and_not_idle(visit, source, server) -> None:
    graph = {"nodes": [fake_node("a", "spout"), fake_node("b", busy=None)], "edges": [fake_edge("a", "b")]}
    source.now = fake_view(graph=graph, tiles_hint="of the last ten seconds")
    page = visit(server.url)
    expect(page.locator("#drawing .node.bolt")).to_contain_text("at work")
    expect(page.locator("#drawing .node.bolt")).not_to_have_class(re.compile("load-"))
    expect(page.locator("#tiles-hint")).to_have_text("of the last ten seconds")


def test_nothing_is_empty_without_need(visit, source, server) -> None:
    charts = [{**fake_view()["charts"][0], "key": f"chart {number}"} for number in range(4)]
    source.now = fake_view(charts=charts, tiles=[tile("Time to the ack", None, "ms", "99 of 100 are faster")])
    page = visit(server.url)
    expect(page.locator(".chart")).to_have_count(4)
    tops = page.locator(".chart").evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().top)")
    assert tops[0] == tops[1] < tops[2] == tops[3], "two and two, and not one alone"
    expect(page.locator(".tile")).to_have_text(re.compile("nothing to measure lately"))
    assert page.locator("#failures").bounding_box()["height"] < 120, "a list without rows"
