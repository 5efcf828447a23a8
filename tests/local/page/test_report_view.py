"""The report of a run as a reading of the page."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from acker.local.page.report_view import octaves, report_view
from acker.observe.latencies import Histogram
from acker.observe.run_report import Abandoned, RunReport
from acker.observe.stats import RuntimeStats
from acker.topology import Bolt, Grouping, Spout, Topology, Tuple
from tests.figures import Runtime, clean, ending


class Lines(Spout):
    outputs = ["line"]

    def next_tuple(self) -> None:
        pass


class Split(Bolt):
    outputs = ["word"]

    def process(self, tup: Tuple) -> None:
        pass


class WordCount(Topology):
    lines = Lines.spec()
    split = Split.spec(inputs=[lines])


@pytest.fixture
def stats() -> RuntimeStats:
    return Runtime().value


@pytest.fixture
def report(stats) -> RunReport:
    return RunReport(
        topology="WordCount", outcome="drained", started_at="2026-01-01T00:00:00+00:00", seconds=2.0, stats=stats
    )


def test_a_report_is_a_reading_with_the_figures_of_the_run(report) -> None:
    view = report_view(report, WordCount.graph())
    assert json.loads(json.dumps(view, allow_nan=False)) == json.loads(json.dumps(view)), "values for JSON"
    assert view["at_ms"] == 1_767_225_602_000 and view["is_last"] and view["actions"] == []
    tiles = {tile["name"]: tile["value"] for tile in view["tiles"]}
    totals = report.stats.totals
    assert (tiles["Acked"], tiles["Failed"], tiles["Timed out"]) == (totals.acked, totals.failed, totals.timed_out)
    assert tiles["Tuples emitted"] == totals.emitted_total and tiles["Pending at the end"] == totals.pending
    lines, split = view["graph"]["nodes"]
    assert (lines["rate"], split["rate"], split["queue"], split["busy"]) == (3.0, 5.0, 4, 0.5)
    assert view["graph"]["edges"] == [{"from": "lines", "to": "split", "streams": ["default: shuffle"], "rate": 5.0}]
    tables = {table["key"]: table["rows"] for table in view["tables"]}
    assert tables["streams"] == [["lines: default", 10], ["lines: errors", 1], ["split: default", 50]]
    assert tables["counted"] == [["lines: files", 3]] and set(tables) == {"latencies", "streams", "counted"}
    assert [row[:2] for row in tables["latencies"]] == [["lines, complete", 2], ["split, execute", 2]]
    assert view["texts"] == []


def test_an_edge_has_a_rate_where_emits_tell_it(report) -> None:
    class Routed(Topology):
        lines = Lines.spec()
        split = Split.spec(inputs={lines: Grouping.ALL}, par=3)
        chosen = Split.spec(inputs={lines: Grouping.custom(lambda tasks, *_: tasks)})

    graph = Routed.graph()
    rates = {edge["to"]: edge["rate"] for edge in report_view(report, graph)["graph"]["edges"]}
    assert rates == {"split": 15.0, "chosen": None}


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
    view = report_view(bad, WordCount.graph())
    assert view["headline"] == {
        "tone": "bad",
        "text": "Stopped with an error: ValueError: <no>. 1 abandoned, 1 failed, 2 timed out, 3 dead letters.",
    }
    texts = {each["title"]: (each["lines"], each["is_code"]) for each in view["texts"]}
    assert texts == {
        "The error": (["ValueError: <no>"], True),
        "Tasks that were abandoned": (['split[2] did not come back:\nFile "x.py", line 3\n  sleep()'], True),
        "Stalls": (["nothing was acked for 30.0 s"], False),
        "Trees that timed out, as traced": (["lines: 'a' timed out: split[2] holds 1 tuple of lines"], False),
    }
    assert next(table["rows"] for table in view["tables"] if table["key"] == "letters") == [["lines", 3]]


def test_a_report_of_nothing_is_a_reading_too(report) -> None:
    empty = replace(report, stats=RuntimeStats(topology="WordCount", state="stopped"), started_at="", seconds=0.0)
    view = report_view(empty, WordCount.graph())
    assert view["histograms"] == view["tables"] == [] and view["at_ms"] > 0
    assert [node["name"] for node in view["graph"]["nodes"]] == ["lines", "split"]


@pytest.mark.parametrize(
    ("counts", "held"),
    [
        ({45: 1}, [0, 0, 0, 0, 1]),
        ({0: 1}, [1, 0, 0, 0, 0]),
        ({112: 3}, [0, 0, 0, 0, 3]),
        ({32: 7, 40: 1_234_567, 44: 3}, [0, 7, 0, 1_234_567, 3]),
        ({8: 7, 40: 5}, [7, 0, 0, 0, 0, 0, 0, 0, 5]),
    ],
    ids=["one", "first", "beyond the last bound", "near", "far apart"],
)
def test_octaves_reach_from_the_first_that_holds_something_to_the_last(counts, held) -> None:
    bounds = tuple(round(1_000 * 2 ** (place / 4)) for place in range(112))  # 1 microsecond to 4 minutes
    found = [counts.get(place, 0) for place in range(len(bounds) + 1)]
    histogram = Histogram(bounds, tuple(found), sum(found), 1_000 * sum(found))
    assert [count for _, count in octaves(histogram)] == held
    ends = [end for end, _ in octaves(histogram)]
    assert ends == sorted(ends)


def test_the_report_has_tiles_of_what_is_unusual_where_there_is_any(report) -> None:
    def tiles(of: RunReport) -> dict[str, int]:
        return {tile["name"]: tile["value"] for tile in report_view(of, WordCount.graph())["tiles"]}

    unusual = {"Shut down while open": 1_028, "Ended by restarts": 7, "Spout could not be told": 3}
    found = tiles(ending(report, "stopped", undelivered=3, shut_down=1_028, restarted=7))
    assert unusual.items() <= found.items()
    assert not set(unusual) & set(tiles(clean(report)))
