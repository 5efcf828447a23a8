"""Arrow batches of rows whose trees are columns of Spark's SQL: read by a stage in Python, and written by one.

Nothing here imports pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acker._engine.protocol import Kind
from acker.errors import ColumnValueError
from acker.spark.pipelines.hidden_columns import (
    ALIVE,
    ATTEMPT,
    EVENT_MS,
    FAILED,
    ID,
    MORE,
    OF_TREE,
    ROOT,
    TASK,
    TUPLE,
    VALUE,
)
from acker.spark.pipelines.transforms import Flow, TrackSender
from acker.spark.text_ids import is_text, numbers_of
from acker.topology.anchors import Anchors, Int64s, by_row, single

if TYPE_CHECKING:
    from acker.spark.pipelines.collector import MessageCollector


class SqlMessages:
    """Sends the messages that rows carry to the collector of a task."""

    def __init__(self, collector: MessageCollector, *, timed: bool) -> None:
        self._collector = collector
        self._timed = timed
        self._tracks = TrackSender("message_id", collector)

    def send(self, batch: pa.RecordBatch) -> None:
        """Send the messages of a batch."""
        self._send_trees(batch)
        failed = batch.filter(batch.column(FAILED).is_valid())
        self._send_failures(failed)
        if MORE in batch.schema.names:
            self._send_trees(_further_trees(batch))
            self._send_failures(_further_trees(failed))
        failures: list[Any] = failed.column(FAILED).to_pylist()
        for failure in failures:
            self._collector.counters(failure["component"]).failed += 1
            self._collector.log_failed(failure["component"], {0: failure["reason"]})

    def _send_trees(self, batch: pa.RecordBatch) -> None:
        rows = batch.filter(batch.column(ROOT).is_valid())
        if rows.num_rows:
            is_track = rows.column(ID).is_valid()
            self._send_tracks(rows.filter(is_track))
            others = rows.filter(pc.invert(is_track))
            self._add(Kind.OK, others, _numbers(others, VALUE))

    def _send_tracks(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        ids = rows.column(ID)
        texts = ids if is_text(ids.type) else None
        message_id = ids.cast(pa.int64()).to_numpy() if texts is None else numbers_of(texts)
        attempts = rows.column(ATTEMPT)
        self._tracks.send(
            _numbers(rows, ROOT),
            _numbers(rows, VALUE),
            rows.column(TASK).fill_null(0).to_numpy(),
            message_id,
            texts=texts,
            attempt=attempts.fill_null(0).to_numpy() if attempts.null_count < len(attempts) else None,
            event_ms=self._times(rows),
        )

    def _send_failures(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        anchored = rows.filter(rows.column(ROOT).is_valid())
        self._add(Kind.FAIL, anchored, np.zeros(anchored.num_rows, np.int64))
        failures: list[Any] = rows.column(FAILED).to_pylist()
        roots, tuples = rows.column(ROOT).to_pylist(), rows.column(TUPLE).to_pylist()
        for failure, root, tuple_id in zip(failures, roots, tuples, strict=True):
            component, reason = failure["component"], failure["reason"]
            root_id, tuple_ids = (None, None) if root is None else (np.array([root]), np.array([tuple_id]))
            self._collector.add_failures(component, root_id, tuple_ids, [reason], [failure["row"]])

    def _add(self, kind: Kind, rows: pa.RecordBatch, value: Int64s) -> None:
        kinds = np.full(rows.num_rows, kind, np.int8)
        self._collector.add(kinds, _numbers(rows, ROOT), value, event_ms=self._times(rows))

    def _times(self, rows: pa.RecordBatch) -> Int64s | None:
        return _numbers(rows, EVENT_MS) if self._timed else None


def alive_rows(batch: pa.RecordBatch, names: list[str], *, timed: bool) -> Flow:
    """Return the user's rows of a batch with their anchors."""
    rows = batch.filter(batch.column(ALIVE))
    is_anchored = rows.column(ROOT).is_valid()
    anchored = rows.filter(is_anchored)
    times = _numbers(anchored, EVENT_MS) if timed else None
    mask = is_anchored.to_numpy(zero_copy_only=False)
    anchors = single(_numbers(anchored, ROOT), _numbers(anchored, TUPLE), mask, times)
    if MORE in batch.schema.names:
        further = _further_trees(rows)
        row = np.concatenate([anchors.row_of_each(), _row_of_each(rows)])
        root_id, tuple_id = (
            np.concatenate([_numbers(each, name) for each in (anchored, further)]) for name in (ROOT, TUPLE)
        )
        anchors = by_row(row, root_id, tuple_id, rows.num_rows)
    return Flow(rows.select(names), anchors)


def _row_of_each(batch: pa.RecordBatch) -> Int64s:
    rows: Int64s = pc.list_parent_indices(batch.column(MORE)).to_numpy()
    return rows


def _further_trees(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the trees that rows have beside the one in their columns, each as a row of a tree's columns."""
    trees: Any = pc.list_flatten(batch.column(MORE))
    row: Any = pa.array(_row_of_each(batch))
    failed = batch.column(FAILED).take(row)
    columns = {**{name: pc.struct_field(trees, name) for name in OF_TREE}, FAILED: failed}
    return pa.RecordBatch.from_pydict(columns)


def hidden_columns_of(anchors: Anchors, fields: list[pa.Field[Any]], component: str) -> list[pa.Array[Any]]:
    """Return the hidden columns of rows that are alive, with these fields; the rows carry no messages.

    Raises
    ------
    ColumnValueError   a row has several trees.
    """
    counts = np.diff(anchors.starts)
    if (counts > 1).any():
        raise ColumnValueError(
            f"{component}: a row has {int(counts.max())} trees, and steps that Spark runs read rows of one: let the"
            " bolt that joins rows be followed by bolts"
        )
    at: Any = pa.array(anchors.starts[:-1], mask=counts == 0)
    rows = anchors.rows
    known: dict[str, Any] = {
        ALIVE: pa.array(np.ones(rows, np.bool_)),
        ROOT: pa.array(anchors.root_id).take(at),
        TUPLE: pa.array(anchors.tuple_id).take(at),
        VALUE: pa.array(np.zeros(rows, np.int64), mask=counts == 0),
    }
    if anchors.event_ms is not None:
        known[EVENT_MS] = pa.array(anchors.event_ms).take(at)
    return [known[entry.name] if entry.name in known else pa.nulls(rows, entry.type) for entry in fields]


def _numbers(rows: pa.RecordBatch, name: str) -> Int64s:
    numbers: Int64s = rows.column(name).to_numpy()
    return numbers
