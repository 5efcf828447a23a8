"""Warnings of calls that hang in Spark tasks: once each, with all that is needed to find them, and not without end."""

from __future__ import annotations

from acker.spark.hung_calls import HungCallLog
from tests.spark.test_report_receiver import Now
from tests.spark.test_task_reports import IN_A_CALL

HUNG = IN_A_CALL._replace(for_ms=20_000, call_ms=16_000, timeout_ms=30_000)


def later(report, ms):
    """Return the report of the same call some time later."""
    return report._replace(number=report.number + 1, for_ms=report.for_ms + ms, call_ms=report.call_ms + ms)


def test_a_call_that_hangs_is_told_once_and_the_next_one_again(caplog) -> None:
    log = HungCallLog("Shop")
    log.look(IN_A_CALL._replace(timeout_ms=30_000))
    assert caplog.messages == []
    for ms in range(0, 5_000, 1_000):
        log.look(later(HUNG, ms))
    assert "".join(caplog.messages) == (
        "Shop: charge[2] hangs on worker, stage 4, partition 1: it has been in one call with a tuple of orders (root id"
        " 77) at /src/pay.py:31 in charge for 16.0 s. Give what it waits for a timeout. To end it now, kill process 100"
        " there: Spark runs the task again, if it has attempts left."
    )
    log.look(HUNG._replace(for_ms=60_000, call_ms=17_000))
    log.look(HUNG._replace(sender="8.101", partition=2))
    assert [message.partition(" hangs on ")[2][:28] for message in caplog.messages[1:]] == [
        "worker, stage 4, partition 1",
        "worker, stage 4, partition 2",
    ]


def test_of_a_component_whose_calls_all_hang_some_are_named(caplog) -> None:
    now = Now()
    log = HungCallLog("Shop", now=now)
    for number in range(100):
        log.look(HUNG._replace(sender=f"{number}.100"))
    assert len(caplog.messages) == 20
    assert caplog.messages[-1].endswith(" No more calls of charge are logged for a minute.")
    log.look(HUNG._replace(component="pack"))
    assert caplog.messages[-1].startswith("Shop: pack[2] hangs on ")
    now.secs = 60.0
    log.look(HUNG._replace(sender="100.100"))
    assert len(caplog.messages) == 22
