"""Stages of a tracked pipeline: the transforms of rows in one task, and the carriers of the messages they send.

The transforms between two shuffles run one after the other inside one `mapInArrow`, so rows cross between the JVM and
Python once, and messages of a tree that come from one task are combined there. At its end a task sends its messages,
notes and counters as carrier rows, which later stages forward untouched. Nothing here imports pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acker.spark.pipelines import anchors as trees
from acker.spark.pipelines.collector import MessageCollector
from acker.spark.pipelines.hidden_columns import ALIVE, ANCHORS, BLOCK, RESERVED, SHARD, with_hidden, with_sql_hidden
from acker.spark.pipelines.sql_batches import SqlMessages, alive_rows, hidden_columns_of
from acker.spark.pipelines.stage_calls import StageCalls
from acker.spark.pipelines.transforms import Flow, Transform
from acker.spark.task_reports import PIPELINES, ReportAddress
from acker.spark.task_watch import TaskWatch
from acker.topology.anchors import Int64s, unanchored

# About the size of an Arrow batch of carriers: Spark copies each batch through memory several times.
_BATCH_BYTES: Final = 32_000_000


@dataclass(frozen=True)
class Stage:
    """Transforms that run in one task, between two shuffles.

    Attributes
    ----------
    transforms : the transforms
    schema : schema of the output rows, the user's columns only
    shards : number of shards of the message blocks
    mute : how many of the first transforms send no messages. If any is mute, carriers from earlier stages end here.
    tracked : whether the input rows have the hidden columns
    timed : whether trees have event times
    from_sql : whether the input rows have the hidden columns that SQL reads
    sql_ids : for output rows with those, the type of message ids
    """

    transforms: tuple[Transform, ...]
    schema: pa.Schema
    shards: int
    mute: int = 0
    tracked: bool = True
    timed: bool = False
    from_sql: bool = False
    sql_ids: str | None = None

    @property
    def output_schema(self) -> pa.Schema:
        """The schema of the output rows, with the hidden columns."""
        if self.sql_ids is None:
            return with_hidden(self.schema)
        return with_sql_hidden(self.schema, self.sql_ids, timed=self.timed)

    @property
    def name(self) -> str:
        """The components, for Spark's plans."""
        return " > ".join(each.component for each in self.transforms if hasattr(each, "component")) or (
            "select" if self.transforms else "messages"
        )

    def run(
        self,
        batches: Iterator[pa.RecordBatch],
        report_failed: Callable[[dict[str, tuple[int, str]]], object] | None = None,
        calls: StageCalls | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Run the stage as a function of `mapInArrow`; `report_failed` gets the failed rows of the task at its end."""
        passing: list[pa.RecordBatch] = []
        collector, muted = (MessageCollector(self.shards, timed=self.timed, calls=calls) for _ in range(2))
        flows = self._read(batches, passing, muted if self.mute else collector)
        for index, transform in enumerate(self.transforms):
            flows = transform.run(flows, muted if index < self.mute else collector)
        for flow in flows:
            yield from self._forward(passing)
            yield self._data(flow)
        yield from self._forward(passing)
        if report_failed is not None and collector.first_failures:
            report_failed(collector.count_failed())
        yield from self._carriers(collector)

    def run_watched(
        self,
        batches: Iterator[pa.RecordBatch],
        report_failed: Callable[[dict[str, tuple[int, str]]], object] | None,
        reports: ReportAddress | None,
    ) -> Iterator[pa.RecordBatch]:
        """Run the stage in this Spark task, which says where it is once it works for long."""
        from pyspark import TaskContext

        calls = StageCalls()
        with TaskWatch(reports, PIPELINES, self.name, TaskContext.get()) as watch:
            watch.look = calls.place
            yield from self.run(batches, report_failed, calls)

    def _read(
        self, batches: Iterator[pa.RecordBatch], passing: list[pa.RecordBatch], collector: MessageCollector
    ) -> Iterator[Flow]:
        """Yield the data rows, put carriers aside, and send the messages that rows carry."""
        carried = SqlMessages(collector, timed=self.timed)
        for batch in batches:
            if not self.tracked:
                if batch.num_rows:
                    yield Flow(batch, unanchored(batch.num_rows))
                continue
            rows = batch
            shard = batch.column(SHARD)
            if shard.null_count < len(shard):
                is_carrier = shard.is_valid()
                passing.append(batch.filter(is_carrier).select([SHARD, BLOCK]))
                rows = batch.filter(pc.invert(is_carrier))
            names = [name for name in rows.schema.names if name not in RESERVED]
            if self.from_sql:
                carried.send(rows)
                flow = alive_rows(rows, names, timed=self.timed)
            else:
                flow = Flow(rows.select(names), trees.from_arrow(rows.column(ANCHORS), timed=self.timed))
            if flow.anchors.rows:
                yield flow

    def _forward(self, passing: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while passing:
            batch = passing.pop()
            if not self.mute:
                yield self._batch(batch.column(SHARD), batch.column(BLOCK).cast(pa.binary()))

    def _carriers(self, collector: MessageCollector) -> Iterator[pa.RecordBatch]:
        shards: list[int] = []
        blocks: list[bytes] = []
        held = 0
        for shard, block in collector.finish():
            if blocks and held + len(block) > _BATCH_BYTES:
                yield self._batch(pa.array(shards, pa.int32()), pa.array(blocks, pa.binary()))
                shards, blocks, held = [], [], 0
            shards.append(shard)
            blocks.append(block)
            held += len(block)
        if blocks:
            yield self._batch(pa.array(shards, pa.int32()), pa.array(blocks, pa.binary()))

    def _data(self, flow: Flow) -> pa.RecordBatch:
        """Return a batch of data rows."""
        schema = self.output_schema
        if self.sql_ids is not None:
            columns = hidden_columns_of(flow.anchors, list(schema)[len(self.schema) :], self.name)
        else:
            carriers = [pa.nulls(flow.anchors.rows, entry.type) for entry in list(schema)[-2:]]
            columns = [trees.to_arrow(flow.anchors), *carriers]
        return pa.RecordBatch.from_arrays([*flow.rows.columns, *columns], schema=schema)

    def _batch(self, shard: Any, block: Any) -> pa.RecordBatch:
        """Return a batch of carriers."""
        schema = self.output_schema
        known = {SHARD: shard, BLOCK: block, ALIVE: pa.array(np.zeros(len(shard), np.bool_))}
        columns = [known[entry.name] if entry.name in known else pa.nulls(len(shard), entry.type) for entry in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def without_trees(not_acked: Int64s, names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keep the data rows none of whose trees is in `not_acked`, and of them these columns."""
    for batch in batches:
        rows = batch.filter(batch.column(SHARD).is_null())
        anchors = trees.from_arrow(rows.column(ANCHORS))
        bad = anchors.row_of_each()[np.isin(anchors.root_id, not_acked)]
        mask = np.ones(rows.num_rows, np.bool_)
        mask[bad] = False
        yield rows.select(names).filter(pa.array(mask))
