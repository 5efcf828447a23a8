"""The driver's log of failed rows: the number for each component, and the error of one of them.

A task adds them to an accumulator of Spark's, which arrives with the end of the task, before the action returns. A row
that runs again, as with each action on a pipeline that is not persisted, counts again. `failures` and `counters` of a
pipeline have all of them; the log is for programs that call neither.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from pyspark.accumulators import AccumulatorParam

from acker.spark.session_checks import is_classic

# The factor by which failed rows must grow before the driver logs them again.
_TENFOLD: Final = 10

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


class _LoggedFailedRowsParam(_FailedRowsParam):
    """Adds up the failed rows of tasks and logs them in the driver: the first row, then each tenfold number."""

    def __init__(self) -> None:
        self._due: dict[str, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _FailedRowsParam, ()

    def addInPlace(  # noqa: N802  Spark's name.
        self, value1: dict[str, FailedRows], value2: dict[str, FailedRows]
    ) -> dict[str, FailedRows]:
        value = super().addInPlace(value1, value2)
        for component in value2:
            rows, reason = value[component]
            if rows >= self._due.get(component, 1):
                self._due[component] = _TENFOLD * rows
                so_far = "1 row failed so far"
                if rows > 1:
                    so_far = f"{rows} rows failed so far, each counted as often as it ran"
                _log.warning("%s: %s, one of them with %s; failures() has all of them", component, so_far, reason)
        return value


def make_accumulator(session: Any) -> Any:
    """Return an accumulator of `FailedRows` by component; None for a session of Spark Connect, which has none."""
    return session.sparkContext.accumulator({}, _LoggedFailedRowsParam()) if is_classic(session) else None
