"""The watch over a Spark task: when it reports, what it says, and what it leaves behind."""

from __future__ import annotations

import logging
import socket
import threading
from dataclasses import replace
from queue import Queue
from types import SimpleNamespace

import pytest

from acker.observe.calls import Line
from acker.spark import task_watch
from acker.spark.task_reports import ReportAddress
from acker.spark.task_watch import CodePlace, TaskWatch
from tests.spark.test_report_receiver import Now

CONTEXT = SimpleNamespace(taskAttemptId=lambda: 7, stageId=lambda: 4, partitionId=lambda: 1)


@pytest.fixture
def listener():
    """A socket that stands for the driver's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(60)
        yield listening


@pytest.fixture
def address(listener):
    return ReportAddress(*listener.getsockname(), b"key")


@pytest.fixture
def at_once(monkeypatch):
    """Let a watch look all the time, and each task count as long."""
    monkeypatch.setattr(task_watch, "_LOOK_SECS", 0.001)
    monkeypatch.setattr(task_watch, "_LONG_MS", 0)


def watch_of(address, look, now=None):
    watch = TaskWatch(address, "3", "charge", CONTEXT, *([] if now is None else [now]))
    watch.look = look
    return watch


def has_ended(watch):
    """Wait for the thread of a watch, which its task does not do for long; return whether it has ended."""
    watch._thread.join(60)
    return not watch._thread.is_alive()


def test_nothing_is_reported_before_a_task_has_worked_for_five_seconds() -> None:
    now, places = Now(), [CodePlace("charge", 1, 2)]
    watch = watch_of(None, lambda: places[0], now)
    for now.secs in (1.0, 2.0, 4.9):
        assert watch.report() is None
    now.secs = 6.0
    report = watch.report()
    assert report is not None
    assert (report.component, report.task, report.call_ms, report.for_ms) == ("charge", 2, 5_000, 6_000)
    assert (report.topic, report.stage, report.partition, report.bolts) == ("3", 4, 1, "charge")


def test_the_time_of_a_call_begins_with_each_call() -> None:
    now, places = Now(), [CodePlace("charge", 1, 2)]
    watch = watch_of(None, lambda: places[0], now)
    told = []
    for now.secs in range(6, 12):
        if now.secs == 8:
            places[0] = CodePlace("charge", 2, 2, "orders", 77, lambda: 12.5, 3)
        report = watch.report()
        assert report is not None
        told.append(report.call_ms)
    assert told == [0, 1_000, 0, 1_000, 2_000, 3_000]
    assert (report.source, report.root_id, report.usual_ms, report.done) == ("orders", 77, 12.5, 3)


@pytest.mark.usefixtures("at_once")
def test_a_report_has_the_stack_of_the_tasks_thread_or_of_the_coroutine_that_runs(address, listener) -> None:
    with watch_of(address, lambda: CodePlace("charge", 1)):
        # There is no line of user code while this thread is in acker's own, as here in `open`.
        while [line.file for line in address.open(listener.recv(2_000)).stack[-1:]] != [__file__]:
            pass
    place = CodePlace("charge", 1, stack=lambda: (Line("pay.py", 31, "charge"),))
    with watch_of(address, lambda: place):
        while address.open(listener.recv(2_000)).stack != place.stack():
            pass


@pytest.mark.usefixtures("at_once")
def test_without_a_driver_that_hears_the_worker_logs_the_call_that_hangs() -> None:
    told: Queue[str] = Queue()

    class Telling(logging.Handler):
        def emit(self, record):
            told.put(record.getMessage())

    watch = watch_of(None, None)
    task_watch.logger.addHandler(handler := Telling())
    try:
        with watch:
            # Only now: a look before would find this thread in the start of the watch's.
            watch.look = lambda: CodePlace("parse", 1, root_id=77, timeout_ms=1)
            line = told.get(timeout=60)
    finally:
        task_watch.logger.removeHandler(handler)
    assert line.startswith("acker: parse hangs on ") and " with row 1 of its task (root id 77) at " in line
    assert f"{__file__}:" in line
    assert told.empty()


@pytest.mark.usefixtures("at_once")
def test_the_end_of_a_task_that_has_reported_is_told(address, listener, monkeypatch) -> None:
    def look():
        # Once only: more reports than the socket holds would take the place of the last one.
        monkeypatch.setattr(task_watch, "_LOOK_SECS", 600)

    with watch_of(address, look):
        assert not address.open(listener.recv(2_000)).is_over
    while not address.open(listener.recv(2_000)).is_over:
        pass


@pytest.mark.usefixtures("at_once")
def test_a_watch_ends_with_its_task_whatever_the_driver_does(address, listener, caplog) -> None:
    looked, watches = threading.Event(), []

    def look():
        looked.set()
        return CodePlace("charge", 1)

    listener.close()  # the port is closed
    for where in (address, replace(address, host="no-such-host.invalid"), replace(address, host="192.0.2.1"), None):
        looked.clear()
        watches.append(watch_of(where, look))
        with watches[-1]:
            assert where is None or looked.wait(60)
    watches.append(watch_of(address, look))
    with pytest.raises(ValueError, match="of the task"), watches[-1]:
        raise ValueError("of the task")
    assert all(map(has_ended, watches))
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == [
        "the driver does not learn where this task is"
    ]


@pytest.mark.usefixtures("at_once")
def test_a_look_that_fails_does_not_fail_the_task(address, caplog) -> None:
    looked = threading.Event()

    def look():
        looked.set()
        raise RuntimeError("changed meanwhile")

    watch = watch_of(address, look)
    with watch:
        assert looked.wait(60)
    assert has_ended(watch)
    (told,) = caplog.records
    assert told.getMessage() == "the driver does not learn where this task is"
    assert "changed meanwhile" in caplog.text
