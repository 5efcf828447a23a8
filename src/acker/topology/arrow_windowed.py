"""WindowedArrowBolt, a bolt that processes the rows of a window as Arrow tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.observe.reasons import reason_text
from acker.topology.anchors import Int64s
from acker.topology.arrow_bolt import ArrowBolt
from acker.topology.arrow_columns import take_rows
from acker.topology.arrow_windows import ArrowWindow, ArrowWindowContents
from acker.topology.bad_rows import ENDS_TASK, fault_of
from acker.topology.methods import refuse_unrun
from acker.topology.state import KeyValueState
from acker.topology.stateful import StatefulBolt
from acker.topology.tuple_batch import TupleBatch, values_of
from acker.topology.windowed import ENDED, SECONDS_MAX, WindowedBolt

if TYPE_CHECKING:
    import pyarrow as pa


class WindowedArrowBolt(ArrowBolt, WindowedBolt):
    """A `WindowedBolt` whose rows are columns: override `process_window`, which gets an `ArrowWindow`. Needs pyarrow.

    Windows, watermarks, acks and anchors are those of a `WindowedBolt`. Each task has one window: `group_key` has no
    effect, so group its table instead. `process_late` gets the rows that are late as a RecordBatch.
    """

    _contents: ArrowWindowContents  # type: ignore[assignment]

    def process_window(self, window: ArrowWindow) -> Any:  # type: ignore[override]
        """Process a window that has ended.

        By count, what it emits without `parents` is anchored to the row that completes the window; by time, to none.
        An exception fails that row, which then is not in the window; by time it restarts the topology. In both cases
        the window is processed again.

        Parameters
        ----------
        window : ArrowWindow
        """
        raise NotImplementedError(f"{type(self).__name__} has no process_window()")

    def process_late(self, tup: pa.RecordBatch) -> Any:  # type: ignore[override]
        """Handle rows whose windows have all ended. They are counted as "late_tuples" and acked; override to keep them.

        With `timestamp_field` only. What it emits is anchored to them, as in `process_rows`.
        """

    def process_rows(self, batch: pa.RecordBatch) -> None:
        """Put rows into their windows, and process the windows that they end. Do not override it."""
        rows: TupleBatch = self._collector.rows
        if self.window.kind == "count":
            self._process_by_count(rows, batch)
            return
        contents = self._contents
        if self.timestamp_field is None:
            times_ms = np.full(batch.num_rows, contents.time_from(self._collector.wall_ms()))
            good = np.arange(batch.num_rows)
        else:
            times_ms, good = self._event_times(rows, batch)
        ends, is_in = self._last_ends(times_ms)
        if self.timestamp_field is not None:
            contents.ended_ms = self._ended_ms
            is_late = is_in & contents.is_ended(ends)
            if is_late.any():
                self._pass_late(batch, good[is_late], int(ends[is_late][0]), rows)
            is_in &= ~is_late
        if is_in.all() and good.size == batch.num_rows:
            contents.add(_source_of(rows), batch, times_ms)
        elif is_in.any():
            contents.add(_source_of(rows), take_rows(batch, good[is_in]), times_ms[is_in])

    def _last_ends(self, times_ms: Int64s) -> tuple[Int64s, Any]:
        """Return the end of the last window of each row, and whether it is in any."""
        ends = (times_ms + self.window.length) // self.window.step * self.window.step
        return ends, ends > times_ms

    def _process_by_count(self, rows: TupleBatch, batch: pa.RecordBatch) -> None:  # type: ignore[override]
        contents, source, begin = self._contents, _source_of(rows), 0
        none = np.zeros(batch.num_rows, np.int64)
        while begin < batch.num_rows:
            before = min(contents.room() - 1, batch.num_rows - begin)
            if before:
                contents.add(source, batch.slice(begin, before), none[:before])
                begin += before
            if begin < batch.num_rows and contents.room() == 1:
                contents.add(source, batch.slice(begin, 1), none[:1])
                self._process_full(begin)
                begin += 1

    def _process_full(self, row: int) -> None:
        """Process the window that a row has completed; if that raises, the row fails and is not in the window."""
        contents = self._contents
        call = self._collector.anchor_to(row)
        try:
            self._process_one(contents.full_window())  # type: ignore[arg-type]
        except BaseException as error:
            contents.remove_last()
            call.undo()
            if not self.auto_fail or isinstance(error, ENDS_TASK):
                raise
            call.faults[row] = fault_of(error, reason_text(error))
        else:
            contents.pass_on()
        finally:
            call.release()

    def _event_times(self, rows: TupleBatch, batch: pa.RecordBatch) -> tuple[Int64s, Int64s]:
        """Return the times of the rows that have one, and these rows; fail the others."""
        assert self.timestamp_field is not None
        times_ms, is_good = _milliseconds(batch.column(self.timestamp_field))
        reasons: dict[int, Exception] = {}
        for row in np.flatnonzero(~is_good).tolist():
            [value], errors = values_of(batch.column(self.timestamp_field).slice(row, 1))
            try:
                times_ms[row] = self._time_of_value(errors.get(0, value))
            except (ArgumentTypeError, ArgumentValueError) as error:
                reasons[row] = error
        if reasons:
            self.fail_rows(list(reasons), list(reasons.values()))
        good = np.array([row for row in range(batch.num_rows) if row not in reasons], np.int64)
        tuples = rows.tuples()
        for row in good.tolist():
            self._watermark.note(tuples[row], int(times_ms[row]))
        return times_ms[good], good

    def _pass_late(self, batch: pa.RecordBatch, late: Int64s, last_end: int, rows: TupleBatch) -> None:
        assert self.timestamp_field is not None
        self.report_metric("late_tuples", late.size)
        [value], _ = values_of(batch.column(self.timestamp_field).slice(int(late[0]), 1))
        self._tell_late(rows.source.component, value, last_end)
        self._collector.give(late)
        try:
            returned: object = self.process_late(take_rows(batch, late))
        finally:
            self._collector.give(None)
        if returned is not None:
            refuse_unrun(self.component_name, "process_late", returned)

    def _bind_state(self, state: KeyValueState) -> None:
        StatefulBolt._bind_state(self, state)
        self._ended_ms = state.peek(ENDED, None)
        self._contents = ArrowWindowContents(self.window, state, self._ended_ms)


def _source_of(rows: TupleBatch) -> tuple[str, str]:
    return rows.source.component, rows.source.stream


def _milliseconds(column: pa.Array[Any]) -> tuple[Int64s, Any]:
    """Return times of a column in milliseconds, and which of them are certain: the others are judged one by one."""
    import pyarrow as pa

    kind, rows = column.type, len(column)
    is_time = pa.types.is_timestamp(kind) and kind.tz is not None
    if not (is_time or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return np.zeros(rows, np.int64), np.zeros(rows, bool)
    is_given = column.is_valid().to_numpy(zero_copy_only=False)
    if is_time:
        scale = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[kind.unit]
        values = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) / scale
    else:
        values = column.fill_null(pa.scalar(0).cast(kind)).to_numpy(zero_copy_only=False).astype(np.float64)
    is_good = is_given & (np.abs(values) < SECONDS_MAX)
    return np.rint(np.where(is_good, values, 0) * 1000).astype(np.int64), is_good
