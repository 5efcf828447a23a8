"""The worker's side of a tracked pipeline: the steps that rows flow through, and the messages they leave behind.

Steps between two shuffles run one after the other inside one `mapInArrow`, so rows cross between the JVM and Python
once, and the messages of a tree that are born in one task are combined there. What a task has to say besides its rows
leaves as carrier rows at its end, which later stages pass on untouched. Nothing here imports pyspark.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from acker._engine.columns import check_columns
from acker._engine.combiner import Cohorts, Combiner
from acker._engine.ids import root_ids, tuple_ids
from acker._engine.protocol import Kind
from acker.errors import ArgumentTypeError, ArgumentValueError, ColumnValueError, StrictError
from acker.spark.blocks import encode_blocks
from acker.spark.messages import event_times_of, latest_of, shared_ids
from acker.spark.pipelines import anchors as trees
from acker.spark.pipelines.anchors import Anchors, Int64s
from acker.spark.pipelines.user_functions import Produced, run_batch, run_rows

ANCHORS: Final = "acker_anchors"
SHARD: Final = "acker_shard"
BLOCK: Final = "acker_block"
HIDDEN: Final = (ANCHORS, SHARD, BLOCK)

# The shard column is null on data rows and 0 or more on blocks of messages. Below 0 the block holds something else:
FAILURES_SHARD: Final = -1  # failure texts, an Arrow stream of FAILURE_SCHEMA
COUNTERS_SHARD: Final = -2  # the counters of one task's components, JSON

FAILURE_SCHEMA: Final = pa.schema(
    [
        pa.field("root_id", pa.int64()),
        pa.field("tuple_id", pa.int64()),
        pa.field("component", pa.dictionary(pa.int32(), pa.string())),
        pa.field("reason", pa.dictionary(pa.int32(), pa.string())),
    ]
)

# Outputs of one input row are counted exactly up to here; the last bin means "or more".
FANOUT_MAX: Final = 1024

# A task that holds more trees than this sends what it has and begins anew, which bounds its memory to some 60 MB.
ROOTS_PER_FLUSH: Final = 1_000_000

# Carriers leave in Arrow batches of about this size: Spark copies each batch through memory several times.
_BATCH_BYTES: Final = 32_000_000


_log: Final = logging.getLogger("acker.spark")


class Flow(NamedTuple):
    """Some rows on their way: the user's columns, and the trees of each row."""

    rows: pa.RecordBatch
    anchors: Anchors


class Counters:
    """What one component did in one task."""

    def __init__(self) -> None:
        self.executed = 0
        self.emitted = 0
        self.failed = 0
        self.messages = 0
        self.function_ns = 0
        self.fanout = np.zeros(FANOUT_MAX + 1, np.int64)

    def to_json(self) -> dict[str, Any]:
        """Return the counters; of the fan-out (outputs of an input that did not fail -> inputs) those that occurred."""
        occurred = np.flatnonzero(self.fanout).tolist()
        values = {name: value for name, value in vars(self).items() if name != "fanout"}
        return {**values, "fanout": {str(outputs): int(self.fanout[outputs]) for outputs in occurred}}


