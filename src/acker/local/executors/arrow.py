"""Executors of ArrowBolts, which process the rows that are there as one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from acker.errors import AckerError
from acker.local.batch_collectors import ArrowBoltCollector, BatchCall
from acker.local.batch_routes import has_more_bytes
from acker.local.executors.base import STEP_TUPLES, Mode
from acker.local.executors.bolt import BoltExecutor, BoltTask
from acker.observe.reasons import Reason, ReasonKind, reason_line, reason_text
from acker.topology.arrow_bolt import ArrowBolt
from acker.topology.arrow_columns import array_of, is_known, take_rows
from acker.topology.bad_rows import ENDS_TASK, RowFault, fault_of, find_bad_rows
from acker.topology.stateful import StatefulBolt
from acker.topology.tuple_batch import TupleBatch, unpack, values_of
from acker.topology.tuples import Tuple

if TYPE_CHECKING:
    import pyarrow as pa

# The counter of calls of `process_rows`.
_BATCHES: Final = "batches"


class _Rows(NamedTuple):
    """Tuples as columns: those that fit the types, and why each other one does not."""

    batch: TupleBatch | None
    misfits: list[tuple[Tuple, str]]


class ArrowBoltTask(BoltTask):
    """One task of an ArrowBolt.

    Parameters
    ----------
    types : callable
        (component, stream) -> the types that the stream declares, by field.
    """

    collector: ArrowBoltCollector

    def __init__(self, *args: Any, types: Callable[[str, str], dict[str, Any]], **options: Any) -> None:
        super().__init__(*args, **options)
        assert isinstance(self.bolt, ArrowBolt)
        self._arrow_bolt = self.bolt
        self._declared = types
        self._types: dict[tuple[str, str], dict[str, pa.DataType]] = {}
        self._divides = self._arrow_bolt.finds_bad_rows and not isinstance(self.bolt, StatefulBolt)

    def process_tuples(self, tuples: list[Tuple], bytes_max: int | None) -> None:
        """Process tuples of one stream as a batch, or as several of fewer bytes; those that do not fit its types fail.

        A tuple alone may have more bytes.
        """
        rows = self._as_rows(tuples)
        if rows is None or (
            rows.batch is not None and len(tuples) > 1 and has_more_bytes(rows.batch.columns, bytes_max)
        ):
            half = len(tuples) // 2
            self.process_tuples(tuples[:half], bytes_max)
            self.process_tuples(tuples[half:], bytes_max)
            return
        if rows.misfits:
            self.fail_misfits(rows.misfits)
        if rows.batch is not None:
            self.process_batch(rows.batch)

    def process_batch(self, batch: TupleBatch) -> None:
        """Process a batch, and ack or fail its rows."""
        collector, rows = self.collector, len(batch)
        collector.executed += rows
        collector.count(_BATCHES)
        since_ns = self._clock.now_ns()
        good, bad = self._call(batch)
        left = np.empty(0, np.int64) if batch.tuple_ids is None else batch.tuple_ids.copy()
        for begin, _, call in good:
            bad.update((begin + row, fault) for row, fault in call.faults.items())
        failed = {row: self._reason(fault) for row, fault in bad.items()}
        for begin, end, call in good:
            collector.deliver(call, batch.slice(begin, end), left[batch.bounds(begin, end)])
            failed.update((begin + row, reason) for row, reason in call.failed.items())
        collector.settle(batch, left, failed)
        collector.latency.record((self._clock.now_ns() - since_ns) // rows, rows)
        by_fault: dict[int, list[int]] = {}
        for row, fault in bad.items():
            by_fault.setdefault(id(fault), []).append(row)
        for of_fault in by_fault.values():
            self.log_exception(
                f"failed {len(of_fault):,} of {rows:,} rows, the first of them {_text_of(batch, of_fault[0])}",
                bad[of_fault[0]].error,
            )

    def _call(self, batch: TupleBatch) -> tuple[list[tuple[int, int, BatchCall]], dict[int, RowFault]]:
        collector, bolt = self.collector, self._arrow_bolt

        def attempt(begin: int, end: int) -> BatchCall | RowFault:
            part = batch.slice(begin, end)
            call = collector.begin(part)
            try:
                returned = bolt.process_rows(part.columns)
                if returned is not None:
                    collector.refuse_unrun("process_rows", returned)
            except BaseException as error:
                if not bolt.auto_fail or isinstance(error, ENDS_TASK):
                    raise
                return fault_of(error, reason_text(error))
            finally:
                collector.end()
            return call

        return find_bad_rows(attempt, len(batch), divide=self._divides)

    def _reason(self, fault: RowFault) -> Reason:
        who = self.collector
        return Reason(ReasonKind.FAILED, who.component, who.task, fault.reason, line=reason_line(fault.error))

    def _as_rows(self, tuples: list[Tuple]) -> _Rows | None:
        """Return tuples as columns; None if they are too many bytes for one batch of Arrow."""
        import pyarrow as pa

        source: Any = tuples[0]._source
        columns, anchors = unpack(tuples)
        key = source.component, source.stream
        types = self._types.setdefault(key, self._declared(*key))
        found: list[pa.Array[Any]] = []
        misfits: dict[int, str] = {}
        for name, values in zip(source.fields, columns, strict=True):
            column, wrong = _column_of(values, types, name)
            misfits = wrong | misfits
            found.append(column)
        if len(tuples) > 1 and any(isinstance(column, pa.ChunkedArray) for column in found):
            return None
        batch = pa.RecordBatch.from_arrays(found, names=list(source.fields))
        if not misfits:
            return _Rows(TupleBatch.of_anchors(source, batch, anchors, tuples), [])
        where = f"field of a tuple of {source.component!r}, stream {source.stream!r}"
        kept = np.array([row for row in range(len(tuples)) if row not in misfits], np.int64)
        told = [(tuples[row], f"{where}: {text}") for row, text in sorted(misfits.items())]
        if not kept.size:
            return _Rows(None, told)
        kept_tuples = [tuples[row] for row in kept.tolist()]
        rows = TupleBatch.of_anchors(source, take_rows(batch, kept), anchors.take(kept), kept_tuples)
        return _Rows(rows, told)


class ArrowBoltExecutor(BoltExecutor):
    """The executor of some tasks of an ArrowBolt.

    Parameters
    ----------
    batch_rows : int
        Number of rows that are processed at most at once.
    batch_bytes : int or None
        Tuples whose batch would have more bytes are processed in parts.
    """

    tasks: list[ArrowBoltTask]  # type: ignore[assignment]

    def __init__(self, *args: Any, batch_rows: int, batch_bytes: int | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._batch_in_work: tuple[int, Any] | None = None

    def in_work(self) -> Iterator[tuple[BoltTask, list[Tuple]]]:
        """Yield the rows that are being processed. Any thread may call it."""
        if (work := self._batch_in_work) is not None:
            index, item = work
            yield self.tasks[index], item.tuples() if isinstance(item, TupleBatch) else item

    def _take_chunk(self) -> Any:
        return self.inbox.take()

    def _process(self, mode: Mode, limit: int) -> int:
        # A step of a thread takes as many rows as a batch may have, one of a scheduler as few as it says.
        most = self._batch_rows if limit >= STEP_TUPLES else min(limit, self._batch_rows)
        done = 0
        while done < max(limit, most) and self.mode is mode and not self.outbox.must_yield:
            work = self._next_work(most)
            if work is None:
                break
            self._batch_in_work = work
            index, item = work
            done += len(item)
            try:
                if isinstance(item, TupleBatch):
                    self.tasks[index].process_batch(item)
                else:
                    self.tasks[index].process_tuples(item, self._batch_bytes)
            finally:
                self._batch_in_work = None
        return done

    def _next_work(self, most: int) -> tuple[int, Any] | None:
        """Return the index of a task, and a batch or tuples of one stream for it; None if there is nothing."""
        if not self._fetch():
            return None
        assert self._chunk is not None
        index: int = self._chunk[0]
        item: Any = self._chunk[1]
        if isinstance(item, TupleBatch):
            return index, self._advance(len(item), most)
        tuples: list[Tuple] = []
        first = item[self._position]._source
        while True:
            end = self._position
            while end < len(item) and end - self._position + len(tuples) < most and _is_like(item[end], first):
                end += 1
            tuples += item[self._position : end]
            self._position = end
            if end < len(item):
                break
            self._chunk = None
            if len(tuples) == most or not self._fetch():
                break
            chunk: Any = self._chunk
            item = chunk[1]
            if chunk[0] != index or isinstance(item, TupleBatch):
                break
        return index, tuples

    def _fetch(self) -> bool:
        """Take the next chunk if there is none; return whether there is one now."""
        if self._chunk is None:
            self._chunk, self._position = self._take_chunk(), 0
        return self._chunk is not None

    def _advance(self, rows: int, most: int) -> TupleBatch:
        assert self._chunk is not None
        batch: Any = self._chunk[1]
        begin, self._position = self._position, min(rows, self._position + most)
        if self._position == rows:
            self._chunk = None
        taken: TupleBatch = batch.slice(begin, min(rows, begin + most))
        return taken


def _is_like(tup: Tuple, source: Any) -> bool:
    mine = tup._source
    return mine is source or (mine.component == source.component and mine.stream == source.stream)


def _column_of(values: list[Any], types: dict[str, Any], name: str) -> tuple[pa.Array[Any], dict[int, str]]:
    """Return values as a column, with null for each one that does not fit, and why; the type is kept in `types`."""
    import pyarrow as pa

    errors = (AckerError, pa.ArrowException, TypeError, ValueError, OverflowError)
    kind = types.get(name)
    wrong: dict[int, str] = {}
    try:
        column: pa.Array[Any] = array_of(values, kind, name)
    except errors:
        if kind is None:
            kind = _first_type(values, errors)
        expected = repr(name) if kind is None else f"{name!r} is {kind}"
        for row, value in enumerate(values):
            try:
                array_of([value], kind, name)
            except errors as error:
                wrong[row] = f"{expected}, got {value!r:.80}: {error}"
        column = array_of([None if row in wrong else value for row, value in enumerate(values)], kind, name)
    if is_known(column.type):
        types[name] = column.type
    return column, wrong


def _first_type(values: list[Any], errors: tuple[type[Exception], ...]) -> pa.DataType | None:
    """Return the type of the first value that has a whole one, or that of a value that says less; None without any."""
    import pyarrow as pa

    found: pa.DataType | None = None
    for value in values:
        try:
            kind: pa.DataType = pa.array([value]).type
        except errors:
            continue
        if is_known(kind):
            return kind
        if found is None or pa.types.is_null(found):
            found = kind
    return found


def _text_of(batch: TupleBatch, row: int) -> str:
    """Return a row as text of limited length."""
    values = {
        name: values_of(column.slice(row, 1))[0][0]
        for name, column in zip(batch.source.fields, batch.columns.columns, strict=True)
    }
    text = f"{values!r} of {batch.source.component!r}, stream {batch.source.stream!r}"
    return text if len(text) <= 300 else f"{text[:299]}\N{HORIZONTAL ELLIPSIS}"
