"""A watch over a Spark task in its worker, which tells the driver or the log where the task is if it works for long."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from acker.observe.calls import Line, stack_below_acker
from acker.spark.hung_calls import HungCallLog
from acker.spark.task_reports import ReportAddress, TaskReport

_LOOK_SECS: Final = 1.0
# From here on a task reports. Most tasks end sooner, and send nothing.
_LONG_MS: Final = 5_000
# How long the end of a task waits for the watch, which may be about to resolve the name of the driver's host.
_JOIN_SECS: Final = 1.0

logger = logging.getLogger("acker.spark")


class CodePlace(NamedTuple):
    """The code of a user that a task runs.

    Attributes
    ----------
    component : str
    mark : object
        Another one for each call.
    task : int or None
    source : str or None
    root_id : int or None
    usual_ms : callable, optional
        Returns the median of the calls until now.
    done : int
    timeout_ms : int or None
        As in `TaskReport`.
    stack : callable, optional
        Returns where the call stands; by default the stack of the task's thread.
    """

    component: str
    mark: object
    task: int | None = None
    source: str | None = None
    root_id: int | None = None
    usual_ms: Callable[[], float | None] = lambda: None
    done: int = 0
    timeout_ms: int | None = None
    stack: Callable[[], tuple[Line, ...]] | None = None


class TaskWatch:
    """Looks each second where the Spark task of this thread is; a context manager, for as long as the task works.

    It costs the task nothing between two looks, needs no answer, and raises nothing into the task.

    Parameters
    ----------
    address : ReportAddress or None
        None: the driver cannot be told, and the log of this process is warned of calls that hang.
    topic, bolts : str
        As in `TaskReport`.
    context : TaskContext of PySpark
    now : callable
        Returns a monotonic time in seconds.

    Attributes
    ----------
    look : callable or None
        Returns the `CodePlace` of this moment, or None: no code of the user runs. The watch's thread calls it.
    """

    def __init__(
        self,
        address: ReportAddress | None,
        topic: str,
        bolts: str,
        context: Any,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.look: Callable[[], CodePlace | None] | None = None
        self._address = address
        self._now = now
        attempt = f"{context.taskAttemptId()}.{os.getpid()}"
        host = socket.gethostname()
        self._head = TaskReport(topic, attempt, 0, context.stageId(), context.partitionId(), host, bolts, 0)
        self._hung = HungCallLog("acker")
        self._watched = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="acker.task-watch", daemon=True)
        self._since = self._call_since = now()
        self._mark: object = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_JOIN_SECS)

    def _work(self) -> None:
        sender: socket.socket | None = None
        try:
            while not self._over.wait(_LOOK_SECS):
                report = self.report()
                if report is None:
                    continue
                if self._address is None:
                    self._hung.look(report)
                    continue
                if sender is None:
                    sender, place = self._connect()
                self._send(sender, place, report)
            if sender is not None:
                self._send(sender, place, self._next(self._now())._replace(is_over=True))
        except Exception:
            logger.warning("the driver does not learn where this task is", exc_info=True)
        finally:
            if sender is not None:
                sender.close()

    def report(self) -> TaskReport | None:
        """Look; return what is to be reported, if anything is."""
        place, now = None if self.look is None else self.look(), self._now()
        mark = None if place is None else (place.component, place.task, place.mark)
        if mark != self._mark:
            self._mark, self._call_since = mark, now
        if 1_000 * (now - self._since) < _LONG_MS:
            return None
        report = self._next(now)
        if place is None:
            return report
        return report._replace(
            component=place.component,
            task=place.task,
            source=place.source,
            root_id=place.root_id,
            # So that the difference of both times names the call.
            call_ms=report.for_ms - round(1_000 * (self._call_since - self._since)),
            usual_ms=place.usual_ms(),
            done=place.done,
            timeout_ms=place.timeout_ms,
            stack=stack_below_acker(self._watched) if place.stack is None else place.stack(),
        )

    def _next(self, now: float) -> TaskReport:
        self._head = self._head._replace(number=self._head.number + 1)
        return self._head._replace(for_ms=round(1_000 * (now - self._since)))

    def _connect(self) -> tuple[socket.socket, Any]:
        assert self._address is not None
        kind, _, _, _, place = socket.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_DGRAM)[0]
        sender = socket.socket(kind, socket.SOCK_DGRAM)
        sender.setblocking(False)
        return sender, place

    def _send(self, sender: socket.socket, place: Any, report: TaskReport) -> None:
        assert self._address is not None
        try:
            sender.sendto(self._address.seal(report), place)
        except OSError as error:
            # The network is away or full: the next one may come.
            logger.debug("a report of this task was not sent: %s", error)
