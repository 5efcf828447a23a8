"""The call of a bolt's function that runs in a stage of a pipeline, for the watch over its Spark task."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Final, NamedTuple

from acker.spark.task_watch import CodePlace
from acker.topology.anchors import Anchors

# Pipelines have no timeouts. A call with a row hangs from half of this on; one with a batch may take long.
_TIMEOUT_MS: Final = 30_000


class _RowCall(NamedTuple):
    component: str
    anchors: Anchors
    rows: Iterator[int]
    by_row: bool


class StageCalls:
    """Knows which bolt runs, and with which row. No row costs a step: the watch asks an iterator how far it is."""

    def __init__(self) -> None:
        self._call: _RowCall | None = None
        self._calls = 0
        self._done: dict[str, int] = {}

    def begin(self, component: str, anchors: Anchors, *, by_row: bool) -> Iterator[int]:
        """Note that a bolt gets these rows; return their numbers, each to be taken before the call with its row."""
        rows = iter(range(anchors.rows))
        self._calls += 1
        self._call = _RowCall(component, anchors, rows, by_row)
        return rows

    def end(self) -> None:
        """Note that the bolt is done with its rows."""
        call, self._call = self._call, None
        if call is not None:
            self._done[call.component] = self._done.get(call.component, 0) + call.anchors.rows

    def place(self) -> CodePlace | None:
        """Return the bolt whose function runs, and the tree of its row. Any thread may ask."""
        call = self._call
        if call is None:
            return None
        row = call.anchors.rows - operator.length_hint(call.rows) - 1
        root_id = None
        if call.by_row and row >= 0 and call.anchors.starts[row] < call.anchors.starts[row + 1]:
            root_id = int(call.anchors.root_id[call.anchors.starts[row]])
        done = self._done.get(call.component, 0) + max(0, row)
        timeout_ms = _TIMEOUT_MS if call.by_row else None
        return CodePlace(call.component, (self._calls, row), root_id=root_id, done=done, timeout_ms=timeout_ms)
