"""Transforms of rows in a task, which take rows with their trees, send messages to the collector, and yield rows."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from acker._engine.ids import root_ids, tuple_ids
from acker._engine.protocol import Kind
from acker._files.columns import event_times_of
from acker.errors import ArgumentValueError, ColumnValueError, StrictError
from acker.spark.messages import describe_shared_ids
from acker.spark.notes import HEAD_SCHEMA, TextIds
from acker.spark.pipelines import anchors as trees
from acker.spark.pipelines.collector import FANOUT_MAX, MessageCollector, TaskCounters
from acker.spark.pipelines.user_functions import Produced, reason_of, run_batch, run_rows
from acker.spark.text_ids import is_text, numbers_of
from acker.topology.anchors import Anchors, Int64s, concat, roots_only, single

# The length of the text of a failed row: whole documents should not travel twice.
ROW_CHARS_MAX: Final = 1000


class Flow(NamedTuple):
    """A batch of rows on its way: the user's columns, and the anchors of each row."""

    rows: pa.RecordBatch
    anchors: Anchors


class Transform(Protocol):
    """A transform; it sees all rows of a partition."""

    def run(self, flows: Iterator[Flow], collector: MessageCollector) -> Iterator[Flow]:
        """Take rows, send messages to the collector, yield rows."""


class TrackSender:
    """Sends the TRACKs of a task, and refuses rows that would share a tree; `name` is that of their message ids."""

    def __init__(self, name: str, collector: MessageCollector) -> None:
        self._name = name
        self._collector = collector
        self._tracks: list[tuple[Int64s, Int64s]] = []
        self._named: list[pa.Table] = []

    def send(
        self,
        root_id: Int64s,
        value: Int64s,
        task_id: Any,
        message_id: Int64s,
        *,
        texts: pa.Array[Any] | None,
        attempt: Int64s | None,
        event_ms: Int64s | None,
    ) -> None:
        """Send them, and what the trees are called where a TRACK cannot say it: ids that are texts, and attempts."""
        kind = np.full(root_id.size, Kind.TRACK, np.int8)
        duplicates = self._collector.add(kind, root_id, value, task_id, message_id, event_ms=event_ms)
        if texts is not None or attempt is not None:
            attempts = np.zeros(root_id.size, np.int64) if attempt is None else attempt
            heads = pa.table([pa.array(root_id), pa.array(attempts)], schema=HEAD_SCHEMA)
            if texts is not None:
                heads = heads.append_column("message_id", texts)
                self._named.append(heads)
            self._collector.add_heads(heads)
        self._tracks.append((root_id, message_id))
        if duplicates:
            raise ColumnValueError(f"{self._name}: {describe_shared_ids(self._tracks, TextIds(self._named))}")


