"""The socket on which the driver receives the reports of Spark tasks that work for long."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from acker.spark.hung_calls import HungCallLog
from acker.spark.task_reports import PIPELINES, ReportAddress, TaskReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOKEN_BYTES: Final = 32
_RECEIVED_MAX: Final = 1 << 16
# Of as many senders the last report is kept.
_SENDERS_MAX: Final = 1_000
# A task of which nothing came for so long has ended, or its worker was killed. Reports come once a second.
_SILENT_SECS: Final = 5.0
_LOOPBACK: Final = "127.0.0.1"
# How often the receiver's thread is woken for its end, and how long that may take each time.
_WAKES_MAX: Final = 50
_WAKE_SECS: Final = 0.1

logger = logging.getLogger("acker.spark")


class ReportReceiver:
    """Receives the reports of one run on the driver, in a thread of its own, and warns of each call that hangs.

    Where no socket can be had, nothing is received, and the log says so; the run does not depend on it.

    Parameters
    ----------
    spark : SparkSession
    name : str
        Of the run, for the log and the thread.
    message_of : callable
        Returns the message of a root id in words, if it is known.
    now : callable
        Returns a monotonic time in seconds.

    Attributes
    ----------
    address : ReportAddress or None
        For the workers.
    """

    # That of the pipelines of a Spark application, with its id. Nobody knows when the last task ends, so it stays until
    # another application begins.
    _of_pipelines: ClassVar[tuple[str, ReportReceiver] | None] = None
    _making: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def of_pipelines(cls, spark: SparkSession) -> ReportReceiver:
        """Return the receiver of all pipelines of a classic session's application."""
        application = str(spark.sparkContext.applicationId)
        with cls._making:
            if cls._of_pipelines is None or cls._of_pipelines[0] != application:
                if cls._of_pipelines is not None:
                    cls._of_pipelines[1].close()
                made = cls(spark, PIPELINES)
                made.begin(PIPELINES)
                cls._of_pipelines = application, made
            return cls._of_pipelines[1]

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        message_of: Callable[[int], str | None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._now = now
        self._hung = HungCallLog(name, message_of, now)
        self._lock = threading.Lock()
        self._latest: dict[str, tuple[float, TaskReport]] = {}
        self._topic = ""
        self._has_refused = False
        self._is_closed = False
        self.address: ReportAddress | None = None
        bind, told = _hosts(spark)
        try:
            self._socket: socket.socket | None = _bound(bind)
        except OSError as error:
            self._socket = None
            logger.warning(
                "%s: only workers log calls that hang, in their stderr: no socket at %s: %s", name, bind, error
            )
            return
        self.address = ReportAddress(told, self._socket.getsockname()[1], os.urandom(_TOKEN_BYTES))
        self._thread = threading.Thread(target=self._work, name=f"{name}.task-reports", daemon=True)
        self._thread.start()
        logger.debug("%s: workers report calls that run long to %s:%d (UDP)", name, told, self.address.port)

    def begin(self, topic: str) -> None:
        """Forget all reports, and take only those on another topic from now on."""
        with self._lock:
            self._topic = topic
            self._latest.clear()

    def reports(self) -> list[TaskReport]:
        """Return the last report of each task that works for long, the longest call first. Any thread may ask."""
        now = self._now()
        with self._lock:
            found = [(at, each) for at, each in self._latest.values() if not each.is_over and now - at < _SILENT_SECS]
        return sorted((each.later(round(1_000 * (now - at))) for at, each in found), key=lambda each: -each.call_ms)

    def close(self) -> None:
        """End the thread and the socket."""
        if self._socket is None or self._is_closed:
            return
        self._is_closed = True
        # A datagram ends the receive in each system. The system may drop one, but hardly all of them.
        with socket.socket(self._socket.family, socket.SOCK_DGRAM) as waker:
            for _ in range(_WAKES_MAX):
                with contextlib.suppress(OSError):
                    waker.sendto(b"", self._socket.getsockname())
                self._thread.join(_WAKE_SECS)
                if not self._thread.is_alive():
                    break
        self._socket.close()

    def _work(self) -> None:
        assert self._socket is not None
        while not self._is_closed:
            try:
                datagram, sender = self._socket.recvfrom(_RECEIVED_MAX)
            except OSError:
                # Of a datagram that was sent from here, or that is too long.
                continue
            if datagram:
                self.take(datagram, sender[0])

    def take(self, datagram: bytes, host: str) -> None:
        """Take a datagram that came from a host."""
        assert self.address is not None
        report = self.address.open(datagram)
        if report is None:
            if not self._has_refused:
                self._has_refused = True
                logger.warning("%s: %s sent a report of a task that is not of this run: left out", self._name, host)
            return
        with self._lock:
            before = self._latest.get(report.sender)
            # Datagrams may come late, twice, or again from somebody who has listened.
            if report.topic != self._topic or (before is not None and before[1].number >= report.number):
                return
            self._latest[report.sender] = self._now(), report
            while len(self._latest) > _SENDERS_MAX:
                del self._latest[next(iter(self._latest))]
        self._hung.look(report)


def _bound(host: str) -> socket.socket:
    kind, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
    bound = socket.socket(kind, socket.SOCK_DGRAM)
    try:
        bound.bind(place)
    except OSError:
        bound.close()
        raise
    return bound


def _hosts(spark: SparkSession) -> tuple[str, str]:
    """Return the address that the driver listens on, and the one that workers send to: those of Spark itself."""
    context: Any = spark.sparkContext
    if str(context.master).split("[")[0] == "local":  # the workers are on this machine
        return _LOOPBACK, _LOOPBACK
    conf = context.getConf()
    told = str(conf.get("spark.driver.host")).strip("[]")
    return str(conf.get("spark.driver.bindAddress", told)).strip("[]"), told
