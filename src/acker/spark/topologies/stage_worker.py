"""The work of one stage in a Spark task: take tuples, run bolts, pass on what they emit, and gather messages."""

from __future__ import annotations

import contextlib
import gc
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from acker._engine.combiner import Combiner, shard_of
from acker._flow import AckBatch, columns_of
from acker.observe.reasons import Reason
from acker.spark.blocks import encode_blocks
from acker.spark.partition_keys import partition_keys
from acker.spark.task_watch import TaskWatch
from acker.spark.topologies.bolt_state import StateFiles
from acker.spark.topologies.column_blocks import parts_of, share_of
from acker.spark.topologies.micro_batch_plan import MicroBatchPlan
from acker.spark.topologies.stage_executors import StageExecutors, StagePartition
from acker.spark.topologies.stage_plan import is_stateful
from acker.spark.topologies.stage_rows import (
    CHANGED,
    COUNTERS,
    MESSAGES,
    REASONS,
    STATE,
    TIMES,
    TOO_MANY,
    TOOK,
    TOUCHED,
    TREE_TIMES,
    StageRow,
    batches_of,
    equals,
)
from acker.spark.topologies.tuple_blocks import MixedChunk, decode_tuples, encode_tuples
from acker.topology.tuple_batch import TupleBatch

# Number of tuples for one partition that are packed into a block.
_BLOCK_TUPLES: Final = 4096
# With this number of trees a task writes out its messages and begins anew, which bounds its memory.
_TREES_MAX: Final = 1_000_000
# Numbers of stages and partitions make the number of a writer.
_PARTITIONS_MAX: Final = 1 << 32
# How many new objects let the garbage collector run. Tuples are many, short-lived, and in no cycles: at CPython's own
# 2,000 it takes a tenth of the time of a stage.
_COLLECT_AT: Final = 100_000


class TaskTime(NamedTuple):
    """How long one Spark task took for one stage.

    Attributes
    ----------
    stage, partition : int
        The stage of the topology.
    took_ns : int
    state_ns : int
        Of it, to read and write the state of bolts.
    done : int
        How many tuples its bolts had.
    """

    stage: int
    partition: int
    took_ns: int
    state_ns: int
    done: int