@dataclass(frozen=True)
class SpoutTransform:
    """Begins a tree with one tuple for each row, and sends its TRACK."""

    component: str
    run_seed: int
    message_id: str
    source: str | None
    task_id: str | int
    attempt: str | int
    event_time: str | None = None

    def run(self, flows: Iterator[Flow], collector: MessageCollector) -> Iterator[Flow]:
        """Track the rows with a message id; those where it is null stay unanchored."""
        sender = TrackSender(f"{self.component}: {self.message_id}", collector)
        for rows, _ in flows:
            tracked = rows.column(self.message_id).is_valid()
            part = rows.filter(tracked)
            texts = part.column(self.message_id)
            has_texts = is_text(texts.type)
            message_id = numbers_of(texts) if has_texts else self._column(part, self.message_id)
            task_id = self._column(part, self.task_id)
            attempt = self._column(part, self.attempt)
            source: str | Int64s = "" if self.source is None else self._column(part, self.source)
            root_id = root_ids(self.run_seed, source, message_id, attempt, component=self.component)
            tuple_id = tuple_ids(self.run_seed, root_id, 0, self.component, 0)
            event_ms = None if self.event_time is None else self._event_ms(part, self.event_time)
            has_attempts = isinstance(self.attempt, str) or bool(self.attempt)
            sender.send(
                root_id,
                tuple_id,
                task_id.astype(np.int32),
                message_id,
                texts=texts if has_texts else None,
                attempt=attempt if has_attempts else None,
                event_ms=event_ms,
            )
            counters = collector.counters(self.component)
            counters.emitted += rows.num_rows
            counters.messages += root_id.size
            anchored = tracked.to_numpy(zero_copy_only=False)
            yield Flow(rows, single(root_id, tuple_id, anchored, event_ms))

    def _event_ms(self, rows: pa.RecordBatch, name: str) -> Int64s:
        message_ids = rows.column(self.message_id)
        return event_times_of(
            rows.column(name),
            name,
            lambda row: f"{self.component}: the row whose {self.message_id} is {message_ids[row]}",
        )

    def _column(self, rows: pa.RecordBatch, name: str | int) -> Int64s:
        if isinstance(name, int):
            return np.full(rows.num_rows, name, np.int64)
        column = rows.column(name)
        if column.null_count:
            raise ColumnValueError(f"{name}: null in a row whose {self.message_id} is not")
        values = column.cast(pa.int64()).to_numpy()
        if name == self.task_id and values.size and not 0 <= values.min() <= values.max() < 2**31:
            raise ColumnValueError(f"{name}: expected int32 >= 0 in each row, got {values.min()} to {values.max()}")
        return values


@dataclass(frozen=True)
class BoltTransform:
    """Runs a bolt's function, gives its outputs tuple ids, and sends OK or FAIL for each input row and tree."""

    component: str
    run_seed: int
    function: Callable[[Any], Any]
    by: str
    schema: pa.Schema
    sink: bool
    strict: bool = False

    def run(self, flows: Iterator[Flow], collector: MessageCollector) -> Iterator[Flow]:
        """Run the function over rows, over each batch, or over the partition as one batch."""
        for flow in _join_flows(flows) if self.by == "partition" else flows:
            start = time.perf_counter_ns()
            numbers = collector.calls.begin(self.component, flow.anchors, by_row=self.by == "row")
            produced = self._call(flow.rows, numbers)
            collector.calls.end()
            function_ns = time.perf_counter_ns() - start
            outputs = produced.rows.num_rows
            if self.sink:
                emitted = np.zeros(flow.anchors.root_id.size, np.int64)
                anchors = roots_only(flow.anchors, produced.parents, outputs)
            else:
                emitted, anchors = trees.emit(flow.anchors, produced.parents, outputs, self.run_seed, self.component)
            self._count(flow, produced, function_ns, collector.counters(self.component))
            self._send(flow, produced, emitted, collector)
            if produced.failed:
                if self.strict:
                    row, reason = min(produced.failed.items())
                    raise StrictError(
                        f"{self.component}: {len(produced.failed)} of {flow.rows.num_rows} rows failed, row {row} with"
                        f" {reason}; strict=True makes this end the job"
                    )
                collector.log_failed(self.component, produced.failed)
            if outputs:
                yield Flow(produced.rows, anchors)

    def _call(self, rows: pa.RecordBatch, numbers: Iterator[int]) -> Produced:
        if self.by == "row":
            return run_rows(self.function, rows, self.schema, numbers)
        return run_batch(self.function, rows, self.schema, divide=self.by == "batch")

    def _count(self, flow: Flow, produced: Produced, function_ns: int, counters: TaskCounters) -> None:
        fanout = np.bincount(produced.parents.row, minlength=flow.rows.num_rows)
        fanout = np.delete(fanout, np.fromiter(produced.failed, np.int64))
        counters.fanout += np.bincount(np.minimum(fanout, FANOUT_MAX), minlength=FANOUT_MAX + 1)
        counters.executed += flow.rows.num_rows
        counters.emitted += produced.rows.num_rows
        counters.failed += len(produced.failed)
        counters.messages += flow.anchors.root_id.size
        counters.function_ns += function_ns

    def _send(self, flow: Flow, produced: Produced, emitted: Int64s, collector: MessageCollector) -> None:
        anchors = flow.anchors
        kind = np.full(anchors.root_id.size, Kind.OK, np.int8)
        value = anchors.tuple_id ^ emitted
        if produced.failed:
            rows = np.sort(np.fromiter(produced.failed, np.int64))
            row = anchors.row_of_each()
            fail = np.isin(row, rows)
            kind[fail], value[fail] = Kind.FAIL, 0
            reasons = [produced.failed[index] for index in row[fail].tolist()]
            texts = dict(zip(rows.tolist(), _texts_of(flow.rows.take(rows)), strict=True))
            told = [texts[index] for index in row[fail].tolist()]
            collector.add_failures(self.component, anchors.root_id[fail], anchors.tuple_id[fail], reasons, told)
            of_no_tree = rows[~np.isin(rows, row)].tolist()
            reasons, told = ([where[index] for index in of_no_tree] for where in (produced.failed, texts))
            collector.add_failures(self.component, None, None, reasons, told)
        collector.add(kind, anchors.root_id, value, event_ms=anchors.event_ms)


