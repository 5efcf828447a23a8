"""The figures of a topology as a table and as one line."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from acker.cli.table import HEADINGS, Row, duration, line, rate, rows, terminal_table
from acker.local.observe.metrics import RuntimeStats


def test_a_row_for_each_component_and_one_for_all(stats) -> None:
    assert list(rows(stats)) == [
        Row("lines", "1", "11", "", "6", "1", "2", "1", "5.1 ms / 7.1 ms", "0.25", ""),
        Row("split", "1", "50", "10", "9", "1", "", "0", "1 \N{MICRO SIGN}s / 2 \N{MICRO SIGN}s", "0.50", "4"),
        Row("__acker", "1", queue="2"),
        Row("all", "2", "61", "10", "6", "1", "2", "1", "5.1 ms / 7.1 ms", "", "4"),
    ]
    assert HEADINGS.latency == "p50 / p99" and HEADINGS.timed_out == "timed out"


def test_fewer_executors_than_tasks_are_told(stats) -> None:
    split = stats.tasks[1]
    shared = replace(stats, tasks=(split, replace(split, task=9)))
    assert next(rows(shared)).tasks == "2 on 1"


def test_the_table_is_drawn(stats) -> None:
    console = Console(file=io.StringIO(), width=130)
    console.print(terminal_table(stats, "Word[count]", "stop with Ctrl-C"))
    text = console.file.getvalue()
    assert "Word[count]" in text and "stop with Ctrl-C" in text
    for heading in " ".join(HEADINGS).split():
        assert heading in text
    assert re.search(r"lines +1 +11 +6 +1 +2 +1 +5\.1 ms / 7\.1 ms +0\.25", text)
    coloured = Console(file=io.StringIO(), width=130, force_terminal=True, color_system="standard")
    coloured.print(terminal_table(stats, "WordCount"))
    assert "\x1b[31m1\x1b[0m" in coloured.file.getvalue(), "what failed is red"


def test_a_narrow_terminal_does_without_some_columns(stats) -> None:
    told = {}
    for width in range(56, 110):
        console = Console(file=io.StringIO(), width=width)
        console.print(terminal_table(stats, "", width=width))
        text = console.file.getvalue()
        assert "\N{HORIZONTAL ELLIPSIS}" not in text, f"cut at {width}"
        told[width] = [heading for heading in HEADINGS if heading.split()[-1] in text]
    assert told[109] == [*HEADINGS]
    assert "pending" in told[80] and set(HEADINGS) - set(told[80]) == {"tasks", "emitted"}
    assert told[56] == ["component", "acked", "failed", "p50 / p99", "capacity", "queue"]


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, ""),
        (900, "1 \N{MICRO SIGN}s"),
        (25_000, "25 \N{MICRO SIGN}s"),
        (1.5e6, "1.5 ms"),
        (15.2e6, "15 ms"),
        (1.25e9, "1.2 s"),
        (300e9, "300 s"),
    ],
)
def test_times_have_the_unit_that_suits_them(ns, text) -> None:
    assert duration(ns) == text


def test_one_line_names_what_went_wrong_only_where_it_did(stats) -> None:
    assert line(stats) == "2.0 s, running: 6 acked (3 a second), 1 pending, 1 failed, 2 timed out, 1 restart"
    spout = replace(stats.tasks[0], timed_out=0, restarted=1, shut_down=128, dead_letters=1)
    ended = replace(stats, restarts=2, tasks=(spout, *stats.tasks[1:]))
    assert line(ended).endswith("1 failed, 1 ended by a restart, 128 shut down, 1 dead letter, 2 restarts")
    fine = RuntimeStats(topology="t", state="running", uptime_secs=1.0)
    assert line(fine) == "1.0 s, running: 0 acked (0 a second), 0 pending"
    assert rate(replace(stats, uptime_secs=4.0), stats) == 0 and rate(fine, fine) == 0
