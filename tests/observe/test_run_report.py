"""The headline of a report: how the run ended, and then what went wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acker.observe.run_report import Abandoned, RunOutcome, RunReport
from tests.figures import Runtime, clean, ending

DRAINED = "Finished, with everything processed and nothing pending."


@pytest.fixture
def report() -> RunReport:
    return RunReport(topology="Words", outcome="drained", started_at="", seconds=2.0, stats=Runtime().value)


def told(report: RunReport) -> tuple[str, str]:
    return report.headline["tone"], report.headline["text"]


def test_the_headline_is_good_fair_or_bad(report: RunReport) -> None:
    assert told(clean(report)) == ("good", DRAINED)
    assert told(report) == ("fair", f"{DRAINED} 1 failed, 2 timed out.")
    assert told(replace(clean(report), restarts=1))[0] == "fair"
    assert told(replace(report, abandoned=(Abandoned("split", 2, ""),)))[0] == "bad"
    assert told(replace(clean(report), outcome="stopped")) == ("good", "Stopped and drained.")
    assert told(replace(clean(report), outcome="aborted")) == ("bad", "Stopped at once, without draining.")
    failed = replace(clean(report), outcome="failed", error="ValueError: no\n  more")
    assert told(failed) == ("bad", "Stopped with an error: ValueError: no.")


def test_the_most_frequent_reason_is_told_where_it_is_known(report: RunReport) -> None:
    why = "in pay: LookupError: no sofa is left, pay.py:31 in charge"
    assert told(replace(report, why=why))[1] == f"{DRAINED} 1 failed, 2 timed out; most often {why}."
    assert told(replace(clean(report), why=why))[1] == DRAINED


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("stopped", "Stopped."),
        ("elapsed", "Finished, as the time was up."),
        ("reached", "Finished, with as many trees acked as were asked for."),
    ],
)
def test_trees_that_were_open_at_the_end_are_told(report: RunReport, outcome: RunOutcome, text: str) -> None:
    shut = ending(report, outcome, shut_down=128)
    assert told(shut) == ("fair", f"{text} 128 trees were still open and were failed with reason SHUTDOWN.")
    one = ending(report, outcome, shut_down=1, restarted=2)
    assert told(one)[1] == (f"{text} 1 tree was still open and was failed with reason SHUTDOWN. 2 ended by restarts.")
    undelivered = ending(report, outcome, undelivered=3)
    assert told(undelivered) == ("fair", f"{text} Of 3 trees the spout could not be told the end.")


def test_the_exception_before_a_restart_that_never_came_is_told(report: RunReport) -> None:
    crashed = replace(ending(report, "stopped", restarted=2), last_crash="ValueError: <no>", restart_pending=True)
    text = "Stopped while it waited for a restart after ValueError: <no>. 2 ended by restarts."
    assert told(crashed) == ("fair", text)
