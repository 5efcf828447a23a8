"""Reports of Spark tasks that work for long: their form, and the socket on which the driver receives them.

Spark brings nothing from a task to the driver before the task ends, which one whose call hangs never does. So a worker
sends datagrams: it never waits for the driver, and one that nobody receives costs nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from acker.observe.calls import Line, UserCall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A datagram of this size travels whole on any network.
_BYTES_MAX: Final = 1_200
_SIGNATURE_BYTES: Final = 16
_TOKEN_BYTES: Final = 32
_RECEIVED_MAX: Final = 1 << 16
# Of as many senders the last report is kept.
_SENDERS_MAX: Final = 1_000
# A task of which nothing came for so long has ended, or its worker was killed. Reports come once a second.
_SILENT_SECS: Final = 5.0
_LOOPBACK: Final = "127.0.0.1"
# The topic of pipelines.
PIPELINES: Final = "pipelines"
# How often the receiver's thread is woken for its end, and how long that may take each time.
_WAKES_MAX: Final = 50
_WAKE_SECS: Final = 0.1

logger = logging.getLogger("acker.spark")


class TaskReport(NamedTuple):
    """What a Spark task that works for long says of itself.

    Attributes
    ----------
    topic : str
        The work that it belongs to: a micro-batch of a topology, or a pipeline.
    sender : str
        The attempt of the task, and its process.
    number : int
        Of its reports.
    stage, partition : int
        As Spark numbers them.
    host : str
    bolts : str
        The components that the task runs.
    for_ms : int
        How long it has worked.
    is_over : bool
        Whether it has ended.
    component, task : str and int, or None
        Whose code is running; None between two calls, and for a component without tasks.
    source : str or None
        The component that emitted the tuple of this call.
    root_id : int or None
        Of that tuple.
    call_ms : int
        How long the call has run, as far as it was seen.
    usual_ms : float or None
        The median of the calls of this component in this task.
    done : int
        How many tuples or rows the component has had from this task.
    stack : tuple of Line
    """

    topic: str
    sender: str
    number: int
    stage: int
    partition: int
    host: str
    bolts: str
    for_ms: int
    is_over: bool = False
    component: str | None = None
    task: int | None = None
    source: str | None = None
    root_id: int | None = None
    call_ms: int = 0
    usual_ms: float | None = None
    done: int = 0
    stack: tuple[Line, ...] = ()

    def later(self, ms: int) -> TaskReport:
        """Return how it is some milliseconds later, if nothing has changed."""
        call_ms = self.call_ms + ms if self.component is not None else 0
        return self._replace(for_ms=self.for_ms + ms, call_ms=call_ms)

    def call(self, message: str | None = None) -> UserCall | None:
        """Return the call of user code that runs, if there is one; `message` names that of its tuple."""
        if self.component is None:
            return None
        who = self.component if self.task is None else f"{self.component}[{self.task}]"
        tree = message if message is not None or self.root_id is None else f"root id {self.root_id}"
        what = tree if self.source is None else f"a tuple of {self.source}{'' if tree is None else f' ({tree})'}"
        return UserCall(who, what, self.call_ms, stack=self.stack, usual_ms=self.usual_ms)


@dataclass(frozen=True)
class ReportAddress:
    """Where the driver receives reports, and the key that signs them; it travels to the workers with their work."""

    host: str
    port: int
    token: bytes = field(repr=False)

    def seal(self, report: TaskReport) -> bytes:
        """Return a datagram; of a long stack the lines of the outermost callers are left out."""
        while True:
            content = zlib.compress(json.dumps(report, separators=(",", ":")).encode())
            if len(content) + _SIGNATURE_BYTES <= _BYTES_MAX or not report.stack:
                return self._sign(content) + content
            report = report._replace(stack=report.stack[1 + len(report.stack) // 8 :])

    def open(self, datagram: bytes) -> TaskReport | None:
        """Return the report of a datagram; None if no worker with this key has sent it."""
        signature, content = datagram[:_SIGNATURE_BYTES], datagram[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(content)):
            return None
        *fields, stack = json.loads(zlib.decompress(content))
        return TaskReport._make([*fields, tuple(Line(*line) for line in stack)])

    def _sign(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self.token, digest_size=_SIGNATURE_BYTES).digest()


class ReportReceiver:
    """Receives the reports of one run on the driver, in a thread of its own.

    Where no socket can be had, nothing is received, and the log says so; the run does not depend on it.

    Parameters
    ----------
    spark : SparkSession
    name : str
        Of the run, for the log and the thread.
    now : callable
        Returns a monotonic time in seconds.

    Attributes
    ----------
    address : ReportAddress or None
        For the workers.
    """

    # Those that pipelines report to, the last one first of all.
    _of_pipelines: ClassVar[list[ReportReceiver]] = []

    @classmethod
    def address_of_pipelines(cls) -> ReportAddress | None:
        """Return where a pipeline that is made now reports to: None if no listener of streams has a page."""
        return cls._of_pipelines[-1].address if cls._of_pipelines else None

    def take_pipelines(self) -> None:
        """Receive what pipelines report that are made from now on."""
        self.begin(PIPELINES)
        self._of_pipelines.append(self)

    def __init__(self, spark: SparkSession, name: str, now: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._now = now
        self._lock = threading.Lock()
        self._latest: dict[str, tuple[float, TaskReport]] = {}
        self._topic = ""
        self._has_refused = False
        self._is_closed = False
        self.address: ReportAddress | None = None
        bind, told = _hosts(spark)
        try:
            self._socket: socket.socket | None = _bound(bind)
        except OSError as fault:
            self._socket = None
            logger.warning("%s: calls on workers that run long are not shown: no socket at %s: %s", name, bind, fault)
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
        if self in self._of_pipelines:
            self._of_pipelines.remove(self)
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
            if report.topic == self._topic and (before is None or before[1].number < report.number):
                self._latest[report.sender] = self._now(), report
                while len(self._latest) > _SENDERS_MAX:
                    del self._latest[next(iter(self._latest))]


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
