"""What the driver hears at once of rows that fail: how many of each component, and what one of them raised.

A task adds this to an accumulator of Spark's, which arrives with the task's end, before the action returns. A row that
runs again, as with each action on a pipeline that is not persisted, counts again. `failures` and `counters` of a
pipeline say it all, to whoever asks; this is for those who do not.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from pyspark.accumulators import AccumulatorParam

from acker.spark.session_checks import is_classic

# So many times more rows must have failed before the driver's log says so again.
_TENFOLD: Final = 10

_log: Final = logging.getLogger("acker.spark")


class FailedRows(NamedTuple):
    """How many rows of a component failed, and the reason of the first that was heard of."""

    rows: int
    reason: str


class _Merge(AccumulatorParam[dict[str, FailedRows]]):
    """Adds up what tasks say; in a worker."""

    def zero(self, value: dict[str, FailedRows]) -> dict[str, FailedRows]:  # noqa: ARG002
        return {}

    def addInPlace(  # noqa: N802  Spark's name.
        self, value1: dict[str, FailedRows], value2: dict[str, FailedRows]
    ) -> dict[str, FailedRows]:
        for component, (rows, reason) in value2.items():
            before = value1.get(component, FailedRows(0, reason))
            value1[component] = FailedRows(before.rows + rows, before.reason)
        return value1


class _Tell(_Merge):
    """Adds up what tasks say, and logs it in the driver: the first row, and each tenfold of what was logged."""

    def __init__(self) -> None:
        self._due: dict[str, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _Merge, ()

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


def accumulator(session: Any) -> Any:
    """Return an accumulator of `FailedRows` by component; None for a session of Spark Connect, which has none."""
    return session.sparkContext.accumulator({}, _Tell()) if is_classic(session) else None