class Collector:
    """Gathers the messages, failure texts and counters of one task; `timed` ones have event times."""

    def __init__(self, shards: int, *, timed: bool = False) -> None:
        self._shards = shards
        # All that is said of a tree has the tree's own time, so it need not be parted.
        self._cohorts = Cohorts(0, 2) if timed else None
        self._combiner = Combiner(cohorts=self._cohorts)
        self._latest_ms: int | None = None
        self._failures: list[pa.RecordBatch] = []
        self._counters: dict[str, Counters] = {}
        self.first_failures: dict[str, str] = {}
        self._ready: list[tuple[int, bytes]] = []
        self._messages = 0
        self._native_ns = 0

    def counters(self, component: str) -> Counters:
        """Return the counters of a component."""
        return self._counters.setdefault(component, Counters())

    def add(
        self,
        kind: NDArray[np.int8],
        root_id: Int64s,
        value: Int64s,
        task_id: Any = None,
        message_id: Any = None,
        *,
        event_ms: Int64s | None = None,
    ) -> int:
        """Take messages; columns as `Combiner.add`. Return how many of them were TRACKs of trees that had one."""
        before = self._combiner.duplicates
        self._combiner.add_unchecked(check_columns(kind, root_id, value, task_id, message_id), event_ms)
        if event_ms is not None:
            self._latest_ms = latest_of(self._latest_ms, event_ms)
        duplicates = self._combiner.duplicates - before
        if len(self._combiner) > ROOTS_PER_FLUSH:
            self._flush()
        return duplicates

    def tell_failed(self, component: str, failed: dict[int, str]) -> None:
        """Log the first row of a component that fails in this task."""
        if component not in self.first_failures:
            reason = self.first_failures[component] = next(iter(failed.values()))
            _log.warning("%s: a row failed with %s; further ones of this task are not logged", component, reason)

    def failed(self) -> dict[str, tuple[int, str]]:
        """Return, of each component with rows that failed, how many those are and the reason of the first."""
        return {name: (self.counters(name).failed, reason) for name, reason in self.first_failures.items()}

    def add_failures(self, component: str, root_id: Int64s | None, tuple_id: Int64s | None, reason: list[str]) -> None:
        """Take texts of failures, one a row and tree; without ids of rows that belong to no tree."""
        if not reason:
            return
        names = pa.DictionaryArray.from_arrays(np.zeros(len(reason), np.int32), pa.array([component]))
        reasons = pa.array(reason, pa.string()).dictionary_encode()
        ids = [pa.nulls(len(reason), pa.int64()) if each is None else pa.array(each) for each in (root_id, tuple_id)]
        columns = [*ids, names, reasons]
        self._failures.append(pa.RecordBatch.from_arrays(columns, schema=FAILURE_SCHEMA))

    def _flush(self) -> None:
        combiner, self._combiner = self._combiner, Combiner(cohorts=self._cohorts)
        self._ready += encode_blocks(combiner, self._shards, self._latest_ms)
        self._messages += combiner.messages
        self._native_ns += combiner.native_ns

    def finish(self) -> Iterator[tuple[int, bytes]]:
        """Yield (shard, block) of everything gathered."""
        self._flush()
        yield from self._ready
        if self._failures:
            # A dictionary of its own in each batch: the stream format replaces the one before.
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, FAILURE_SCHEMA) as writer:
                for batch in self._failures:
                    writer.write_batch(batch)
            yield FAILURES_SHARD, sink.getvalue().to_pybytes()
        if self._counters:
            components = {name: counters.to_json() for name, counters in self._counters.items()}
            report = {"messages": self._messages, "native_ns": self._native_ns, "components": components}
            yield COUNTERS_SHARD, json.dumps(report).encode()


class Step(Protocol):
    """One step of a stage; it sees all rows of a partition."""

    def run(self, flows: Iterator[Flow], collector: Collector) -> Iterator[Flow]:
        """Take rows, leave messages with the collector, give rows."""


@dataclass(frozen=True)
class ReadStep:
    """Replaces the rows by those that a function reads, before they have trees."""

    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: pa.Schema

    def run(self, flows: Iterator[Flow], collector: Collector) -> Iterator[Flow]:  # noqa: ARG002
        """Read."""
        for rows in self.function(flow.rows for flow in flows):
            if rows.schema.names != self.schema.names:
                raise ArgumentValueError(
                    f"reader: expected the columns {', '.join(self.schema.names)}, got {', '.join(rows.schema.names)}"
                )
            if rows.num_rows:
                yield Flow(rows.cast(self.schema), trees.unanchored(rows.num_rows))


