"""The figures of a topology as rows and as one line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acker.observe.durations import format_ns
from acker.observe.stats import RuntimeStats, TaskStats
from acker.observe.summary import HEADINGS, Row, line, rate, rows
from tests.figures import Runtime


@pytest.fixture
def stats() -> RuntimeStats:
    return Runtime().value


def test_a_row_for_each_component_and_one_for_all(stats) -> None:
    assert list(rows(stats)) == [
        Row("lines", "1", "11", "", "6", "1", "2", "1", "5.1 ms / 7.1 ms", "0.25", ""),
        Row("split", "1", "50", "10", "9", "1", "", "0", "1.0 \N{MICRO SIGN}s / 2.0 \N{MICRO SIGN}s", "0.50", "4"),
        Row("__acker", "1", queue="2"),
        Row("all", "2", "61", "10", "6", "1", "2", "1", "5.1 ms / 7.1 ms", "", "4"),
    ]
    assert HEADINGS.latency == "p50 / p99" and HEADINGS.timed_out == "timed out"


def test_fewer_executors_than_tasks_are_told(stats) -> None:
    split = stats.tasks[1]
    shared = replace(stats, tasks=(split, replace(split, task=9)))
    assert next(rows(shared)).tasks == "2 on 1"


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, ""),
        (724.1, "724 ns"),
        (1_724, "1.7 \N{MICRO SIGN}s"),
        (25_000, "25 \N{MICRO SIGN}s"),
        (1.5e6, "1.5 ms"),
        (15.2e6, "15 ms"),
        (1.25e9, "1.2 s"),
        (300e9, "300 s"),
    ],
)
def test_times_have_the_unit_that_suits_them(ns, text) -> None:
    assert format_ns(ns) == text


def test_one_line_names_what_went_wrong_only_where_it_did(stats) -> None:
    assert line(stats) == "2.0 s, running: 6 acked (3 a second), 1 pending, 1 failed, 2 timed out, 1 restart"
    spout = replace(stats.tasks[0], timed_out=0, restarted=1, shut_down=128, dead_letters=1)
    ended = replace(stats, restarts=2, tasks=(spout, *stats.tasks[1:]))
    assert line(ended).endswith("1 failed, 1 ended by a restart, 128 shut down, 1 dead letter, 2 restarts")
    spout = TaskStats(component="s", kind="spout", task=1, emitted={"default": 3_000})
    untracked = RuntimeStats(topology="t", state="running", uptime_secs=1.0, tasks=(spout,))
    assert line(untracked).endswith(": 3,000 emitted by spouts, none with a tup_id, so none tracked, 0 executed")
    assert "1 acked" in line(replace(untracked, tasks=(replace(spout, acked=1),)))
    fine = RuntimeStats(topology="t", state="running", uptime_secs=1.0)
    assert line(fine) == "1.0 s, running: 0 acked (0 a second), 0 pending"
    assert rate(replace(stats, uptime_secs=4.0), stats) == 0 and rate(fine, fine) == 0
