"""The driver's log of failed rows: the number for each component, and the error of one of them.

A task adds them to an accumulator of Spark's, which arrives with the end of the task, before the action returns. A row
that runs again, as with each action on a pipeline that is not persisted, counts again. `failures` and `counters` of a
pipeline have all of them; the log is for programs that call neither.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyspark.accumulators import AccumulatorParam

from acker.spark.session_checks import is_classic

# The factor by which failed rows must grow before the driver logs them at once.
_TENFOLD: Final = 10
# Whatever the number is when no further row has failed for a while is logged too: the last line has all of them. The
# wait doubles, so that a stream whose rows fail all the time does not fill the log.
_QUIET_SECS: Final = 0.5
_QUIET_SECS_MAX: Final = 30.0

_log: Final = logging.getLogger("acker.spark")


class FailedRows(NamedTuple):
    """The number of failed rows of a component, and the reason of the first."""

    rows: int
    reason: str


class _FailedRowsParam(AccumulatorParam[dict[str, FailedRows]]):
    """Adds up the failed rows of tasks, in a worker."""

    def zero(self, value: dict[str, FailedRows]) -> dict[str, FailedRows]:  # noqa: ARG002
        return {}

    def addInPlace(  # noqa: N802  Spark's name.
        self, value1: dict[str, FailedRows], value2: dict[str, FailedRows]
    ) -> dict[str, FailedRows]:
        for component, (rows, reason) in value2.items():
            before = value1.get(component, FailedRows(0, reason))
            value1[component] = FailedRows(before.rows + rows, before.reason)
        return value1


def _start_timer(secs: float, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(secs, call)
    timer.daemon = True
    timer.start()
    return timer


class _LoggedFailedRowsParam(_FailedRowsParam):
    """Adds up the failed rows of tasks and logs them in the driver: the first, each tenfold number, and the last.

    Parameters
    ----------
    start_timer : callable
        Calls a function after some seconds; returns what `cancel` ends.
    """

    def __init__(self, start_timer: Callable[[float, Callable[[], None]], Any] = _start_timer) -> None:
        self._start_timer = start_timer
        self._lock = threading.Lock()
        self._due: dict[str, int] = {}
        self._known: dict[str, FailedRows] = {}
        self._logged: dict[str, int] = {}
        self._quiet_secs = _QUIET_SECS
        self._timer: Any = None
        # At the end of the program, if that comes before the timer.
        weakref.finalize(self, _log_rest, self._known, self._logged, self._lock)

    def __reduce__(self) -> tuple[Any, ...]:
        return _FailedRowsParam, ()

    def addInPlace(  # noqa: N802  Spark's name.
        self, value1: dict[str, FailedRows], value2: dict[str, FailedRows]
    ) -> dict[str, FailedRows]:
        value = super().addInPlace(value1, value2)
        with self._lock:
            self._known.update({component: value[component] for component in value2})
            for component in value2:
                rows = value[component].rows
                if rows >= self._due.get(component, 1):
                    self._due[component] = _TENFOLD * rows
                    _log_one(component, value[component], self._logged)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._start_timer(self._quiet_secs, self._log_rest)
        return value

    def _log_rest(self) -> None:
        if _log_rest(self._known, self._logged, self._lock):
            self._quiet_secs = min(2 * self._quiet_secs, _QUIET_SECS_MAX)


def _log_rest(known: dict[str, FailedRows], logged: dict[str, int], lock: threading.Lock) -> bool:
    """Log the numbers that have grown since they were logged; return whether there are any."""
    with lock:
        grown = [component for component, (rows, _) in known.items() if rows > logged.get(component, 0)]
        for component in grown:
            _log_one(component, known[component], logged)
    return bool(grown)


def _log_one(component: str, failed: FailedRows, logged: dict[str, int]) -> None:
    logged[component] = failed.rows
    so_far = "1 row failed so far"
    if failed.rows > 1:
        so_far = f"{failed.rows} rows failed so far, each counted as often as it ran"
    _log.warning("%s: %s, one of them with %s; failures() has all of them", component, so_far, failed.reason)


def make_accumulator(session: Any) -> Any:
    """Return an accumulator of `FailedRows` by component; None for a session of Spark Connect, which has none."""
    return session.sparkContext.accumulator({}, _LoggedFailedRowsParam()) if is_classic(session) else None
