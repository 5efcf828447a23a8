"""The readings of the live page: the same parts for topologies, consumers and streams."""

from __future__ import annotations

import pytest

from acker.observe.failures import FailureLog
from acker.observe.holders import Holder, SeenHolders
from acker.observe.latencies import Histogram
from acker.observe.readings import FailureRows, latency_chart, open_tree_row, reading, table, tile
from acker.observe.reasons import Reason, ReasonKind

LATE, FAILED = Reason(ReasonKind.TIMED_OUT), Reason(ReasonKind.FAILED, "bill", exception="LookupError: no sofa")
HELD = Holder("bill", 3, "held")


def log_with(*reasons: Reason, tup_id: object = "a") -> FailureLog:
    log = FailureLog()
    for number, reason in enumerate(reasons, 1):
        log.record("lines", 1, tup_id, reason, 10, root_id=number)
    log.record_dead_letter("lines", 1, tup_id, ("secret",), reasons[-1])
    return log


def test_parts_that_are_left_out_are_empty_or_not_shown() -> None:
    found = reading("consumer", "orders", "running", {"tone": "good", "text": "Fine."}, restarts=2)
    assert (found["kind"], found["restarts"], found["charts"], found["tables"]) == ("consumer", 2, [], [])
    assert found["open_trees"] is found["failures"] is found["dead_letters"] is found["events"] is None


def test_where_a_tree_was_is_told_of_those_that_timed_out_alone() -> None:
    seen = SeenHolders()
    for root_id in (1, 2):
        seen.note(root_id, [HELD])
    rows = FailureRows(log_with(FAILED, LATE), values=False, seen=seen).failures()["rows"]
    assert [[each["component"] for each in row["held_by"]] for row in rows] == [["bill"], []]
    assert "held_by" not in FailureRows(log_with(LATE), values=False).failures()["rows"][0]


@pytest.mark.parametrize("shown", [False, True])
def test_values_are_shown_only_if_asked_for(shown: bool) -> None:
    letters = FailureRows(log_with(FAILED), values=shown).dead_letters(7, "they lie there")
    assert (letters["total"], letters["held"], letters["can_replay"], letters["note"]) == (
        7,
        0,
        False,
        "they lie there",
    )
    assert [row.get("values") for row in letters["rows"]] == ["'secret'" if shown else None]


@pytest.mark.parametrize(("tup_id", "text"), [(7, "7"), ("x" * 400, "x" * 299 + "\N{HORIZONTAL ELLIPSIS}"), ("a", "a")])
def test_failures_are_found_by_the_id_as_the_page_shows_it(tup_id: object, text: str) -> None:
    rows = FailureRows(log_with(FAILED, tup_id=tup_id), values=False)
    assert [each["what"] for each in rows.find(text)] == ["failure", "dead letter"]
    assert rows.find("another") == []


def test_a_tree_without_a_root_id_waits() -> None:
    known = {"shown": "a", "spout": "lines", "task": 1, "attempt": 2, "age_ms": 5, "holders": [HELD]}
    row = open_tree_row(root_id=2**62, **known)
    assert (row["root_id"], row["waits"], row["due_at_ms"], row["holders"][0]["task"]) == (str(2**62), False, None, 3)
    assert open_tree_row(root_id=None, due_at_ms=9, **known)["waits"]


def test_charts_tiles_and_tables_have_one_form() -> None:
    assert [line["value"] for line in latency_chart("complete", "Latency", Histogram())["series"]] == [None, None]
    assert tile("State", 5, "By", is_bad=True)["more"] == ""
    assert table("shards", "Shards", [("Shard", None), ("Oldest", "ms")], [["s 0", 3]])["columns"][1] == {
        "name": "Oldest",
        "unit": "ms",
    }
