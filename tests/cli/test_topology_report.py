"""The report of a topology as a page, its verdict and its exit code."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from acker.cli.topology import exit_code
from acker.cli.topology_report import OUTCOMES, _bars, to_html, verdict
from acker.local.observe.metrics import Abandoned, Histogram, RunOutcome, RunReport, RuntimeStats
from acker.topology import Bolt, Spout, Topology, Tuple


class Lines(Spout):
    outputs = ["line"]

    def next_tuple(self) -> None:
        pass


class Split(Bolt):
    def process(self, tup: Tuple) -> None:
        pass


class WordCount(Topology):
    lines = Lines.spec()
    split = Split.spec(inputs=[lines])


@pytest.fixture
def report(stats) -> RunReport:
    return RunReport(
        topology="WordCount", outcome="drained", started_at="2026-01-01T00:00:00+00:00", seconds=2.0, stats=stats
    )


class Outline(HTMLParser):
    """Checks that tags are closed, and keeps what a reader sees."""

    VOID = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] != "style":
            self.seen.append(data)


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    parser.close()
    assert not parser.open
    return parser


def test_the_report_stands_alone_and_follows_light_and_dark(report) -> None:
    page = to_html(report, WordCount.graph())
    assert "prefers-color-scheme: dark" in page
    seen = outline(page)
    assert not [value for name, value in seen.attributes if name in ("src", "href") and not value.startswith("#")]
    text = " ".join(seen.seen)
    for part in ("WordCount", "Components", "timed out", "Complete latency: from emit to ack", "p99.9", "Streams"):
        assert part in text, part
    for absent in ("Stalls", "The error", "abandoned", "as traced", "Dead letters"):
        assert absent not in text, absent
    assert page.count("<svg") == 3, "the topology and two histograms"


def histogram(counts: dict[int, int]) -> Histogram:
    """Return latencies: how many by the place of their bucket, of which four are an octave."""
    bounds = tuple(round(1_000 * 2 ** (place / 4)) for place in range(112))  # 1 microsecond to 4 minutes
    held = [counts.get(place, 0) for place in range(len(bounds) + 1)]
    return Histogram(bounds, tuple(held), sum(held), 1_000 * sum(held))


@pytest.mark.parametrize(
    "counts",
    [{45: 1}, {0: 1}, {112: 3}, {8: 7, 40: 1_234_567, 44: 3}, dict.fromkeys(range(0, 113, 4), 99), {36: 5, 108: 2}],
    ids=["one", "first", "beyond the last bound", "many", "every octave", "far apart"],
)
def test_a_histogram_has_both_axes_and_fills_its_width_and_no_label_is_cut(counts) -> None:
    svg = ET.fromstring(re.search(r"<svg.*</svg>", _bars("split", histogram(counts), "tuples"))[0])
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    places: dict[str, list[tuple[float, float]]] = {}
    for text in svg.iter("text"):
        assert text.text
        long, x = 0.62 * 12 * len(text.text), float(text.attrib["x"])  # a digit is 0.62 em wide in the usual fonts
        left = {"end": x - long, "middle": x - long / 2}.get(text.attrib.get("text-anchor", ""), x)
        assert left >= 0 and left + long <= width, f"{text.text!r} is cut"
        assert 12 <= float(text.attrib["y"]) <= height - 3, f"{text.text!r} is cut"
        places.setdefault(text.attrib.get("class", ""), []).append((left, left + long))
    names = sorted(places["x"])
    assert names and all(one[1] <= other[0] for one, other in itertools.pairwise(names)), "names overlap"
    ticks = [int(text.text.replace(",", "")) for text in svg.iter("text") if text.attrib.get("class") == "y"]
    assert ticks[0] == 0 and 2 <= len(ticks) <= 6 and ticks == sorted(set(ticks))
    assert max(counts.values()) <= ticks[-1] <= 2 * max(counts.values())
    bars = [(float(bar.attrib["x"]), float(bar.attrib["width"])) for bar in svg.iter("rect")]
    assert bars[-1][0] + bars[-1][1] - bars[0][0] > 0.8 * width


def test_pictures_follow_the_dark_and_tables_scroll_where_the_page_is_narrow(report) -> None:
    page = to_html(report, WordCount.graph())
    assert "background: #fff" not in page
    drawn = page[page.index('class="acker-topology"') :].split("</svg>")[0]
    light, dark = drawn.split("prefers-color-scheme:dark")
    for part in ("text", ".ground", ".label", ".spout", ".bolt", ".line", ".arrow"):
        assert f".acker-topology {part}{{" in light and f".acker-topology {part}{{" in dark, part
    assert "fill" not in re.sub(r"fill-opacity", "", dark.split("</style>")[1]), "a colour that the dark cannot change"
    style = page.split("</style>")[0]
    assert re.search(r"th, td \{[^}]*white-space: nowrap", style) and ".drawing, .plot { overflow-x: auto; }" in style
    assert page.count('<div class="plot"><svg') == 2 and page.count('<div class="table"><table>') >= 3


def test_the_report_tells_what_went_wrong(report, stats) -> None:
    spout = replace(stats.tasks[0], dead_letters=3)
    bad = replace(
        report,
        outcome="failed",
        stats=replace(stats, tasks=(spout, *stats.tasks[1:])),
        error="ValueError: <no>",
        abandoned=(Abandoned("split", 2, 'File "x.py", line 3\n  sleep()'),),
        stalls=("nothing was acked for 30.0 s",),
        timed_out_traces=("lines: 'a' timed out: split[2] holds 1 tuple of lines",),
    )
    text = " ".join(outline(to_html(bad, WordCount.graph())).seen)
    for part in (
        "ended with an error; 1 abandoned, 1 failed, 2 timed out, 3 dead letters",
        "ValueError: <no>",
        "split[2]  did not come back:",
        'File "x.py", line 3',
        "nothing was acked for 30.0 s",
        "split[2] holds 1 tuple of lines",
        "Dead letters",
    ):
        assert part in text, part


def test_a_report_of_nothing_is_a_page_too(report) -> None:
    empty = replace(report, stats=RuntimeStats(topology="WordCount", state="stopped"))
    assert "Complete latency: from" not in to_html(empty, WordCount.graph())


def clean(report: RunReport) -> RunReport:
    spout = replace(report.stats.tasks[0], failed=0, timed_out=0)
    return replace(report, stats=replace(report.stats, tasks=(spout, *report.stats.tasks[1:])))


def test_the_verdict_is_good_fair_or_bad(report) -> None:
    assert verdict(clean(report)) == ("good", OUTCOMES["drained"])
    assert verdict(report) == ("fair", OUTCOMES["drained"] + "; 1 failed, 2 timed out")
    assert verdict(replace(clean(report), restarts=1))[0] == "fair"
    assert verdict(replace(report, abandoned=(Abandoned("split", 2, ""),)))[0] == "bad"
    assert verdict(replace(clean(report), outcome="stopped")) == ("good", "stopped and drained")
    assert verdict(replace(clean(report), outcome="aborted")) == ("bad", OUTCOMES["aborted"])


def ending(report: RunReport, outcome: RunOutcome, undelivered: int = 0, **counts: int) -> RunReport:
    report = clean(report)
    spout = replace(report.stats.tasks[0], **counts)
    stats = replace(report.stats, tasks=(spout, *report.stats.tasks[1:]))
    return replace(report, outcome=outcome, undelivered=undelivered, stats=stats)


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("stopped", "stopped"),
        ("elapsed", "the time was up"),
        ("reached", "as many trees were acked as were asked for"),
    ],
)
def test_trees_that_were_open_at_the_end_are_told(report, outcome, text) -> None:
    shut = ending(report, outcome, shut_down=128)
    assert verdict(shut) == ("fair", f"{text}; 128 trees were still open and were failed with reason SHUTDOWN")
    assert exit_code(shut) == 0
    one = ending(report, outcome, shut_down=1, restarted=2)
    assert verdict(one)[1] == (
        f"{text}; 1 tree was still open and was failed with reason SHUTDOWN; 2 ended by restarts"
    )
    undelivered = ending(report, outcome, undelivered=3)
    assert verdict(undelivered) == ("fair", f"{text}; of 3 trees the spout could not be told the end")


def test_the_report_has_tiles_of_what_is_unusual_where_there_is_any(report) -> None:
    page = to_html(ending(report, "stopped", undelivered=3, shut_down=1_028, restarted=7), WordCount.graph())
    for count, name in (
        ("1,028", "shut down while open"),
        ("7", "ended by restarts"),
        ("3", "spout could not be told"),
    ):
        assert f"<b>{count}</b><span>{name}</span>" in page
    page = to_html(clean(report), WordCount.graph())
    for absent in ("shut down", "ended by", "could not be told"):
        assert absent not in page


def test_the_exception_before_a_restart_that_never_came_is_told(report) -> None:
    crashed = ending(report, "stopped", restarted=2)
    text = "stopped while it waited for a restart after ValueError: <no>"
    assert verdict(crashed, "ValueError: <no>") == ("fair", f"{text}; 2 ended by restarts")
    assert f"{text}; 2 ended by restarts" in outline(to_html(crashed, WordCount.graph(), "ValueError: <no>")).seen


def test_exit_codes(report) -> None:
    abandoned = replace(report, abandoned=(Abandoned("split", 2, ""),))
    assert exit_code(report) == 0
    assert exit_code(replace(abandoned, outcome="failed", error="ValueError")) == 1
    assert exit_code(abandoned) == 3
    assert exit_code(replace(abandoned, outcome="aborted")) == 130