@dataclass(frozen=True)
class SpoutStep:
    """Gives each row a tree and its first tuple, and sends its TRACK."""

    component: str
    run_seed: int
    message_id: str
    source: str | None
    task_id: str | int
    attempt: str | int
    event_time: str | None = None

    def run(self, flows: Iterator[Flow], collector: Collector) -> Iterator[Flow]:
        """Track the rows whose message id is not null; the others stay unanchored."""
        tracks: list[tuple[Int64s, Int64s]] = []
        for rows, _ in flows:
            tracked = rows.column(self.message_id).is_valid()
            part = rows.filter(tracked)
            message_id = self._column(part, self.message_id)
            task_id = self._column(part, self.task_id)
            attempt = self._column(part, self.attempt)
            source: str | Int64s = "" if self.source is None else self._column(part, self.source)
            root_id = root_ids(self.run_seed, source, message_id, attempt, component=self.component)
            tuple_id = tuple_ids(self.run_seed, root_id, 0, self.component, 0)
            kind = np.full(root_id.size, Kind.TRACK, np.int8)
            event_ms = None if self.event_time is None else self._event_ms(part, self.event_time)
            duplicates = collector.add(kind, root_id, tuple_id, task_id.astype(np.int32), message_id, event_ms=event_ms)
            tracks.append((root_id, message_id))
            if duplicates:
                raise ColumnValueError(f"{self.component}: {self.message_id}: {shared_ids(tracks)}")
            counters = collector.counters(self.component)
            counters.emitted += rows.num_rows
            counters.messages += root_id.size
            anchored = tracked.to_numpy(zero_copy_only=False)
            yield Flow(rows, trees.single(root_id, tuple_id, anchored, event_ms))

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
class BoltStep:
    """Runs a function, gives its outputs tuple ids, and sends OK or FAIL for each input row and tree."""

    component: str
    run_seed: int
    function: Callable[[Any], Any]
    by: str
    schema: pa.Schema
    sink: bool
    strict: bool = False

    def run(self, flows: Iterator[Flow], collector: Collector) -> Iterator[Flow]:
        """Run the function over rows, over each batch, or over the partition as one batch."""
        for flow in _whole(flows) if self.by == "partition" else flows:
            start = time.perf_counter_ns()
            produced = self._call(flow.rows)
            function_ns = time.perf_counter_ns() - start
            outputs = produced.rows.num_rows
            if self.sink:
                emitted = np.zeros(flow.anchors.root_id.size, np.int64)
                anchors = trees.roots_only(flow.anchors, produced.parents, outputs)
            else:
                emitted, anchors = trees.emit(flow.anchors, produced.parents, outputs, self.run_seed, self.component)
            self._count(flow, produced, function_ns, collector.counters(self.component))
            self._send(flow, produced, emitted, collector)
            if produced.failed:
                if self.strict:
                    row, reason = min(produced.failed.items())
                    raise StrictError(
                        f"{self.component}: {len(produced.failed)} of {flow.rows.num_rows} rows failed, row {row} with"
                        f" {reason}; strict=True lets this end the job"
                    )
                collector.tell_failed(self.component, produced.failed)
            if outputs:
                yield Flow(produced.rows, anchors)

    def _call(self, rows: pa.RecordBatch) -> Produced:
        if self.by == "row":
            return run_rows(self.function, rows, self.schema)
        return run_batch(self.function, rows, self.schema, divide=self.by == "batch")

    def _count(self, flow: Flow, produced: Produced, function_ns: int, counters: Counters) -> None:
        fanout = np.bincount(produced.parents.row, minlength=flow.rows.num_rows)
        fanout = np.delete(fanout, np.fromiter(produced.failed, np.int64))
        counters.fanout += np.bincount(np.minimum(fanout, FANOUT_MAX), minlength=FANOUT_MAX + 1)
        counters.executed += flow.rows.num_rows
        counters.emitted += produced.rows.num_rows
        counters.failed += len(produced.failed)
        counters.messages += flow.anchors.root_id.size
        counters.function_ns += function_ns

    def _send(self, flow: Flow, produced: Produced, emitted: Int64s, collector: Collector) -> None:
        anchors = flow.anchors
        kind = np.full(anchors.root_id.size, Kind.OK, np.int8)
        value = anchors.tuple_id ^ emitted
        if produced.failed:
            rows = np.sort(np.fromiter(produced.failed, np.int64))
            row = anchors.row_of_each()
            fail = np.isin(row, rows)
            kind[fail], value[fail] = Kind.FAIL, 0
            reasons = [produced.failed[index] for index in row[fail].tolist()]
            collector.add_failures(self.component, anchors.root_id[fail], anchors.tuple_id[fail], reasons)
            of_no_tree = rows[~np.isin(rows, row)].tolist()
            collector.add_failures(self.component, None, None, [produced.failed[index] for index in of_no_tree])
        collector.add(kind, anchors.root_id, value, event_ms=anchors.event_ms)