class StageWorker:
    """Runs one stage in one Spark task.

    Parameters
    ----------
    plan : MicroBatchPlan
    stage, partition : int
    spout : str, optional
        The spout whose DataFrame this task reads.
    """

    def __init__(self, plan: MicroBatchPlan, stage: int, partition: int, spout: str | None = None) -> None:
        self._plan = plan
        self._stage = stage
        self._partition = partition
        self._since_ns = time.monotonic_ns()
        self._writer = stage * _PARTITIONS_MAX + partition
        self._seq = 0
        self._states = StateFiles(plan.state_root, plan.states, plan.batch, plan.graph.component_of)
        self.executors = StageExecutors(StagePartition(plan, stage, partition, spout), self._states)
        self._combiner = Combiner()
        self._stateful = {task for node in plan.graph.bolts if is_stateful(node) for task in node.tasks}
        self._touched: list[npt.NDArray[np.int64]] = []
        self._reasons: list[tuple[int, Reason]] = []
        # (stage, partition) -> what goes there, and how much of a block that fills; and what has filled a block.
        self._waiting: dict[tuple[int, int], list[MixedChunk]] = {}
        self._filled: dict[tuple[int, int], float] = {}
        self._full: list[tuple[tuple[int, int], list[MixedChunk]]] = []
        self._keys = partition_keys(max(plan.partitions, plan.shards)).tolist()
        self._source_of = cache(plan.graph.source)

    def open(self) -> None:
        """Initialize the bolts, and do what is due before the first tuple."""
        self.executors.open()
        self.executors.tick(self._plan.ticks)
        self.executors.end_windows()

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the stage as a function of `mapInArrow` over stage rows."""
        self.open()
        for batch in batches:
            is_mine = equals(batch.column(1), self._stage)
            others = batch.filter(pc.invert(is_mine))
            if others.num_rows:
                yield others
            for block in batch.filter(is_mine).column(4):
                self._take(block.as_buffer())
                yield from batches_of(self.full())
        yield from self.finish()

    def _take(self, block: Any) -> None:
        for task, tuples in decode_tuples(block, self._source_of, self._plan.excluded, self._note_roots):
            queue, target = self.executors.inbox_of_task(task)
            queue.put((target, tuples), len(tuples))
        self.work()

    def _note_roots(self, task: int, root_ids: npt.NDArray[np.int64]) -> None:
        if task in self._stateful:
            self._touched.append(root_ids)

    def work(self) -> None:
        """Process what is in the queues, and gather what comes out."""
        self.executors.work()
        self._gather()

    def _gather(self) -> None:
        outside = self.executors.outside
        while (chunk := outside.take()) is not None:
            task, tuples = chunk
            graph, plan = self._plan.graph, self._plan
            stage = plan.stages.stage_of[graph.component_of(task)]
            for part in parts_of(tuples) if isinstance(tuples, TupleBatch) else (tuples,):
                self._wait((stage, task % plan.partitions), (task, part))
        batches: list[AckBatch] = []
        while (acks := self.executors.acks.take()) is not None:
            batches.append(acks)
            self._reasons += acks.fails()
        if batches:
            self._combiner.add(*columns_of(batches))

    def _wait(self, key: tuple[int, int], chunk: MixedChunk) -> None:
        _, rows = chunk
        share = share_of(rows) if isinstance(rows, TupleBatch) else len(rows) / _BLOCK_TUPLES
        self._waiting.setdefault(key, []).append(chunk)
        self._filled[key] = self._filled.get(key, 0) + share
        if self._filled[key] >= 1:
            del self._filled[key]
            self._full.append((key, self._waiting.pop(key)))

    def full(self) -> Iterator[StageRow]:
        """Yield the blocks that are large enough."""
        full, self._full = self._full, []
        for key, chunks in full:
            yield self._row(key, chunks)
        if len(self._combiner) > _TREES_MAX:
            yield from self._messages()

    def _row(self, key: tuple[int, int], chunks: list[MixedChunk]) -> StageRow:
        stage, partition = key
        return self._number(self._keys[partition], stage, encode_tuples(chunks))

    def _number(self, key: int, stage: int, block: bytes) -> StageRow:
        self._seq += 1
        return StageRow(key, stage, self._writer, self._seq, block)

    def _messages(self) -> Iterator[StageRow]:
        combiner, self._combiner = self._combiner, Combiner()
        if self._plan.trees_max is not None and len(combiner) > self._plan.trees_max:
            yield self._number(self._keys[0], TOO_MANY, b"")
            return
        for shard, block in encode_blocks(combiner, self._plan.shards):
            yield self._number(self._keys[shard], MESSAGES, block)

    def _touched_roots(self) -> Iterator[StageRow]:
        if self._touched:
            excluded = np.fromiter(self._plan.excluded, np.int64, len(self._plan.excluded))
            root_ids = np.setdiff1d(np.concatenate(self._touched), excluded)
            shards = shard_of(root_ids, self._plan.shards)
            for shard in np.unique(shards).tolist():
                yield self._number(self._keys[shard], TOUCHED, root_ids[shards == shard].tobytes())

    def _tree_times(self) -> Iterator[StageRow]:
        """Yield the event times of trees for the shards that settle these, which know whose trees they are."""
        for watermark in self.executors.watermarks:
            for is_shared, root_ids, times in watermark.tree_columns():
                shards = shard_of(root_ids, self._plan.shards)
                for shard in np.unique(shards).tolist():
                    columns = root_ids[shards == shard].tobytes(), times[shards == shard].tobytes()
                    content = pickle.dumps((watermark.name, is_shared, *columns))
                    yield self._number(self._keys[shard], TREE_TIMES, content)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the stage: bolts release what they hold, and everything that was gathered leaves."""
        self.executors.drain()
        self._gather()
        yield from batches_of(self.full())
        yield from batches_of([self._row(key, self._waiting[key]) for key in sorted(self._waiting)])
        yield from batches_of(self._messages())
        yield from batches_of(self._touched_roots())
        yield from batches_of(self._tree_times())
        counters = self._counters()
        last: list[tuple[int, object]] = [(COUNTERS, counters)]
        if self._reasons:
            last.append((REASONS, [(root_id, reason) for root_id, reason in self._reasons]))
        times = [(each.name, each.senders, each.late) for each in self.executors.watermarks]
        if times:
            last.append((TIMES, times))
        written = self._states.write()
        if written:
            last.append((STATE, written))
        self.executors.close()
        if self.executors.changed:
            last.append((CHANGED, self.executors.changed))
        took_ns, done = time.monotonic_ns() - self._since_ns, sum(each["executed"] for each in counters)
        last.append((TOOK, TaskTime(self._stage, self._partition, took_ns, self._states.spent_ns, done)))
        yield from batches_of([self._number(self._keys[0], kind, pickle.dumps(content)) for kind, content in last])

    def _counters(self) -> list[dict[str, Any]]:
        """Return the counts of each task."""
        executors: Sequence[Any] = [*self.executors.spouts, *self.executors.bolts]
        return [
            {
                "task": task.collector.task,
                "executed": task.collector.executed,
                "acked": task.collector.acked,
                "failed": getattr(task.collector, "failed", 0),
                "emitted": {name: route.emitted for name, route in task.collector.routes.items() if name is not None},
                "sent": [outlet.sent for outlet in task.collector.outlets],
                "user": task.collector.user,
                "latency": task.collector.latency.totals(),
                "busy_ns": executor.busy_ns // len(executor.tasks),
            }
            for executor in executors
            for task in executor.tasks
        ]


def run_stage(plan: MicroBatchPlan, stage: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a stage over the rows of one partition; the function of `mapInArrow`."""
    return run_task(plan, stage, None, lambda worker: worker.run(batches))


def run_task(
    plan: MicroBatchPlan, stage: int, spout: str | None, run: Callable[[StageWorker], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Run a stage in this Spark task: yield what `run` makes of its worker."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    names = [name for name in plan.stages.components(stage) if plan.graph.nodes[name].kind == "bolt" or name == spout]
    with collecting_rarely(), TaskWatch(plan.reports, str(plan.batch), ", ".join(names), context) as watch:
        worker = StageWorker(plan, stage, context.partitionId(), spout)
        watch.look = worker.executors.place
        yield from run(worker)


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the garbage collector run less often meanwhile; one that is off stays off."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(before[0], _COLLECT_AT), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