@dataclass(frozen=True)
class SelectTransform:
    """Keeps some columns of the rows."""

    names: tuple[str, ...]

    def run(self, flows: Iterator[Flow], collector: MessageCollector) -> Iterator[Flow]:  # noqa: ARG002
        """Select the columns."""
        for rows, anchors in flows:
            yield Flow(rows.select(list(self.names)), anchors)


@dataclass(frozen=True)
class BranchTransform:
    """Delivers each tuple to several readers, each with a tuple id of its own; this is the reader `branch`.

    Branch 0 sends the message for the tuple, with the ids of all branches. The transforms before a later branch run
    again for their rows only: with `Stage.mute` their messages are not sent twice.
    """

    component: str
    run_seed: int
    branch: int
    branches: int

    def run(self, flows: Iterator[Flow], collector: MessageCollector) -> Iterator[Flow]:
        """Replace the tuple ids by those of this branch."""
        for rows, anchors in flows:
            ids = [
                tuple_ids(self.run_seed, anchors.root_id, anchors.tuple_id, self.component, ordinal)
                for ordinal in range(self.branches)
            ]
            if self.branch == 0:
                value = functools.reduce(np.bitwise_xor, ids, anchors.tuple_id)
                kind = np.full(value.size, Kind.OK, np.int8)
                collector.add(kind, anchors.root_id, value, event_ms=anchors.event_ms)
                counters = collector.counters(self.component)
                counters.executed += rows.num_rows
                counters.emitted += rows.num_rows * self.branches
                counters.messages += value.size
                counters.fanout[min(self.branches, FANOUT_MAX)] += rows.num_rows
            yield Flow(rows, anchors._replace(tuple_id=ids[self.branch]))


def _texts_of(rows: pa.RecordBatch) -> list[str]:
    """Return each row as JSON, cut where it is long."""
    try:
        texts = [json.dumps(row, ensure_ascii=False, default=str) for row in rows.to_pylist()]
    except Exception as error:  # noqa: BLE001  A time of the year 10000 has no value in Python, for instance.
        if rows.num_rows == 1:
            return [f"(no text: {reason_of(error)})"]
        return [text for index in range(rows.num_rows) for text in _texts_of(rows.slice(index, 1))]
    return [text if len(text) <= ROW_CHARS_MAX else text[: ROW_CHARS_MAX - 1] + "…" for text in texts]


def _join_flows(flows: Iterator[Flow]) -> Iterator[Flow]:
    """Yield all rows of the partition as one flow; nothing if there are none."""
    parts = list(flows)
    if parts:
        table = pa.Table.from_batches([part.rows for part in parts]).combine_chunks()
        yield Flow(_one_batch(table), concat([part.anchors for part in parts]))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.to_batches()
    if len(batches) != 1:
        raise ArgumentValueError(f"{table.num_rows} rows do not fit one Arrow batch: use more partitions")
    return batches[0]
