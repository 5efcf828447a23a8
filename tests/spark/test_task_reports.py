"""Reports of Spark tasks that work for long: what travels in a datagram, and what the driver takes."""

from __future__ import annotations

import logging
import socket
import threading
from types import SimpleNamespace

import pytest

from acker.observe.calls import Line
from acker.spark.task_reports import ReportAddress, ReportReceiver, TaskReport

ADDRESS = ReportAddress("127.0.0.1", 9, b"key")
STACK = (Line("/src/shop.py", 40, "Charge.process"), Line("/src/pay.py", 31, "charge"))
REPORT = TaskReport("3", "7.100", 1, 4, 1, "worker", "pack, charge", 6_000)
IN_A_CALL = REPORT._replace(component="charge", task=2, source="orders", root_id=77, call_ms=5_000, stack=STACK)


class Now:
    """A clock that the test turns."""

    secs = 0.0

    def __call__(self) -> float:
        return self.secs


def session(master: str = "local[2]", **conf: str) -> SimpleNamespace:
    """Return what a receiver reads of a session."""
    settings = SimpleNamespace(get=lambda name, default=None: conf.get(name.rpartition(".")[2], default))
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, getConf=lambda: settings))


@pytest.fixture
def receiver():
    receiver = ReportReceiver(session(), "Shop", Now())
    receiver.begin("3")
    yield receiver
    receiver.close()


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


def test_the_driver_takes_what_its_workers_send(receiver) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        while not receiver.reports():  # a datagram may be lost
            sender.sendto(receiver.address.seal(IN_A_CALL), (receiver.address.host, receiver.address.port))
    assert receiver.reports() == [IN_A_CALL]


def test_what_strangers_send_is_left_out_and_told_once(receiver, caplog) -> None:
    forged = ReportAddress("127.0.0.1", 9, b"forged")
    for datagram in (forged.seal(IN_A_CALL), b"GET / HTTP/1.1", b"x"):
        receiver.take(datagram, "10.0.0.9")
    assert receiver.reports() == []
    (told,) = caplog.messages
    assert told == "Shop: 10.0.0.9 sent a report of a task that is not of this run: left out"


def test_a_report_that_comes_late_or_again_or_of_another_micro_batch_is_left_out(receiver) -> None:
    def take(report):
        receiver.take(receiver.address.seal(report), "127.0.0.1")

    take(IN_A_CALL._replace(number=2))
    take(IN_A_CALL._replace(number=1, component="before"))
    take(IN_A_CALL._replace(number=2, component="again"))
    take(IN_A_CALL._replace(number=3, topic="2", component="another"))
    (report,) = receiver.reports()
    assert report.component == "charge"
    receiver.begin("4")
    take(IN_A_CALL._replace(number=4))
    assert receiver.reports() == []


def test_a_call_that_has_ended_and_a_worker_that_is_silent_are_not_shown(receiver) -> None:
    def take(report):
        receiver.take(receiver.address.seal(report), "127.0.0.1")

    take(IN_A_CALL)
    take(IN_A_CALL._replace(sender="8.100", call_ms=9_000))
    receiver._now.secs = 3.0
    assert [(each.sender, each.call_ms) for each in receiver.reports()] == [("8.100", 12_000), ("7.100", 8_000)]
    take(REPORT._replace(sender="8.100", number=2, is_over=True))
    assert [each.sender for each in receiver.reports()] == ["7.100"]
    receiver._now.secs = 5.0
    assert receiver.reports() == []


def test_a_receiver_leaves_nothing_behind() -> None:
    before = threading.active_count()
    receiver = ReportReceiver(session(), "Shop")
    assert threading.active_count() == before + 1
    receiver.close()
    receiver.close()
    assert threading.active_count() == before
    assert receiver._socket is not None
    assert receiver._socket.fileno() == -1


def test_on_a_cluster_the_socket_is_where_sparks_own_are() -> None:
    receiver = ReportReceiver(session("spark://master:7077", host="localhost", bindAddress="0.0.0.0"), "Shop")
    try:
        assert receiver.address is not None and receiver.address.host == "localhost"
        assert receiver._socket is not None and receiver._socket.getsockname()[0] == "0.0.0.0"
    finally:
        receiver.close()


def test_without_a_socket_the_run_goes_on_and_the_log_says_so(caplog) -> None:
    receiver = ReportReceiver(session("spark://master:7077", host="192.0.2.1"), "Shop")
    assert receiver.address is None and receiver.reports() == []
    receiver.close()
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert told.getMessage().startswith("Shop: calls on workers that run long are not shown: no socket at 192.0.2.1: ")