@dataclass(frozen=True)
class LossyStep:
    """Loses the rows for which a function of the batch says so; their trees stay open."""

    function: Callable[[pa.RecordBatch], Any]

    def run(self, flows: Iterator[Flow], collector: Collector) -> Iterator[Flow]:  # noqa: ARG002
        """Keep the rows whose mask is true; null loses the row."""
        for rows, anchors in flows:
            mask = self.function(rows)
            if isinstance(mask, (pa.Array, pa.ChunkedArray)):
                mask = [bool(value) for value in mask.to_pylist()]
            mask = np.asarray(mask)
            if mask.dtype != np.bool_ or mask.shape != (rows.num_rows,):
                raise ArgumentTypeError(
                    f"lossy: expected a boolean for each of {rows.num_rows} rows, got {mask.dtype} {mask.shape}"
                )
            kept = np.flatnonzero(mask)
            if kept.size:
                yield Flow(rows.filter(pa.array(mask)), anchors.take(kept))


@dataclass(frozen=True)
class SelectStep:
    """Keeps some columns."""

    names: tuple[str, ...]

    def run(self, flows: Iterator[Flow], collector: Collector) -> Iterator[Flow]:  # noqa: ARG002
        """Project."""
        for rows, anchors in flows:
            yield Flow(rows.select(list(self.names)), anchors)


@dataclass(frozen=True)
class BranchStep:
    """Delivers each tuple to several readers, each with a tuple id of its own; this one is the reader `branch`.

    The message for the tuple that was split is sent by branch 0, with the ids of all branches in it. The steps before a
    later branch run again, for their rows only: `Stage.mute` keeps their messages from being sent twice.
    """

    component: str
    run_seed: int
    branch: int
    branches: int

    def run(self, flows: Iterator[Flow], collector: Collector) -> Iterator[Flow]:
        """Give the ids of this branch."""
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


def _whole(flows: Iterator[Flow]) -> Iterator[Flow]:
    """Join all rows of the partition, if there are any."""
    parts = list(flows)
    if parts:
        table = pa.Table.from_batches([part.rows for part in parts]).combine_chunks()
        yield Flow(_one_batch(table), trees.concat([part.anchors for part in parts]))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.to_batches()
    if len(batches) != 1:
        raise ArgumentValueError(f"{table.num_rows} rows do not fit one Arrow batch: use more partitions")
    return batches[0]


