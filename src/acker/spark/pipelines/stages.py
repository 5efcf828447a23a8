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
from acker.spark.pipelines.stage_calls import StageCalls
from acker.spark.pipelines.transforms import Flow, Transform
from acker.spark.task_reports import PIPELINES, ReportAddress
from acker.spark.task_watch import TaskWatch
from acker.topology.anchors import Int64s, unanchored

ANCHORS: Final = "acker_anchors"
# Null on data rows. On carriers the shard of a block of messages, or a negative number: see the collector.
SHARD: Final = "acker_shard"
BLOCK: Final = "acker_block"
HIDDEN: Final = (ANCHORS, SHARD, BLOCK)

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
    """

    transforms: tuple[Transform, ...]
    schema: pa.Schema
    shards: int
    mute: int = 0
    tracked: bool = True
    timed: bool = False

    @property
    def name(self) -> str:
        """The components, for Spark's plans."""
        return " > ".join(each.component for each in self.transforms if hasattr(each, "component")) or "select"

    def run(
        self,
        batches: Iterator[pa.RecordBatch],
        report_failed: Callable[[dict[str, tuple[int, str]]], object] | None = None,
        calls: StageCalls | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Run the stage as a function of `mapInArrow`; `report_failed` gets the failed rows of the task at its end."""
        passing: list[pa.RecordBatch] = []
        collector, muted = (MessageCollector(self.shards, timed=self.timed, calls=calls) for _ in range(2))
        flows = self._read(batches, passing)
        for index, transform in enumerate(self.transforms):
            flows = transform.run(flows, muted if index < self.mute else collector)
        for flow in flows:
            yield from self._forward(passing)
            columns = [*flow.rows.columns, trees.to_arrow(flow.anchors)]
            yield self._batch(columns, None, None)
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

    def _read(self, batches: Iterator[pa.RecordBatch], passing: list[pa.RecordBatch]) -> Iterator[Flow]:
        """Yield the data rows, and put carriers aside."""
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
            if rows.num_rows:
                names = [name for name in rows.schema.names if name not in HIDDEN]
                yield Flow(rows.select(names), trees.from_arrow(rows.column(ANCHORS), timed=self.timed))

    def _forward(self, passing: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while passing:
            batch = passing.pop()
            if not self.mute:
                yield self._batch(None, batch.column(SHARD), batch.column(BLOCK).cast(pa.binary()))

    def _carriers(self, collector: MessageCollector) -> Iterator[pa.RecordBatch]:
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

    def _batch(self, data: list[Any] | None, shard: Any, block: Any) -> pa.RecordBatch:
        """Return a batch of data rows, or of carriers."""
        schema = hidden_schema(self.schema)
        if data is None:
            columns = [pa.nulls(len(shard), entry.type) for entry in list(schema)[:-2]]
            carriers = [shard, block]
        else:
            columns = data
            carriers = [pa.nulls(len(data[-1]), entry.type) for entry in list(schema)[-2:]]
        return pa.RecordBatch.from_arrays([*columns, *carriers], schema=schema)


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
