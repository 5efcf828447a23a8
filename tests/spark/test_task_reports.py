"""Reports of Spark tasks that work for long: what they say, and what travels in a datagram."""

from __future__ import annotations

from acker.observe.calls import Line
from acker.spark.task_reports import ReportAddress, TaskReport

ADDRESS = ReportAddress("127.0.0.1", 9, b"key")
STACK = (Line("/src/shop.py", 40, "Charge.process"), Line("/src/pay.py", 31, "charge"))
REPORT = TaskReport("3", "7.100", 1, 4, 1, "worker", "pack, charge", 6_000)
IN_A_CALL = REPORT._replace(component="charge", task=2, source="orders", root_id=77, call_ms=5_000, stack=STACK)


def test_a_report_travels_in_a_datagram_that_only_the_key_opens() -> None:
    sealed = ADDRESS.seal(IN_A_CALL)
    assert ADDRESS.open(sealed) == IN_A_CALL
    assert ReportAddress("127.0.0.1", 9, b"another key").open(sealed) is None
    assert ADDRESS.open(sealed[:-1] + bytes([sealed[-1] ^ 1])) is None
    assert [ADDRESS.open(sealed[:size]) for size in (0, 8, 16)] == [None] * 3
    assert "key" not in repr(ADDRESS)


def test_of_a_long_stack_the_innermost_lines_travel() -> None:
    stack = tuple(Line(f"/src/module_{n}.py", n, f"function_{n * n * 7919}") for n in range(1_000))
    sealed = ADDRESS.seal(IN_A_CALL._replace(stack=stack))
    assert len(sealed) <= 1_200
    report = ADDRESS.open(sealed)
    assert report is not None and 20 < len(report.stack) < 1_000
    assert report.stack == stack[-len(report.stack) :]


def test_a_call_says_the_tree_of_its_tuple() -> None:
    call = IN_A_CALL.call()
    assert call is not None
    assert (call.who, call.what, call.for_ms) == ("charge[2]", "a tuple of orders (root id 77)", 5_000)
    named = IN_A_CALL.call("message order-7")
    assert named is not None
    assert named.what == "a tuple of orders (message order-7)"
    assert REPORT.call() is None


def test_a_call_with_a_row_says_which_one_of_its_task_it_is() -> None:
    row = REPORT._replace(component="parse", root_id=77, done=9, timeout_ms=30_000)
    assert [
        each.call().what for each in (row, row._replace(root_id=None), row._replace(root_id=None, timeout_ms=None))
    ] == [
        "row 10 of its task (root id 77)",
        "row 10 of its task",
        None,
    ]


def test_a_call_hangs_by_its_timeout_and_by_what_is_usual() -> None:
    call = IN_A_CALL._replace(timeout_ms=30_000, call_ms=14_000)
    assert not call.hangs and call._replace(call_ms=15_001).hangs
    assert call._replace(usual_ms=1_000.0).hangs and not call._replace(usual_ms=2_000.0).hangs
    assert not call._replace(call_ms=10**6, timeout_ms=None).hangs