@dataclass(frozen=True)
class Stage:
    """Steps that run in one task, between two shuffles.

    Attributes
    ----------
    steps : the steps
    schema : of the rows that leave, the user's columns only
    shards : of the message blocks
    mute : how many of the first steps send no messages; 0: all do. If any is mute the carriers that come in end here.
    tracked : whether the rows that come in have the hidden columns
    timed : whether trees have event times
    """

    steps: tuple[Step, ...]
    schema: pa.Schema
    shards: int
    mute: int = 0
    tracked: bool = True
    timed: bool = False

    def run(
        self, batches: Iterator[pa.RecordBatch], tell: Callable[[dict[str, tuple[int, str]]], object] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Be the function of `mapInArrow`; at its end `tell` hears what `Collector.failed` says."""
        passing: list[pa.RecordBatch] = []
        collector, muted = (Collector(self.shards, timed=self.timed) for _ in range(2))
        flows = self._read(batches, passing)
        for place, step in enumerate(self.steps):
            flows = step.run(flows, muted if place < self.mute else collector)
        for flow in flows:
            yield from self._passed(passing)
            columns = [*flow.rows.columns, trees.to_arrow(flow.anchors)]
            yield self._batch(columns, None, None)
        yield from self._passed(passing)
        if tell is not None and collector.first_failures:
            tell(collector.failed())
        yield from self._carriers(collector)

    def _read(self, batches: Iterator[pa.RecordBatch], passing: list[pa.RecordBatch]) -> Iterator[Flow]:
        """Part data rows from carriers, which are put aside."""
        for batch in batches:
            if not self.tracked:
                if batch.num_rows:
                    yield Flow(batch, trees.unanchored(batch.num_rows))
                continue
            rows = batch
            shard = batch.column(SHARD)
            if shard.null_count < len(shard):
                is_carrier = shard.is_valid()
                passing.append(batch.filter(is_carrier).select([SHARD, BLOCK]))
                rows = batch.filter(pc.invert(is_carrier))
            if rows.num_rows:
                names = [name for name in rows.schema.names if name not in HIDDEN]
                yield Flow(rows.select(names), trees.from_arrow(rows.column(ANCHORS), timed=self.timed))

    def _passed(self, passing: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while passing:
            batch = passing.pop()
            if not self.mute:
                yield self._batch(None, batch.column(SHARD), batch.column(BLOCK).cast(pa.binary()))

    def _carriers(self, collector: Collector) -> Iterator[pa.RecordBatch]:
        shards: list[int] = []
        blocks: list[bytes] = []
        held = 0
        for shard, block in collector.finish():
            if blocks and held + len(block) > _BATCH_BYTES:
                yield self._batch(None, pa.array(shards, pa.int32()), pa.array(blocks, pa.binary()))
                shards, blocks, held = [], [], 0
            shards.append(shard)
            blocks.append(block)
            held += len(block)
        if blocks:
            yield self._batch(None, pa.array(shards, pa.int32()), pa.array(blocks, pa.binary()))

    def _batch(self, data: list[pa.Array[Any]] | None, shard: Any, block: Any) -> pa.RecordBatch:
        """Make a batch of data rows, or of carriers."""
        schema = hidden_schema(self.schema)
        rows = len(shard) if data is None else len(data[-1])
        columns: list[Any] = [pa.nulls(rows, entry.type) for entry in list(schema)[:-2]] if data is None else data
        tail: list[Any] = [pa.nulls(rows, pa.int32()), pa.nulls(rows, pa.binary())] if shard is None else [shard, block]
        return pa.RecordBatch.from_arrays([*columns, *tail], schema=schema)


def hidden_schema(schema: pa.Schema) -> pa.Schema:
    """Return the user's columns and the hidden ones."""
    for name, dtype in zip(HIDDEN, (pa.binary(), pa.int32(), pa.binary()), strict=True):
        schema = schema.append(pa.field(name, dtype))
    return schema


def without_trees(not_acked: Int64s, names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keep the data rows none of whose trees is in `not_acked`, and of them these columns."""
    for batch in batches:
        rows = batch.filter(batch.column(SHARD).is_null())
        anchors = trees.from_arrow(rows.column(ANCHORS))
        bad = anchors.row_of_each()[np.isin(anchors.root_id, not_acked)]
        mask = np.ones(rows.num_rows, np.bool_)
        mask[bad] = False
        yield rows.select(names).filter(pa.array(mask))


def decode_failures(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn carriers of failure texts into rows of (root_id, tuple_id, component, reason)."""
    plain = pa.schema(
        [
            entry.with_type(entry.type.value_type) if pa.types.is_dictionary(entry.type) else entry
            for entry in FAILURE_SCHEMA
        ]
    )
    for batch in batches:
        for block in batch.column(BLOCK):
            for part in pa.ipc.open_stream(block.as_py()):
                yield part.cast(plain)
