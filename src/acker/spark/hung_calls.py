"""Warnings of calls of user code that hang in Spark tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from acker.observe.durations import format_duration
from acker.spark.task_reports import TaskReport

# Of as many tasks it is known of which call they were warned.
_TOLD_MAX: Final = 1_000
# A server that answers nobody lets a call hang in each task: of a component as many are named in this time.
_LINES_MAX: Final = 20
_LINES_SECS: Final = 60.0

logger = logging.getLogger("acker.spark")


class _Lines(NamedTuple):
    since: float
    number: int


class HungCallLog:
    """Warns of each call that hangs, once.

    Parameters
    ----------
    name : str
        Of the run.
    message_of : callable
        Returns the message of a root id in words, if it is known.
    now : callable
        Returns a monotonic time in seconds.
    """

    def __init__(
        self,
        name: str,
        message_of: Callable[[int], str | None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._message_of = message_of
        self._now = now
        self._told: dict[str, tuple[str | None, int | None, int]] = {}
        self._lines: dict[str, _Lines] = {}

    def look(self, report: TaskReport) -> None:
        """Warn of the call of a task, if it hangs and is another one than that of the last warning."""
        if not report.hangs or report.component is None:
            return
        call = report.component, report.task, report.for_ms - report.call_ms
        if self._told.get(report.sender) == call:
            return
        self._told[report.sender] = call
        while len(self._told) > _TOLD_MAX:
            del self._told[next(iter(self._told))]
        count = self._count(report.component)
        if count <= _LINES_MAX:
            rest = "" if count < _LINES_MAX else f" No more calls of {report.component} are logged for a minute."
            logger.warning("%s: %s%s", self._name, self._text(report), rest)

    def _count(self, component: str) -> int:
        """Count a line about a component; return how many there were lately."""
        lines, now = self._lines.get(component), self._now()
        if lines is None or now - lines.since >= _LINES_SECS:
            lines = _Lines(now, 0)
        self._lines[component] = lines._replace(number=lines.number + 1)
        return lines.number + 1

    def _text(self, report: TaskReport) -> str:
        call = report.call(None if report.root_id is None else self._message_of(report.root_id))
        assert call is not None
        what = "" if call.what is None else f" with {call.what}"
        where = "" if call.line is None else f" at {call.line}"
        return (
            f"{call.who} hangs on {report.host}, stage {report.stage}, partition {report.partition}: it has been in one"
            f" call{what}{where} for {format_duration(call.for_ms)}. Give what it waits for a timeout. To end it now,"
            f" kill process {report.process} there: Spark runs the task again, if it has attempts left."
        )
