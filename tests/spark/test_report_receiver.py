"""The driver's socket for reports of Spark tasks: which it takes, what it shows and warns of, and what it leaves."""

from __future__ import annotations

import logging
import socket
import threading
from types import SimpleNamespace

import pytest

from acker.spark.report_receiver import ReportReceiver
from acker.spark.task_reports import PIPELINES, ReportAddress
from tests.spark.test_task_reports import IN_A_CALL, REPORT


class Now:
    """A clock that the test turns."""

    secs = 0.0

    def __call__(self) -> float:
        return self.secs


def session(master: str = "local[2]", **conf: str) -> SimpleNamespace:
    """Return what a receiver reads of a session."""
    settings = SimpleNamespace(get=lambda name, default=None: conf.get(name.rpartition(".")[2], default))
    context = SimpleNamespace(master=master, getConf=lambda: settings, applicationId=conf.get("applicationId"))
    return SimpleNamespace(sparkContext=context)


@pytest.fixture
def receiver():
    receiver = ReportReceiver(session(), "Shop", now=Now())
    receiver.begin("3")
    yield receiver
    receiver.close()


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
    before = set(threading.enumerate())
    receiver = ReportReceiver(session(), "Shop")
    (thread,) = (each for each in set(threading.enumerate()) - before if each.name.startswith("Shop."))
    receiver.close()
    receiver.close()
    assert not thread.is_alive()
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
    assert told.getMessage().startswith(
        "Shop: only workers log calls that hang, in their stderr: no socket at 192.0.2.1: "
    )


def test_a_call_that_hangs_is_warned_of_with_its_message(caplog) -> None:
    receiver = ReportReceiver(session(), "Shop", lambda root_id: f"message order-{root_id}")
    receiver.begin("3")
    receiver.take(receiver.address.seal(IN_A_CALL._replace(call_ms=42_000, timeout_ms=60_000)), "127.0.0.1")
    receiver.close()
    (told,) = caplog.messages
    assert told.startswith(
        "Shop: charge[2] hangs on worker, stage 4, partition 1: it has been in one call with a tuple"
    )
    assert "of orders (message order-77) at /src/pay.py:31 in charge for 42.0 s" in told


def test_the_pipelines_of_an_application_have_one_receiver(monkeypatch) -> None:
    monkeypatch.setattr(ReportReceiver, "_of_pipelines", None)
    one, other = (session(applicationId=name) for name in ("local-1", "local-2"))
    receiver = ReportReceiver.of_pipelines(one)
    assert ReportReceiver.of_pipelines(one) is receiver
    receiver.take(receiver.address.seal(IN_A_CALL._replace(topic=PIPELINES)), "127.0.0.1")
    assert len(receiver.reports()) == 1
    following = ReportReceiver.of_pipelines(other)
    assert following is not receiver
    assert receiver._socket is not None and receiver._socket.fileno() == -1
    following.close()
